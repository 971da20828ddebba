"""Shows: background work. A model starts a tool, answers, and receives a message when the run ends.

Run:     python examples/13_background.py
See:     the turn ends first; then the run, with a log and a result; then a message in the session.
"""

import asyncio

from perdure import Agent, BaseTool, Runtime, ToolContext, ToolHints
from perdure.codec import Json
from perdure.ids import SessionId
from perdure.services.background import BackgroundEventSink, BackgroundOutcome
from perdure.testing import ScriptedModel, call, say
from perdure.tools import ToolResult
from perdure.tools.background import SpawnBackgroundTool
from perdure.vocab.messages import Text

may_end = asyncio.Event()
ANY: Json = {"type": "object"}


class Index(BaseTool):
    """A slow, idempotent tool."""

    name = "index"
    description = "Index the library."
    parameters_schema = ANY
    hints = ToolHints(supports_background=True, idempotent=True)

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.tool_error("This takes long: spawn it in the background.")

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        await sink.output("stdout", "12 books\n")
        await may_end.wait()
        return BackgroundOutcome("indexed 12 books", {"books": 12})


spawn = call("spawn_background", tool="index", args={}, title="Library")
model = ScriptedModel.by_input({"Index it": [spawn, say("It runs.", exact=True)]}, default=[say("Good.", exact=True)])


async def main() -> None:
    agent = Agent("librarian", model=model, tools=[SpawnBackgroundTool(), Index()])
    async with Runtime("memory://", agents=[agent]) as rt:
        session = await rt.session("s", agent="librarian")
        print("1 ", await session.ask("Index it"))
        may_end.set()
        (task,) = await rt.tasks.list(SessionId("s"))
        print("2 ", (await rt.get_process(task.id).result())["summary"])
        while len(history := await session.messages()) < 6:  # question, call, result, answer; message, answer
            await asyncio.sleep(0.01)
        print("3 ", *(part.text.splitlines()[0] for part in history[-2].parts if isinstance(part, Text)))


if __name__ == "__main__":
    asyncio.run(main())
