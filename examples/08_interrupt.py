"""Shows: interrupting a turn. The turn ends as cancelled; a dispatched call is in doubt, never "cancelled".

Run:     python examples/08_interrupt.py
See:     a slow payment; a newer input that ends the turn; the model's view of the payment; a cancel after the end,
         which reports that completion won.
"""

import asyncio

from perdure import Agent, Runtime, tool
from perdure.testing import ScriptedModel, call, say

paying = asyncio.Event()


@tool(effect="once")
async def pay(cents: int) -> str:
    """Pay an invoice."""
    paying.set()
    await asyncio.sleep(3600)  # the bank does not answer
    return "paid"


model = ScriptedModel.by_input(
    {
        "Pay the invoice": [call("pay", cents=4200), say("Paid.")],
        "Stop, what did you do?": [say("I began a payment, and do not know whether it went through.", exact=True)],
    }
)
agent = Agent("billing", model=model, tools=[pay])


async def main() -> None:
    async with Runtime("memory://", agents=[agent]) as rt:
        session = await rt.session("customer-42", agent="billing")
        first = await session.send("Pay the invoice")
        await paying.wait()
        stop = await session.send("Stop, what did you do?", mode="interrupt")
        print((await stop.result()).text)
        ended = await first.result()
        print("the first turn:", ended.status, ended.reason)
        told = next(message for message in await session.messages() if message.role == "tool").parts[0]
        print("the model was told:", told.output["code"])
        print("cancel, afterwards:", await session.cancel(stop.turn_id))


if __name__ == "__main__":
    asyncio.run(main())
