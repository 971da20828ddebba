"""Shows: a tool that waits for a moment and for an answer, without a process: nothing is running while it does.

Run:     python examples/21_wait.py
See:     what is waited for; an answer from a process that is no worker; and a worker that enters the function again,
         where the step that had finished is not run a second time.
"""

import asyncio
import tempfile

from perdure import Agent, Runtime, ToolContext, Tuning, tool
from perdure.models.scripted import ScriptedModel, call, say

rendered: list[str] = []


async def render(doc: str) -> str:
    rendered.append(doc)
    return doc.upper()


@tool(effect="resumable")
async def publish(ctx: ToolContext, doc: str) -> str:
    """Publish a document once it was reviewed."""
    page = await ctx.step("render", render, doc)
    await ctx.sleep("cool down", "50ms")
    verdict = await ctx.event("reviewed", timeout="2d")
    return f"{page}: {verdict}"


agent = Agent(
    "editor", model=ScriptedModel(call("publish", doc="hello"), say("It is out.", exact=True)), tools=[publish]
)


async def main(store: str) -> None:
    async with Runtime(store, agents=[agent], tuning=Tuning(patience_s=0)) as rt:
        session = await rt.session("issue-7", agent="editor")
        sent = await session.send("publish it")
        while [item.kind for item in await session.pending()] != ["event"]:
            await asyncio.sleep(0.01)
    async with Runtime(store, worker=False) as web:  # a webhook, next week
        waiting = web.existing("issue-7")
        print("1 ", (await waiting.pending())[0].what)
        print("2 ", await waiting.resolve("reviewed", "fine"))
        print("3 ", await waiting.resolve("reviewed", "not so fine"))
    async with Runtime(store, agents=[agent]) as rt:
        print("4 ", (await rt.existing("issue-7").wait_for(sent.turn)).text, f"rendered {len(rendered)} time")


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(f"sqlite:///{folder}/s.db"))
