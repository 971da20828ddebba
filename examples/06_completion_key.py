"""Shows: external completion. The tool hands out a signed key; its bearer completes the call, once.

Run:     python examples/06_completion_key.py
See:     an order is pending without a worker; the warehouse completes it from another runtime; a second resolution
         returns the first; a forged key is refused.
Also:    perdure resolve - --value '{"parcel": 7}' --db app.db < key
"""

import asyncio
import tempfile
from pathlib import Path

from perdure import Agent, Error, Runtime, RuntimeOptions, ToolContext, tool
from perdure.testing import ScriptedModel, call, say
from perdure.values import PendingCompletion

mailbox: list[str] = []


@tool
async def order(ctx: ToolContext, item: str) -> PendingCompletion:
    """Order an item; the warehouse reports the result."""
    key = await ctx.completion_key()
    mailbox.append(key.text)  # the only place that sees the key itself
    return ctx.pending(deadline="2d")


model = ScriptedModel(call("order", item="lamp"), say("It is on its way.", exact=True))
agent = Agent("shop", model=model, tools=[order])


async def main(folder: Path) -> None:
    url = f"sqlite:///{folder / 'app.db'}"
    async with Runtime(url, agents=[agent], options=RuntimeOptions(idle_timeout_s=0)) as rt:
        session = await rt.session("ann", agent="shop")
        await session.send("Order a lamp", key="order-1")
        while not mailbox or (await session.why()).status != "waiting":
            await asyncio.sleep(0.01)

    async with Runtime(url, worker=False) as warehouse:
        try:
            await warehouse.resolve(mailbox[0][:-1] + "x", "mine")
        except Error as problem:
            print("1 ", problem.message)
        print("2 ", await warehouse.resolve(mailbox[0], {"parcel": 7}))
        print("3 ", await warehouse.resolve(mailbox[0], {"parcel": 8}))

    async with Runtime(url, agents=[agent]) as rt:
        session = await rt.session("ann", agent="shop")
        same = await session.send("Order a lamp", key="order-1")  # the same key: the same input, and its turn
        print("4 ", (await same.result()).text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
