"""Shows: a call of unknown outcome, settled by a person.

Run:     python examples/18_doubt_ask.py
See:     a wire whose connection fails after the money may have moved; the request; a refused "did not happen" while the
         calling process may still act; the outcome that the model receives.
"""

import asyncio

from perdure import Agent, Error, OutcomeUnknown, Runtime, tool
from perdure.testing import ScriptedModel, call, say

sent: list[int] = []


@tool(effect="once", in_doubt="ask")
async def wire(cents: int) -> str:
    """Wire money."""
    sent.append(cents)
    raise OutcomeUnknown("the line went dead")


model = ScriptedModel(call("wire", cents=9_000), say("The money is there.", exact=True))


async def main() -> None:
    async with Runtime("memory://", agents=[Agent("bank", model=model, tools=[wire])]) as rt:
        session = await rt.session("customer-42", agent="bank")
        turn = await session.send("Wire 90")
        asked = await anext(rt.approvals.watch())
        print(f"1  {asked.kind}: {asked.what}")
        try:
            await rt.approvals.settle(asked.id, "did_not_happen", by="ana")
        except Error as refused:
            print("2 ", refused.code.value)
        await rt.approvals.settle(asked.id, "happened", by="ana", value={"receipt": 7})
        print("3 ", (await turn.result()).text)
        told = next(message for message in await session.messages() if message.role == "tool").parts[0]
        print("4  the model was told", told.output, "and wired", len(sent), "time")


if __name__ == "__main__":
    asyncio.run(main())
