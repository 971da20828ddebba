"""Shows: a session-wide approval. Later calls of the tool need no decision until it is revoked.

Run:     python examples/17_session_grant.py
See:     one request for two refunds; the approver of the second one; a new request after the revocation.
"""

import asyncio

from perdure import Agent, Runtime, tool
from perdure.testing import ScriptedModel, call, say


@tool(needs_approval=True)
async def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


model = ScriptedModel.by_input(
    {f"Refund {n}": [call("refund", order=n), say(f"Order {n} is refunded.", exact=True)] for n in (1, 2, 3)}
)


async def main() -> None:
    async with Runtime("memory://", agents=[Agent("billing", model=model, tools=[refund])]) as rt:
        session = await rt.session("customer-42", agent="billing")
        questions = rt.approvals.watch()
        first = await session.send("Refund 1")
        await rt.approvals.approve((await anext(questions)).id, by="ana", for_session=True)
        print("1 ", (await first.result()).text)
        print("2 ", await session.ask("Refund 2"), f"{len(await rt.approvals.list())} questions wait")
        [grant] = await session.grants()
        print(f"3  {grant.tool} is allowed by {grant.by}")
        await session.revoke_grant(grant.grant, by="bob")
        third = await session.send("Refund 3")
        asked = await anext(questions)
        await rt.approvals.deny(asked.id, by="bob", reason="that is enough")
        await third.result()
        print(f"4  asked again: {asked.args}, then {(await rt.approvals.get(asked.id)).status}")


if __name__ == "__main__":
    asyncio.run(main())
