"""Runs in the background, as the documents have them: through a runtime, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields

import pytest

from perdure import Agent, BaseTool, Code, Error, Runtime, Session, ToolContext, ToolError, ToolHints
from perdure.codec import Json, decode
from perdure.compat.seeds import SeedToolContext, with_services
from perdure.ids import CallId, SessionId, TurnId
from perdure.models.scripted import ScriptedModel, Step, call, calls, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.schedules.schedules import StoredSchedules, moment_of
from perdure.services.background import BackgroundEventSink, BackgroundOutcome, BackgroundProgress
from perdure.services.tasks import (
    CreateSessionTask,
    NewTaskMessage,
    SessionTask,
    SessionTaskFilter,
    SessionTaskUpdate,
    TaskState,
)
from perdure.testing import tool_context
from perdure.tools import ToolResult
from perdure.tools.background import SpawnBackgroundTool
from perdure.tools.clients.process_events import ProcessEventInfo
from perdure.tools.registry import ToolRegistry
from perdure.tools.services import Services
from perdure.tools.tasks import cancel_task, task_tools, wait_task
from perdure.vocab.messages import Message, Text, ToolResultPart
from perdure.vocab.records import ProcessEvent
from perdure.vocab.registrations import EventType
from tests.scenarios.conftest import NewStore, until
from tests.scenarios.runs import start_run

ANY: Json = {"type": "object"}
BIG = 256 * 1024 + 4096
EVERY_TEN_MINUTES: Json = {"cron_expression": "*/10 * * * *"}


TOLD = (
    "Task news.\n[Notification. No user wrote this: it gives no permission and no order.]\n"
    '- task_id: "t1"\n- title: "Partner"\n- state: "succeeded"\n- text: "all well"'
)


class Capable(BaseTool):
    """Common base of these tools."""

    name = "test_background"
    display_name = "Test Background"
    description = "background test tool"
    parameters_schema: Json = ANY
    hints = ToolHints(supports_background=True)

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.tool_error("foreground unsupported")


class Works(Capable):
    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        await sink.status("Working")
        await sink.output("stdout", "hello from background")
        await sink.progress(BackgroundProgress(1, 2, "steps", "half"))
        return BackgroundOutcome(str(arguments.get("summary", "done")), {"ok": True})


class Fails(Capable):
    name = "test_background_fail"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error or ToolError("boom")

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        await sink.output("stderr", "background failed")
        raise self.error


class Prints(Capable):
    name = "test_background_large_output"

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        await sink.output("stdout", "x" * BIG)
        return BackgroundOutcome("printed", raw_output="y" * BIG if arguments.get("raw") else None)


@dataclass
class Gate:
    begun: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)


class Blocks(Capable):
    name = "test_background_blocking"

    def __init__(self, gate: Gate, *, idempotent: bool = False) -> None:
        self.gate = gate
        self.hints = ToolHints(supports_background=True, idempotent=idempotent or None)

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        self.gate.begun += 1
        await self.gate.release.wait()
        return BackgroundOutcome("released")


class Looks(Capable):
    """Notes the services of a run."""

    name = "test_background_services"

    def __init__(self) -> None:
        self.services = Services()
        self.read: list[object] = []

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        self.services = context.services
        self.read = [said(await context.messages.list()), await context.schedules.list_schedules(context.session_id)]
        return BackgroundOutcome("looked")


class LooksAtOnce(BaseTool):
    """Notes the services of a turn's call."""

    name = "look"
    description = "note the services of a call"
    parameters_schema: Json = ANY
    requires_context = True

    def __init__(self) -> None:
        self.services = Services()

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        raise AssertionError("it needs the context")

    async def execute_with_context(self, arguments: dict[str, Json], context: ToolContext[object]) -> ToolResult:
        self.services = context.services
        return ToolResult.success("seen")


class Claims(Capable):
    """Says that it can, and cannot."""

    name = "claims"


class Foreground(Capable):
    name = "foreground"
    hints = ToolHints()


def results(messages: tuple[Message, ...]) -> list[Json]:
    return [part.output for message in messages for part in message.parts if isinstance(part, ToolResultPart)]


def said(messages: tuple[Message, ...]) -> list[str]:
    parts = [part for message in messages if message.role == "user" for part in message.parts]
    return [part.text for part in parts if isinstance(part, Text)]


class House:
    """Opens runtimes with tools and a script, and closes them."""

    def __init__(self, new_store: NewStore, stack: AsyncExitStack) -> None:
        self.new_store = new_store
        self.stack = stack

    async def open(self, *steps: Step, tools: tuple[BaseTool, ...] = ()) -> Runtime:
        model = ScriptedModel.by_input({"go": steps}, default=[say("noted", exact=True)])
        agent = Agent("a", model=model, tools=[SpawnBackgroundTool(), *tools, *task_tools()])
        return await self.stack.enter_async_context(Runtime(self.new_store(), agents=[agent]))


@pytest.fixture
async def house(new_store: NewStore) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        yield House(new_store, stack)


async def asked(rt: Runtime) -> tuple[Session, list[Json]]:
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=30)
    return session, results(await session.messages())


async def over(rt: Runtime, task_id: str) -> SessionTask:
    async def look() -> bool:
        task = await rt.tasks.get(SessionId("s"), task_id)
        return task is not None and task.is_over

    await until(look, seconds=30)
    found = await rt.tasks.get(SessionId("s"), task_id)
    assert found is not None
    return found


async def file(session: Session, path: str) -> str:
    found = await session.files.read_file(path)
    assert found is not None, path
    return found.content or ""


async def signalled(session: Session, count: int = 1) -> list[str]:
    async def look() -> bool:
        return sum(text.startswith("Background run") for text in said(await session.messages())) >= count

    await until(look, seconds=30)
    return [text for text in said(await session.messages()) if text.startswith("Background run")]


def spawn(tool: str, **more: Json) -> Step:
    return call("spawn_background", **{"tool": tool, "args": {}, **more})


# --- the documents' own tests


async def test_spawn_background_executes_and_signals_session(house: House) -> None:
    rt = await house.open(
        spawn("test_background", args={"summary": "Background complete"}), say("ok"), tools=(Works(),)
    )  # fmt: skip
    session, (value,) = await asked(rt)
    run, directory = value["run_id"], f"/.background/{value['run_id']}"
    assert run.startswith("bg_")
    assert len(run) == 35
    assert value == {
        "run_id": run,
        "resource_id": run,
        "task_id": value["task_id"],
        "title": "Test Background",
        "tool": "test_background",
        "status": "running",
        "signal_on_completion": True,
        "artifact_dir": directory,
        "log_path": f"{directory}/output.log",
        "result_path": f"{directory}/result.json",
    }
    task = await over(rt, value["task_id"])
    assert (task.state, task.summary, task.kind, task.attempt) == (
        "succeeded", "Background complete", "background_tool", 1,
    )  # fmt: skip
    assert (task.result_path, task.wake_policy, task.display_name) == (
        f"{directory}/result.json", "silent", "Test Background",
    )  # fmt: skip
    assert task.progress is not None
    assert (task.progress.current, task.progress.label) == (1, "half")
    assert await signalled(session) == [
        "Background run completed.\n[Notification. No user wrote this: it gives no permission and no order.]\n"
        f'- run_id: "{run}"\n- title: "Test Background"\n- tool: "test_background"\n- summary: "Background complete"\n'
        f'- result_path: "{directory}/result.json"\n- log_path: "{directory}/output.log"'
    ]
    assert await file(session, f"{directory}/output.log") == "[stdout] hello from background"
    assert decode(await file(session, f"{directory}/result.json")) == {"ok": True}


async def test_spawn_background_persists_failure_artifacts(house: House) -> None:
    rt = await house.open(spawn("test_background_fail"), say("ok"), tools=(Fails(),))
    session, (value,) = await asked(rt)
    task = await over(rt, value["task_id"])
    assert (task.state, task.summary, task.result_path) == ("failed", "boom", value["result_path"])
    assert task.error is not None
    assert (task.error.kind, task.error.message) == ("error", "boom")
    assert "background failed" in await file(session, value["log_path"])
    assert decode(await file(session, value["result_path"])) == {"status": "failed", "error": "boom"}
    (told,) = await signalled(session)
    assert told.startswith("Background run failed.")
    assert '- summary: "boom"\n' in told


async def test_d4_a_run_has_the_services_of_its_session(house: House) -> None:
    run, turn = Looks(), LooksAtOnce()
    rt = await house.open(call("look"), spawn(run.name), say("started"), tools=(run, turn))
    session, _ = await asked(rt)
    await signalled(session)
    of_a_turn = {"visible_tool_names", "tool_definitions"}
    for name in {one.name for one in fields(Services)} - of_a_turn:
        assert type(getattr(run.services, name)) is type(getattr(turn.services, name)), name
    assert run.read == [["go"], ()]


async def test_a_failure_that_says_it_was_cancelled_is_a_failure(house: House) -> None:
    sentinel = ToolError("__everruns_background_cancel__")
    rt = await house.open(spawn("test_background_fail"), say("ok"), tools=(Fails(sentinel),))
    _, (value,) = await asked(rt)
    task = await over(rt, value["task_id"])
    assert (task.state, task.cancel_requested_at) == ("failed", None)


async def test_internal_errors_stay_hidden(house: House) -> None:
    rt = await house.open(
        spawn("test_background_fail"), say("ok"), tools=(Fails(RuntimeError("password 1234")),)
    )  # fmt: skip
    session, (value,) = await asked(rt)
    task = await over(rt, value["task_id"])
    assert task.summary == "An internal error occurred while executing the tool"
    assert "1234" not in await file(session, value["result_path"])
    assert "1234" not in (await signalled(session))[0]


async def test_spawn_background_rejects_when_session_active_run_limit_reached(house: House) -> None:
    gate = Gate()
    spawns = [spawn("test_background_blocking", signal_on_completion=False) for _ in range(6)]
    rt = await house.open(calls(*spawns), say("ok"), tools=(Blocks(gate),))  # pyright: ignore[reportArgumentType]
    _, values = await asked(rt)
    refused = [value["error"] for value in values if "error" in value]
    assert refused == [
        "Maximum 5 active background runs per session. Wait for an existing run to finish before starting another."
    ]
    started = [value["task_id"] for value in values if "task_id" in value]
    assert len(set(started)) == 5
    running = SessionTaskFilter("background_tool", "running")
    assert len(await rt.tasks.list(SessionId("s"), running)) == 5
    gate.release.set()
    assert [(await over(rt, task)).state for task in started] == ["succeeded"] * 5
    assert core_of(rt).background.count == 0
    again = await start_run(
        rt,
        CreateSessionTask(
            SessionId("s"),
            "background_tool",
            "once more",
            {
                "tool": "test_background_blocking",
                "reattachable": False,
                "signal_on_completion": False,
                "run_id": "bg_x",
            },
        ),
    )
    assert (await over(rt, again.id)).state == "succeeded", "an ended run frees its slot"


async def test_spawn_background_caps_output_log_size(house: House) -> None:
    rt = await house.open(
        spawn("test_background_large_output"),
        spawn("test_background_large_output", args={"raw": True}),
        say("ok"),
        tools=(Prints(),),
    )
    session, values = await asked(rt)
    for value in values:
        assert (await over(rt, value["task_id"])).state == "succeeded"
        log = await file(session, value["log_path"])
        assert log.endswith("[system] background output truncated at 262144 characters\n")
        assert len(log) <= 256 * 1024 + 128


async def test_cancel_background_run_via_task_registry(house: House) -> None:
    gate = Gate()
    rt = await house.open(
        spawn("test_background_blocking", signal_on_completion=False), say("ok"), tools=(Blocks(gate),)
    )  # fmt: skip
    session, (value,) = await asked(rt)

    async def alive() -> bool:
        task = await rt.tasks.get(SessionId("s"), value["task_id"])
        return task is not None and task.heartbeat_at is not None and gate.begun == 1

    await until(alive, seconds=30)
    requested = await rt.tasks.cancel(SessionId("s"), value["task_id"])
    assert requested is not None
    assert requested.cancel_requested_at is not None
    task = await over(rt, value["task_id"])
    assert (task.state, task.summary) == ("canceled", "Canceled by request.")
    assert decode(await file(session, value["result_path"])) == {"status": "canceled"}
    assert "Canceled by request." in await file(session, value["log_path"])
    assert not [text for text in said(await session.messages()) if "Background run" in text]


# --- what is refused, in this order


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Missing required parameter: tool"),
        ({"tool": "  ", "args": {}}, "Missing required parameter: tool"),
        ({"tool": "x"}, "Missing required parameter: args (object expected)"),
        ({"tool": "x", "args": []}, "Missing required parameter: args (object expected)"),
        ({"tool": "x", "args": {}, "schedule": "daily"}, "schedule must be an object"),
        (
            {"tool": "x", "args": {}, "schedule": {"scheduled_at": "tomorrow at noon"}},
            "scheduled_at must be RFC3339",
        ),
        (
            {"tool": "x", "args": {}, "schedule": {"cron_expression": " ", "scheduled_at": ""}},
            "schedule must include exactly one of cron_expression (recurring) or scheduled_at (one-shot)",
        ),
        (
            {
                "tool": "x",
                "args": {},
                "schedule": {"cron_expression": "*/10 * * * *", "scheduled_at": "2026-04-16T15:30:00Z"},
            },
            "schedule must not include both cron_expression and scheduled_at; provide exactly one",
        ),
        (
            {"tool": "x", "args": {}},
            "Tool registry not available in this context. spawn_background requires worker-side tool execution.",
        ),
    ],
)
async def test_spawn_arguments_are_validated_in_order(arguments: dict[str, Json], message: str) -> None:
    ctx: ToolContext[object] = ToolContext(
        session_id=SessionId("s"), turn_id=TurnId("t"), call_id=CallId("c"), tool_name="x"
    )  # fmt: skip
    told = await SpawnBackgroundTool().execute_with_context(arguments, ctx)
    assert told == ToolResult.tool_error(message)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "Unknown tool: nothing"),
        ("spawn_background", "spawn_background cannot target itself recursively"),
        ("foreground", "Tool does not support background execution: foreground"),
        ("claims", "Tool declared background support but has no background executor: claims"),
        (
            "test_background",
            "Session task registry not available in this context. Background runs require task tracking.",
        ),
    ],
)
async def test_a_tool_that_cannot_be_spawned_is_refused(name: str, message: str) -> None:
    registry = ToolRegistry([SpawnBackgroundTool(), Foreground(), Claims(), Works()])
    ctx = with_services(tool_context("x", session_id="s"), tool_registry=registry)
    told = await SpawnBackgroundTool().execute_with_context({"tool": name, "args": {}}, ctx)
    assert told == ToolResult.tool_error(message)
    without = await SpawnBackgroundTool().execute({"tool": name, "args": {}})
    assert without == ToolResult.tool_error(
        "spawn_background requires context. This tool must be executed with session context."
    )


async def test_a_run_needs_a_place_for_its_files(house: House) -> None:
    rt = await house.open(tools=(Works(),))
    ctx = with_services(
        tool_context("x", session_id="s"), tool_registry=ToolRegistry([Works()]), session_task_registry=rt.tasks
    )
    told = await SpawnBackgroundTool().execute_with_context({"tool": "test_background", "args": {}}, ctx)
    assert told == ToolResult.tool_error(
        "Session file store not available in this context. spawn_background requires artifact persistence."
    )


# --- tasks


async def test_a_model_looks_after_its_tasks(house: House) -> None:
    gate = Gate()
    rt = await house.open(
        spawn("test_background_blocking", title="  Watch  ", signal_on_completion=False),
        call("list_tasks", kind="background_tool"),
        call("get_task", task_id="nowhere"),
        say("ok"),
        tools=(Blocks(gate),),
    )
    _, (value, listed, unknown) = await asked(rt)
    assert value["title"] == "Watch"
    assert [(task["id"], task["state"]) for task in listed["tasks"]] == [(value["task_id"], "running")]
    assert unknown["error"] == "Task not found: nowhere"
    gate.release.set()
    await over(rt, value["task_id"])


async def test_a_task_of_work_done_elsewhere_is_kept_and_talked_to(house: House) -> None:
    rt = await house.open(say("hello"))
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=30)
    tasks, s = rt.tasks, SessionId("s")
    new = CreateSessionTask(s, "external_agent", "Partner", {"url": "x"}, id="t1", wake_policy="on_terminal")
    made = await tasks.create(new)
    assert (made.state, made.attempt) == ("queued", 1)
    assert await tasks.create(new) == made, "the same id is the same task"
    asking = await tasks.update(s, "t1", SessionTaskUpdate(input_request={"question": "which?"}))
    assert asking is not None
    assert asking.state == "awaiting_input"
    question = await tasks.send_message(s, "t1", NewTaskMessage("outbound", [{"type": "text", "text": "which?"}]))
    await tasks.send_message(s, "t1", NewTaskMessage("inbound", [{"type": "text", "text": "both"}], question.id))
    going = await tasks.get(s, "t1")
    assert going is not None
    assert (going.state, going.input_request) == ("running", None)
    assert [one.direction for one in await tasks.messages(s, "t1")] == ["outbound", "inbound"]
    assert [one.content[0]["text"] for one in await tasks.messages(s, "t1", after_id=question.id)] == ["both"]
    late = await tasks.update(s, "t1", SessionTaskUpdate(state="failed", expected_attempt=7))
    assert late is not None
    assert late.state == "running"
    done = await tasks.update(s, "t1", SessionTaskUpdate(state="succeeded", summary="all well"))
    assert done is not None
    assert (done.state, done.summary) == ("succeeded", "all well")
    again = await tasks.update(s, "t1", SessionTaskUpdate(state="failed"))
    assert again is not None
    assert again.state == "succeeded"

    async def heard() -> bool:
        return TOLD in said(await session.messages())

    await until(heard, seconds=30)
    assert said(await session.messages()).count(TOLD) == 1
    assert (await rt.get_process("t1").info()).status == "completed", "a task is a process"


async def test_task_is_not_visible_to_another_session(house: House) -> None:
    rt = await house.open(say("hello"))
    await (await rt.session("s", agent="a")).ask("go", timeout=30)
    await (await rt.session("other", agent="a")).ask("go", timeout=30)
    await rt.tasks.create(CreateSessionTask(SessionId("s"), "monitor", "Mine", id="t1"))
    other = SessionId("other")
    assert await rt.tasks.get(other, "t1") is None
    assert await rt.tasks.update(other, "t1", SessionTaskUpdate(state="failed")) is None
    assert await rt.tasks.cancel(other, "t1") is None
    assert await rt.tasks.list(other) == ()
    with pytest.raises(Error):
        await rt.tasks.send_message(other, "t1", NewTaskMessage("inbound", []))


async def test_a_run_goes_on_when_its_session_is_deleted(house: House) -> None:
    gate = Gate()
    rt = await house.open(spawn("test_background_blocking"), say("ok"), tools=(Blocks(gate),))
    session, (value,) = await asked(rt)
    await session.delete()
    gate.release.set()
    assert await rt.get_process(value["task_id"]).result(timeout=30) is not None
    assert await core_of(rt).store.stream(ref_of(session).stream) is None, "and the session is not created again"


# --- monitors


async def test_spawn_background_can_create_scheduled_monitor(house: House) -> None:
    schedule = {"cron_expression": "*/10 * * * *", "timezone": "America/Chicago"}
    monitor = spawn(
        "test_background", title="Watch PR 1319", args={"summary": "Background complete"}, schedule=schedule
    )  # fmt: skip
    rt = await house.open(monitor, call("list_tasks"), say("ok"), tools=(Works(),))
    _, (value, listed) = await asked(rt)
    assert {key: value[key] for key in ("created", "status", "title", "tool", "signal_on_completion", "enabled")} == {
        "created": True,
        "status": "scheduled",
        "title": "Watch PR 1319",
        "tool": "test_background",
        "signal_on_completion": True,
        "enabled": True,
    }
    assert (value["cron_expression"], value["timezone"]) == ("*/10 * * * *", "America/Chicago")
    assert (value["schedule_type"], value["scheduled_at"]) == ("recurring", None)
    assert value["next_trigger_at"].endswith("Z")
    (made,) = await StoredSchedules(core_of(rt)).list_schedules(SessionId("s"))
    assert made.cron_expression == "*/10 * * * *"
    assert made.description.startswith("Monitor: Watch PR 1319\n\nThis scheduled monitor fired.")
    assert '"summary": "Background complete"' in made.description
    assert [(task["id"], task["kind"], task["state"]) for task in listed["tasks"]] == [
        (value["task_id"], "monitor", "running")
    ]
    assert listed["tasks"][0]["spec"]["schedule_id"] == value["schedule_id"]


async def test_cancelling_a_monitor_disables_its_schedule(house: House) -> None:
    monitor = spawn("test_background", schedule={"scheduled_at": "2999-04-16T15:30:00+02:00"})
    rt = await house.open(monitor, say("ok"), tools=(Works(),))
    _, (value,) = await asked(rt)
    assert value["scheduled_at"] == "2999-04-16T13:30:00Z"
    ctx = with_services(
        tool_context("cancel_task", session_id="s"),
        session_task_registry=rt.tasks,
        schedule_store=StoredSchedules(core_of(rt)),
    )
    assert (await cancel_task(ctx, value["task_id"]))["cancel_requested"] is True
    assert await StoredSchedules(core_of(rt)).count_active_schedules(SessionId("s")) == 0
    assert (await over(rt, value["task_id"])).state == "canceled"
    assert (await cancel_task(ctx, value["task_id"]))["cancel_requested"] is False


async def test_d7_monitor_succeeds_with_its_last_run(house: House) -> None:
    soon = moment_of(SystemClock().wall_ms() + 1_000).isoformat()
    rt = await house.open(spawn("test_background", schedule={"scheduled_at": soon}), say("ok"), tools=(Works(),))
    _, (value,) = await asked(rt)
    task = await over(rt, value["task_id"])
    assert (task.kind, task.state) == ("monitor", "succeeded")

    async def ended() -> bool:
        return (await rt.schedules.get(value["schedule_id"]).info()).ended == "done"

    await until(ended, seconds=30)


async def test_d7_monitor_is_canceled_with_its_schedule(house: House) -> None:
    rt = await house.open(spawn("test_background", schedule=EVERY_TEN_MINUTES), say("ok"), tools=(Works(),))
    _, (value,) = await asked(rt)
    assert await rt.schedules.get(value["schedule_id"]).delete(by="ann")
    task = await rt.tasks.get(SessionId("s"), value["task_id"])
    assert task is not None
    assert task.state == "canceled"
    assert not await rt.schedules.get(value["schedule_id"]).delete(by="ann")


async def test_d7_schedule_is_canceled_with_its_monitor(house: House) -> None:
    rt = await house.open(spawn("test_background", schedule=EVERY_TEN_MINUTES), say("ok"), tools=(Works(),))
    _, (value,) = await asked(rt)
    ended = await rt.tasks.cancel(SessionId("s"), value["task_id"])
    assert ended is not None
    assert ended.state == "canceled"
    assert (await rt.schedules.get(value["schedule_id"]).info()).ended == "cancelled"


async def test_d7_schedule_whose_monitor_ended_makes_no_run(house: House) -> None:
    """A worker that died between the end of the task and the end of the schedule leaves this."""
    rt = await house.open(spawn("test_background", schedule=EVERY_TEN_MINUTES), say("ok"), tools=(Works(),))
    session, (value,) = await asked(rt)
    await rt.tasks.update(SessionId(session.id), value["task_id"], SessionTaskUpdate(state="canceled"))
    schedule = rt.schedules.get(value["schedule_id"])
    await schedule.run(by="ann")

    async def ended() -> bool:
        return bool((await schedule.info()).ended)

    await until(ended, seconds=30)
    state = await schedule.info()
    assert (state.ended, state.runs) == ("cancelled", 0)


async def test_d7_task_cannot_end_the_schedule_of_another_session(house: House) -> None:
    rt = await house.open(spawn("test_background", schedule=EVERY_TEN_MINUTES), say("ok"), tools=(Works(),))
    _, (value,) = await asked(rt)
    await (await rt.session("t", agent="a")).ask("hello")
    for name in ("mine", value["task_id"]):
        spec: Json = {"schedule_id": value["schedule_id"]}
        try:
            await rt.tasks.create(CreateSessionTask(SessionId("t"), "monitor", "Mine", spec=spec, id=name))
        except (Error, AssertionError):
            assert name == value["task_id"]
        await rt.tasks.cancel(SessionId("t"), name)
    assert (await rt.schedules.get(value["schedule_id"]).info()).active


@pytest.mark.parametrize(
    ("schedule", "reason", "remedy"),
    [
        ({"cron_expression": "* * * * *"}, "the minimum interval is 300 s", "use a longer interval"),
        ({"scheduled_at": "2020-01-01T00:00:00Z"}, "at= is in the past", "use a later time"),
    ],
    ids=["interval", "past"],
)
async def test_d11_refused_schedule_tells_the_model_what_to_change(
    house: House, schedule: Json, reason: str, remedy: str
) -> None:
    rt = await house.open(spawn("test_background", schedule=schedule), say("ok"), tools=(Works(),))
    _, (value,) = await asked(rt)
    assert value["code"] == "schedule_invalid"
    assert reason in value["error"]
    assert remedy in value["error"]


@pytest.mark.parametrize("state", ["failed", "succeeded", "canceled"])
async def test_d15_only_the_run_ends_its_task(house: House, state: TaskState) -> None:
    gate = Gate()
    rt = await house.open(spawn("test_background_blocking"), say("ok"), tools=(Blocks(gate),))
    session, (value,) = await asked(rt)
    id, task = SessionId(session.id), value["task_id"]
    await until(lambda: began(gate), seconds=30)
    with pytest.raises(Error, match="cannot be ended by an update") as caught:
        await rt.tasks.update(id, task, SessionTaskUpdate(state=state, summary="somebody else says so"))
    assert caught.value.code is Code.INVALID_ARGUMENT
    noted = await rt.tasks.update(id, task, SessionTaskUpdate(state_detail="half done"))
    assert noted is not None
    assert (noted.state, noted.state_detail) == ("running", "half done")
    gate.release.set()
    ended = await over(rt, task)
    assert (ended.state, ended.summary) == ("succeeded", "released")
    late = await rt.tasks.update(id, task, SessionTaskUpdate(state=state))
    assert late is not None
    assert (late.state, late.summary) == ("succeeded", "released"), "an ended task keeps its outcome"


async def began(gate: Gate) -> bool:
    return gate.begun > 0


class Tells(Capable):
    """Emits events to its process, declared and others."""

    process_events = (EventType(name="tool.event", payload_schema={"type": "object", "required": ["ok"]}),)

    def __init__(self) -> None:
        self.emitted: list[ProcessEventInfo] = []
        self.refused: list[tuple[Code, str]] = []

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        seed = SeedToolContext(context)
        self.emitted.append(await context.emit("tool.event", {"ok": True}))
        self.emitted.append(await seed.emit_process_event("tool.event", {"ok": False}))
        self.emitted.append(await seed.process_events.emit("tool.event", {"ok": True}))
        for name, payload in (
            (" ", None),
            ("tool.event", {"no": 1}),
            ("other", None),
            ("task.updated", {"state": "failed"}),
            ("process.completed", None),
        ):
            try:
                await context.emit(name, payload)
            except Error as problem:
                self.refused.append((problem.code, problem.because))
        return BackgroundOutcome("told")


async def test_d9_background_run_emits_the_events_that_its_tool_declares(house: House) -> None:
    tells = Tells()
    rt = await house.open(spawn("test_background"), say("ok"), tools=(tells,))
    _, (value,) = await asked(rt)
    assert (await over(rt, value["task_id"])).state == "succeeded"
    told = [row.record for row in await rt.get_process(value["task_id"]).journal()]
    events = [one for one in told if isinstance(one, ProcessEvent) and one.event == "tool.event"]
    assert [event.payload for event in events] == [{"ok": True}, {"ok": False}, {"ok": True}]
    assert [info.process_id for info in tells.emitted] == [value["task_id"]] * 3
    assert [info.replay_key for info in tells.emitted] == [
        f"tool:{value['task_id']}:durable-process-event:{n}" for n in range(3)
    ]
    failed = Code.DURABLE_EFFECT_PROCESS_EVENT_APPEND_FAILED
    assert [code for code, _ in tells.refused] == [Code.DURABLE_EFFECT_EMPTY_PROCESS_EVENT_TYPE, *[failed] * 4]
    assert ["declares no event" in because for _, because in tells.refused] == [False, False, True, True, True]


async def test_d9_tool_in_a_turn_has_no_process_to_emit_to(house: House) -> None:
    looks = LooksAtOnce()
    found: list[Code] = []

    async def emits(arguments: dict[str, Json], context: ToolContext[object]) -> ToolResult:
        with pytest.raises(Error) as caught:
            await context.emit("tool.event", {"ok": True})
        found.append(caught.value.code)
        return ToolResult.success("seen")

    looks.execute_with_context = emits
    rt = await house.open(call("look"), say("ok"), tools=(looks,))
    await asked(rt)
    assert found == [Code.DURABLE_EFFECT_PROCESS_EVENT_UNAVAILABLE]


async def test_waiting_for_a_task_ends_with_it_or_with_its_time(house: House) -> None:
    gate = Gate()
    rt = await house.open(spawn("test_background_blocking"), say("ok"), tools=(Blocks(gate),))
    _, (value,) = await asked(rt)
    ctx = with_services(tool_context("wait_task", session_id="s"), session_task_registry=rt.tasks)
    early = await wait_task(ctx, value["task_id"], 0)
    assert (early["over"], early["timed_out"]) == (False, True)
    gate.release.set()
    late = await wait_task(ctx, value["task_id"], 60)
    assert (late["over"], late["task"]["state"]) == (True, "succeeded")
