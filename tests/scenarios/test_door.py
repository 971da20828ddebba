"""The door to a tool's body in background runs: membership, schema and approval of the target; on every store."""

from __future__ import annotations

import pytest

from perdure import (
    Agent,
    BaseTool,
    Code,
    Error,
    Runtime,
    RuntimeOptions,
    ToolContext,
    ToolHints,
    handoff,
    tool,
)
from perdure.codec import Json
from perdure.codemode import code_mode
from perdure.ids import SessionId
from perdure.models.scripted import ScriptedModel, Step, call, say
from perdure.observe.pending import PendingDecision
from perdure.services.background import BackgroundEventSink, BackgroundOutcome
from perdure.services.tasks import CreateSessionTask, SessionTask
from perdure.tools import ToolResult
from perdure.tools.background import SpawnBackgroundTool
from perdure.vocab.messages import Message, ToolResultPart
from tests.scenarios.conftest import App, until

S = SessionId("s")
CENTS: Json = {
    "type": "object",
    "properties": {"cents": {"type": "integer", "maximum": 100}},
    "required": ["cents"],
    "additionalProperties": False,
}


class Refund(BaseTool):
    """Gives money back, with a person's approval."""

    name = "refund"
    description = "Refund."
    parameters_schema: Json = CENTS
    policy = "requires_approval"
    hints = ToolHints(supports_background=True, destructive=True)

    def __init__(self, ran: list[Json]) -> None:
        self.ran = ran

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        self.ran.append(arguments)
        return ToolResult.success("refunded")

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        self.ran.append(arguments)
        return BackgroundOutcome("refunded")


class Report(Refund):
    """Needs no approval."""

    name = "report"
    policy = "auto"


@tool
async def lock(name: str, ctx: ToolContext) -> str:
    """Take a tool away."""
    await ctx.sessions.set_tool_membership([name], False)
    return "locked"


def spawn(name: str, args: Json, **more: Json) -> Step:
    return call("spawn_background", tool=name, args=args, **more)


def results(messages: tuple[Message, ...]) -> list[Json]:
    return [part.output for message in messages for part in message.parts if isinstance(part, ToolResultPart)]


def scripted(*steps: Step) -> ScriptedModel:
    return ScriptedModel.by_input({"go": [*steps, say("ok")]}, default=[say("noted", exact=True)])


async def the_question(rt: Runtime) -> PendingDecision:
    async def there() -> bool:
        return bool(await rt.approvals.list())

    await until(there)
    (question,) = await rt.approvals.list()
    return question


async def over(rt: Runtime) -> SessionTask:
    async def look() -> bool:
        return all(task.is_over for task in await rt.tasks.list(S))

    await until(look, seconds=30)
    (task,) = await rt.tasks.list(S)
    return task


async def test_s1_d0_background_run_waits_for_approval_before_its_task_exists(app: App) -> None:
    ran: list[Json] = []
    model, tuning = scripted(spawn("refund", {"cents": 7})), RuntimeOptions(idle_timeout_s=0.0)
    rt = await app.open(model, SpawnBackgroundTool(), Refund(ran), tuning=tuning)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    question = await the_question(rt)
    assert (question.session, question.tool, question.args) == ("s", "refund", {"cents": 7})
    assert (await rt.tasks.list(S), ran) == ((), [])
    await rt.approvals.approve(question.id, by="ann")
    await sent.result(20)
    assert (await over(rt)).state == "succeeded"
    assert ran == [{"cents": 7}]
    assert await rt.approvals.list() == (), "asked once"


async def test_s1_denied_background_run_has_no_task(app: App) -> None:
    ran: list[Json] = []
    rt = await app.open(scripted(spawn("refund", {"cents": 7})), SpawnBackgroundTool(), Refund(ran))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await rt.approvals.deny((await the_question(rt)).id, by="ann", reason="too much")
    await sent.result(20)
    (told,) = results(await session.messages())
    assert "too much" in str(told)
    assert (await rt.tasks.list(S), ran) == ((), [])


async def test_s1_approver_edits_the_arguments_of_a_background_run(app: App) -> None:
    ran: list[Json] = []
    rt = await app.open(scripted(spawn("refund", {"cents": 70})), SpawnBackgroundTool(), Refund(ran))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await rt.approvals.approve((await the_question(rt)).id, by="ann", args={"cents": 5})
    await sent.result(20)
    assert (await over(rt)).spec["arguments"] == {"cents": 5}
    assert ran == [{"cents": 5}]
    (told,) = results(await session.messages())
    assert told["args"] == {"cents": 5}, "the model is told what runs"


@pytest.mark.parametrize("schedule", [None, {"cron_expression": "*/10 * * * *"}])
@pytest.mark.parametrize("name", ["refund", "report"])
async def test_s1_d0_arguments_of_a_background_run_match_its_schema(app: App, name: str, schedule: Json) -> None:
    ran: list[Json] = []
    more: dict[str, Json] = {"schedule": schedule} if schedule else {}
    model = scripted(spawn(name, {"cents": "all of it", "x": 1}, **more))
    rt = await app.open(model, SpawnBackgroundTool(), Refund(ran), Report(ran))
    session = await rt.session("s", agent="a")
    await session.ask("go")
    (told,) = results(await session.messages())
    assert "cents" in told["error"]
    assert (await rt.approvals.list(), await rt.tasks.list(S), await rt.schedules.list(session="s")) == ((), (), ())
    assert ran == []


@pytest.mark.parametrize("schedule", [None, {"cron_expression": "*/10 * * * *"}])
async def test_s1_d0_removed_tool_does_not_run_in_the_background(app: App, schedule: Json) -> None:
    ran: list[Json] = []
    more: dict[str, Json] = {"schedule": schedule} if schedule else {}
    script = {
        "lock": [call("lock", name="report"), say("ok")],
        "go": [spawn("report", {"cents": 1}, **more), say("ok")],
    }
    model = ScriptedModel.by_input(script, default=[say("noted", exact=True)])
    rt = await app.open(model, SpawnBackgroundTool(), Report(ran), lock)
    session = await rt.session("s", agent="a")
    await session.ask("lock")
    await session.ask("go")
    told = results(await session.messages())[-1]
    assert "Unknown tool 'report'" in str(told)
    assert (await rt.tasks.list(S), await rt.schedules.list(session="s"), ran) == ((), (), [])


async def test_s1_program_cannot_start_a_background_run_unasked(app: App) -> None:
    ran: list[Json] = []
    program = call("run_python", code="await spawn_background(tool='refund', args={'cents': 3})")
    agent = Agent("a", model=scripted(program), tools=[SpawnBackgroundTool(), Refund(ran), code_mode()])
    rt = await app.add([agent])
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    question = await the_question(rt)
    assert (question.tool, question.args, ran, await rt.tasks.list(S)) == ("refund", {"cents": 3}, [], ())
    await rt.approvals.approve(question.id, by="ann")
    await sent.result(20)
    await over(rt)
    assert ran == [{"cents": 3}]


async def test_s1_background_run_belongs_to_the_agent_that_started_it(app: App) -> None:
    clerks: list[Json] = []
    banks: list[Json] = []
    clerk_model = ScriptedModel(call("handoff", to="bank"))
    bank_model = ScriptedModel.by_input(
        {"go": [say("unused"), spawn("report", {"cents": 1}), say("ok")]}, default=[say("noted", exact=True)]
    )
    clerk = Agent("clerk", model=clerk_model, tools=[Report(clerks), handoff("bank")])
    bank = Agent("bank", model=bank_model, tools=[Report(banks), SpawnBackgroundTool()])
    rt = await app.add([clerk, bank])
    await (await rt.session("s", agent="clerk")).ask("go")
    assert (await over(rt)).state == "succeeded"
    assert (clerks, banks) == ([], [{"cents": 1}])


async def test_s1_tool_cannot_create_the_task_of_a_background_run(app: App) -> None:
    ran: list[Json] = []
    rt = await app.open(ScriptedModel(say("hello")), Refund(ran))
    await (await rt.session("s", agent="a")).ask("hello")
    with pytest.raises(Error) as caught:
        await rt.tasks.create(
            CreateSessionTask(S, "background_tool", "x", {"tool": "refund", "arguments": {"cents": 1}})
        )
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert (await rt.tasks.list(S), ran) == ((), [])
