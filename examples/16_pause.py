"""Shows: pausing a session. Running calls finish, nothing new starts, and nothing is lost.

Run:     python examples/16_pause.py
See:     a payment that runs during the pause; an input that is kept; both answered after the resume.
"""

import asyncio

from perdure import Agent, Runtime, tool
from perdure.events import RecordEvent
from perdure.testing import ScriptedModel, call, say
from perdure.vocab.records import EffectSettled

paying, go_on = asyncio.Event(), asyncio.Event()
paid: list[int] = []


@tool(effect="once")
async def pay(cents: int) -> str:
    """Pay an invoice."""
    paying.set()
    await go_on.wait()
    paid.append(cents)
    return "paid"


model = ScriptedModel.by_input(
    {
        "Pay the invoice": [call("pay", cents=4200), say("Paid.", exact=True)],
        "And the next?": [say("There is none.", exact=True)],
    }
)


async def main() -> None:
    async with Runtime("memory://", agents=[Agent("billing", model=model, tools=[pay])]) as rt:
        session = await rt.session("customer-42", agent="billing")
        first = await session.send("Pay the invoice")
        await paying.wait()
        print("1  paused:", await session.pause(by="maria", reason="look first"))
        go_on.set()  # the running payment finishes
        second = await session.send("And the next?")
        async for event in session.events():
            if (
                isinstance(event, RecordEvent)
                and isinstance(event.record, EffectSettled)
                and event.record.id == "c1.0.1"
            ):
                break
        queued = len(await session.queued_inputs())
        print(f"2  paid {paid}, {queued} input waits, {len(model.requests)} request to the model")
        await session.resume(by="maria")
        print("3 ", (await first.result()).text, (await second.result()).text)


if __name__ == "__main__":
    asyncio.run(main())
