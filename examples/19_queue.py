"""Shows: the queue of a session. Inputs run in order, one turn each; queued inputs can be cancelled.

Run:     python examples/19_queue.py
See:     three inputs behind a slow turn; the explanation of the wait; two inputs cancelled at once; the answers of the
         others; a cancel that comes too late.
"""

import asyncio

from perdure import Agent, Runtime, tool
from perdure.testing import ScriptedModel, call, say

searching, go_on = asyncio.Event(), asyncio.Event()


@tool(effect="pure")
async def search() -> str:
    """Search."""
    searching.set()
    await go_on.wait()
    return "found"


model = ScriptedModel.by_input({"search": [call("search"), say("Found it.", exact=True)]}, default=[say("Yes.")])


async def main() -> None:
    async with Runtime("memory://", agents=[Agent("desk", model=model, tools=[search])]) as rt:
        session = await rt.session("customer-42", agent="desk")
        running = await session.send("search")
        await searching.wait()
        first, second, third = [await session.send(text) for text in ("one", "two", "three")]
        print(f"1  {len(await session.queued_inputs())} wait;", (await session.why()).summary)
        withdrawn = await session.cancel_input(second, include_later=True)  # both, or neither
        print("2 ", withdrawn.outcome, [(await one.result()).reason for one in (second, third)])
        go_on.set()
        print("3 ", (await running.result()).text, (await first.result()).status)
        print("4 ", (await session.cancel_input(first)).outcome)


if __name__ == "__main__":
    asyncio.run(main())
