"""Shows: sub-agents. A tool asks another agent, which works in a child session.

Run:     python examples/14_subagents.py
See:     the tool parks while the writer works; the answer is a typed value, and its usage counts toward the parent.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from perdure import Agent, Runtime, ToolContext, tool
from perdure.testing import ScriptedModel, call, give, say


@dataclass
class Draft:
    """The writer's output."""

    title: str
    words: int


@tool(effect="resumable")
async def publish(ctx: ToolContext, topic: str) -> str:
    """Request a text from the writer, and publish it."""
    draft = await ctx.agent("writer").ask(f"Write about {topic}", output=Draft)
    return f"published {draft.title!r}, {draft.words} words"


writer = Agent("writer", model=ScriptedModel(give({"title": "On tea", "words": 120})))
chief = Agent(
    "chief", model=ScriptedModel(call("publish", topic="tea"), say("It is out.", exact=True)), tools=[publish]
)


async def main(folder: Path) -> None:
    async with Runtime(f"sqlite:///{folder / 'app.db'}", agents=[chief, writer]) as rt:
        session = await rt.session("desk", agent="chief")
        print(await session.ask("Publish something about tea"))
        for info in await rt.list_sessions():
            print(f"{info.agent}: {'started by the tool' if info.id != 'desk' else 'asked by us'}")
        print(f"model calls, the writer's included: {(await session.usage()).calls}")


with tempfile.TemporaryDirectory() as scratch:
    asyncio.run(main(Path(scratch)))
