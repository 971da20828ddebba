"""Shows: a tool that waits for a time and for an event. No process runs during the wait.

Run:     python examples/21_wait.py
See:     the pending wait; a resolution from a process without a worker; a worker that re-enters the function, where the
         finished step is not run again.
"""

import asyncio
import tempfile

from perdure import Agent, Runtime, RuntimeOptions, ToolContext, tool
from perdure.testing import ScriptedModel, call, say

rendered: list[str] = []


async def render(doc: str) -> str:
    rendered.append(doc)
    return doc.upper()


@tool(effect="resumable")
async def publish(ctx: ToolContext, doc: str) -> str:
    """Publish a document once it was reviewed."""
    page = await ctx.step("render", render, doc)
    await ctx.sleep("cool down", "50ms")
    verdict = await ctx.wait_for_event("reviewed", timeout="2d")
    return f"{page}: {verdict}"


agent = Agent(
    "editor", model=ScriptedModel(call("publish", doc="hello"), say("It is out.", exact=True)), tools=[publish]
)


async def main(store: str) -> None:
    async with Runtime(store, agents=[agent], options=RuntimeOptions(idle_timeout_s=0)) as rt:
        session = await rt.session("issue-7", agent="editor")
        await session.send("publish it", key="mail-7")
        while [item.kind for item in await session.pending()] != ["event"]:
            await asyncio.sleep(0.01)
    async with Runtime(store, worker=False) as web:  # a webhook, next week
        waiting = web.get_session("issue-7")
        print("1 ", (await waiting.pending())[0].what)
        print("2 ", await waiting.resolve("reviewed", "fine"))
        print("3 ", await waiting.resolve("reviewed", "not so fine"))
    async with Runtime(store, agents=[agent]) as rt:
        again = await rt.get_session("issue-7").send("publish it", key="mail-7")  # the same input, the same turn
        print(
            "4 ",
            (await again.result()).text,
            f"rendered {len(rendered)} time",
        )


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(f"sqlite:///{folder}/s.db"))
