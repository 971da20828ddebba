"""Shows: a refund that needs an approval before it runs.

Run:     python examples/03_approval.py
See:     the request, a decision that changes the amount, the call that ran, and the refusal of a second decision.
"""

import asyncio

from perdure import Agent, Error, Runtime, tool
from perdure.testing import ScriptedModel, call, say

paid: list[int] = []


@tool(needs_approval=lambda a: a.cents > 5_000, approval_timeout="2h")
async def refund(order: str, cents: int) -> str:
    """Refund part of an order."""
    paid.append(cents)
    return f"refunded {cents} of {order}"


async def main() -> None:
    model = ScriptedModel(call("refund", order="ord_7", cents=9_000), say("It is on its way.", exact=True))
    async with Runtime("memory://", agents=[Agent("billing", model=model, tools=[refund])]) as rt:
        session = await rt.session("customer-42", agent="billing")
        sent = await session.send("I want my 90 back")
        asked = await anext(rt.approvals.watch())  # in an application: another process, next week
        print(f"1  {asked.what}: {asked.args}, {len(paid)} paid so far")
        decision = await rt.approvals.approve(asked.id, by="ana", args={"order": "ord_7", "cents": 4_000})
        print(f"2  {decision.verdict} by {decision.by}, with {decision.args}")
        print(f"3  {(await sent.result()).text} paid: {paid}")
        try:
            await rt.approvals.deny(asked.id, by="bob")
        except Error as late:
            print(f"4  {late.message[:27]}")


asyncio.run(main())
