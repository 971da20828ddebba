"""Shows: the files of a session. An agent reads a read-only guide, writes a file, and tries an outdated edit.

Run:     python examples/10_files.py
See:     the tool results, the final content of the file, and the refused change of the guide.
"""

import asyncio

from perdure import Agent, Error, InitialFile, Runtime
from perdure.testing import ScriptedModel, call, say
from perdure.tools.files import file_tools
from perdure.vocab.messages import ToolResultPart

model = ScriptedModel(
    call("read_file", path="/workspace/guide.md"),
    call("write_file", path="/workspace/trip/plan.md", content="Fly to Porto\nBook a room\n"),
    call(
        "edit_file",
        path="/workspace/trip/plan.md",
        expected_hash="sha256:of something older",
        edits=[{"old_text": "Porto", "new_text": "Lisbon"}],
    ),
    call("grep_files", pattern="Fly|Book", path_pattern="*.md"),
    say("The plan is written.", exact=True),
)
guide = InitialFile("/guide.md", "Write plans to /workspace/trip.\n", readonly=True)
agent = Agent("travel", model=model, tools=file_tools(), initial_files=[guide])


async def main() -> None:
    async with Runtime("memory://", agents=[agent]) as rt:
        session = await rt.session("trip", agent="travel")
        print(await session.ask("Plan my trip"))
        told = [
            part for message in await session.messages() for part in message.parts if isinstance(part, ToolResultPart)
        ]
        print("the guide:", told[0].output["content"])
        print("an edit of what it had not read:", told[2].output["code"])
        print("found:", [match["line"] for match in told[3].output["matches"]])
        plan = await session.files.read_file("/trip/plan.md")
        assert plan is not None
        print("the plan:", plan.content)
        try:
            await session.files.write_file("/guide.md", "Do as you like.")
        except Error as problem:
            print("refused:", problem.code)


if __name__ == "__main__":
    asyncio.run(main())
