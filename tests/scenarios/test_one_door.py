"""Every path to a tool body, against tools that need an approval or are not the turn's; on every store."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import pytest
from mcp import Client

from perdure import Agent, BaseTool, ProcessContext, Runtime, RuntimeOptions, ToolContext, ToolHints, process, tool
from perdure.codec import Json, encode
from perdure.codemode import code_mode
from perdure.ids import SessionId
from perdure.models import conversation
from perdure.models.protocol import ModelEvent, ModelRequest
from perdure.models.scripted import ScriptedModel, Step, call, say
from perdure.runtime.internals import core_of
from perdure.runtime.mcp_server import mcp_server
from perdure.services.background import BackgroundEventSink, BackgroundOutcome
from perdure.tools import ToolResult
from perdure.tools.background import SpawnBackgroundTool
from perdure.tools.subagents import SubagentFailed
from perdure.tools.toolbox import ToolSource
from perdure.vocab.messages import ToolCall, ToolResultPart
from tests.scenarios.conftest import NewStore, until

NO_IDLE = RuntimeOptions(idle_timeout_s=0.0)
MAIL = "mail.received"
YEARLY: Json = {"cron_expression": "0 0 1 1 *"}
ARGS: dict[str, Json] = {"cents": 7}


CENTS: Json = {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}


class Refund(BaseTool):
    """Gives money back, with a person's approval, in a turn or in the background."""

    name = "refund"
    description = "Refund."
    parameters_schema = CENTS
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


@tool(effect="resumable")
async def desk(ctx: ToolContext) -> Json:
    """Call the tool by name."""
    child = await ctx.tools.call("refund", ARGS, step="x")
    return msgspec.to_builtins(child.output)


@tool(effect="resumable")
async def many(ctx: ToolContext) -> Json:
    """Call the tool in a batch."""
    [child] = await ctx.tools.batch([("refund", ARGS)])
    return msgspec.to_builtins(child.output)


@tool(effect="resumable")
async def wait(ctx: ToolContext) -> Json:
    """Wait for an event."""
    return await ctx.wait_for_event("go on")


@tool
async def lock(name: str, ctx: ToolContext) -> str:
    """Take a tool away."""
    await ctx.sessions.set_tool_membership([name], False)
    return "locked"


@process
async def asks(ctx: ProcessContext, agent: str) -> str:
    """Ask an agent."""
    try:
        return await ctx.ask(agent, "go")
    except SubagentFailed as problem:
        return str(problem)


@tool(effect="resumable")
async def delegate(ctx: ToolContext) -> str:
    """Ask a sub-agent."""
    return await ctx.agent("a").ask("go")


HELPERS: tuple[ToolSource, ...] = (desk, many, wait, lock, SpawnBackgroundTool(), code_mode())
SPAWN = call("spawn_background", tool="refund", args=ARGS)
STEPS: Mapping[str, Step] = {
    "model": call("refund", **ARGS),
    "dispatch": call("desk"),
    "batch": call("many"),
    "program": call("run_python", code="await refund(cents=7)"),
    "background": SPAWN,
    "monitor": call("spawn_background", tool="refund", args=ARGS, schedule=YEARLY),
}


class Obedient:
    """A model that asks for the tool by one path, and obeys the monitor when it fires."""

    name = "obedient"

    def __init__(self, *steps: Step, fired: Step = SPAWN) -> None:
        lines = {"lock": [call("lock", name="refund"), say("locked")], "go": [*steps, say("ok")]}
        self._asked = ScriptedModel.by_input(lines, default=[say("noted", exact=True)])
        self._fired = ScriptedModel(fired, say("started"))

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        fired = conversation.input_text(request.messages).startswith("A schedule of this session")
        return (self._fired if fired else self._asked).stream(request)


async def by_input(rt: Runtime) -> None:
    await (await rt.session("s", agent="a")).send("go")


async def by_monitor(rt: Runtime) -> None:
    await by_input(rt)

    async def made() -> bool:
        return bool(await rt.schedules.list(session="s"))

    await until(made)
    [schedule] = await rt.schedules.list(session="s")
    await rt.schedules.get(schedule.name).run()


async def by_schedule(rt: Runtime) -> None:
    await (await rt.schedule("yearly", send="go", session="s", agent="a", cron="0 0 1 1 *")).run()


async def by_trigger(rt: Runtime) -> None:
    rt.triggers.declare(MAIL)
    await rt.triggers.subscribe(MAIL, asks, key="k", args=("a",))
    await rt.triggers.emit(MAIL, {"subject": "go"})


async def by_process(rt: Runtime) -> None:
    await rt.start(asks, "a", id="p1")


async def by_subagent(rt: Runtime) -> None:
    await (await rt.session("s", agent="chief")).send("go")


async def by_mcp(rt: Runtime) -> None:
    async with Client(mcp_server(rt)) as client:
        await client.call_tool("ask_a", {"message": "go", "session": "s", "key": "k", "wait": 0.01})


@dataclass(frozen=True)
class Way:
    """A path to the tool: what the model asks for, and what makes it ask."""

    name: str
    step: Step
    start: Callable[[Runtime], Awaitable[None]] = by_input

    def __str__(self) -> str:
        return self.name


WAYS = [
    *(Way(name, step, by_monitor if name == "monitor" else by_input) for name, step in STEPS.items()),
    Way("schedule", STEPS["model"], by_schedule),
    Way("trigger", STEPS["model"], by_trigger),
    Way("process", STEPS["model"], by_process),
    Way("subagent", STEPS["model"], by_subagent),
    Way("mcp_server", STEPS["model"], by_mcp),
]
every_way = pytest.mark.parametrize("way", WAYS, ids=str)


@dataclass
class Bank:
    """The agents around the tool, on one store."""

    new_store: NewStore
    ran: list[Json] = field(default_factory=list[Json])

    def open(self, *steps: Step, tools: tuple[ToolSource, ...]) -> Runtime:
        agents = [
            Agent("a", model=Obedient(*steps), tools=[*HELPERS, *tools]),
            Agent("chief", model=ScriptedModel(call("delegate"), say("done")), tools=[delegate]),
            Agent("bank", model=ScriptedModel(say("unused")), tools=[Refund(self.ran)]),
        ]
        return Runtime(self.new_store(), agents=agents, processes=[asks], options=NO_IDLE)


@pytest.fixture
def bank(new_store: NewStore) -> Bank:
    return Bank(new_store)


async def told(rt: Runtime) -> str:
    """What the model was told of its calls, in all sessions."""
    sessions = [rt.get_session(info.id) for info in await rt.list_sessions()]
    parts = [part for one in sessions for message in await one.messages() for part in message.parts]
    return encode([part.output for part in parts if isinstance(part, ToolResultPart)]).decode()


async def at_rest(rt: Runtime) -> bool:
    sessions = await core_of(rt).session_streams()
    tasks = [
        task
        for info in sessions
        for task in await rt.tasks.list(SessionId(info.name))
        if task.kind == "background_tool"
    ]
    idle = [(await rt.get_session(info.name).why()).status == "idle" for info in sessions]
    return all(idle) and all(task.is_over for task in tasks)


# --- a tool that needs an approval


@every_way
async def test_t_tool_01_every_path_asks_once_before_the_body_runs(bank: Bank, way: Way) -> None:
    async with bank.open(way.step, tools=(Refund(bank.ran),)) as rt:
        await way.start(rt)

        async def asked() -> bool:
            return bool(await rt.approvals.list())

        await until(asked, seconds=30)
        [question] = await rt.approvals.list()
        assert (question.tool, question.args, bank.ran) == ("refund", ARGS, [])
        await rt.approvals.approve(question.id, by="ann")

        async def over() -> bool:
            return bool(bank.ran) and await at_rest(rt)

        await until(over, seconds=30)
        assert (bank.ran, await rt.approvals.list()) == ([ARGS], ()), "asked once, run once"


@every_way
async def test_t_tool_01_denied_call_runs_by_no_path(bank: Bank, way: Way) -> None:
    async with bank.open(way.step, tools=(Refund(bank.ran),)) as rt:
        await way.start(rt)

        async def asked() -> bool:
            return bool(await rt.approvals.list())

        await until(asked, seconds=30)
        [question] = await rt.approvals.list()
        await rt.approvals.deny(question.id, by="ann", reason="too much")
        await until(lambda: at_rest(rt), seconds=30)
        assert (bank.ran, await rt.approvals.list()) == ([], ())
        assert "too much" in await told(rt)


async def test_t_tool_01_body_without_a_record_cannot_reach_the_tool(bank: Bank) -> None:
    asked_look_ran: list[str] = []

    @tool(effect="pure", needs_approval=True)
    def look() -> str:
        """Look."""
        asked_look_ran.append("look")
        return "seen"

    @tool
    async def plain(ctx: ToolContext) -> Json:
        """Call two tools, of which each needs an approval."""
        return [one.error_code for one in await ctx.tools.batch([("refund", ARGS), ("look", {})])]

    async with bank.open(call("plain"), tools=(plain, look, Refund(bank.ran))) as rt:
        await (await rt.session("s", agent="a")).ask("go")
        assert await told(rt) == '[["nested_effect_not_recorded","approval_required"]]'
        assert (bank.ran, asked_look_ran, await rt.approvals.list()) == ([], [], ())


async def test_t_tool_01_direct_call_of_the_registry_cannot_reach_the_tool(bank: Bank) -> None:
    @tool
    async def sneak(ctx: ToolContext) -> Json:
        """Call the tool without a turn."""
        asked = ToolCall(id=ctx.call_id, name="refund", args=ARGS)
        registry = ctx.services.tool_registry
        assert registry is not None
        return [(await registry.execute(asked)).error, (await registry.execute_with_context(asked, None, ctx)).error]

    async with bank.open(call("sneak"), tools=(sneak, Refund(bank.ran))) as rt:
        await (await rt.session("s", agent="a")).ask("go")
        heard = await told(rt)
        assert "null" not in heard, "both were refused"
        assert "needs a person's approval" in heard
        assert (bank.ran, await rt.approvals.list()) == ([], ())


CHECKED: Json = {"type": "object", "properties": {"to": {"type": "string", "pattern": "^[a-z]+$"}}}


class Letter(Refund):
    """Needs no approval. Only a child process can check its arguments."""

    name = "letter"
    parameters_schema = CHECKED
    policy = "auto"


@pytest.mark.parametrize("more", [{}, {"schedule": YEARLY}], ids=["background", "monitor"])
async def test_s1_background_run_passes_the_check_of_a_child_process(bank: Bank, more: dict[str, Json]) -> None:
    spawn = call("spawn_background", tool="letter", args={"to": "EVE; DROP"}, **more)
    async with bank.open(spawn, tools=(Letter(bank.ran),)) as rt:
        await (await rt.session("s", agent="a")).ask("go")
        assert "does not match" in await refused(rt, bank)


# --- a tool that is not the turn's


UNAVAILABLE = re.compile("nknown tool|tool_unavailable|tool_removed|name 'refund' is not defined")
"""How a model is told. A program is not given the name at all."""


async def refused(rt: Runtime, bank: Bank) -> str:
    """Wait for the end, and return what the model was told. Nothing ran, nobody was asked, nothing was registered."""
    await until(lambda: at_rest(rt), seconds=30)
    assert (bank.ran, await rt.approvals.list()) == ([], ())
    sessions = await core_of(rt).session_streams()
    assert [task for info in sessions for task in await rt.tasks.list(SessionId(info.name))] == []
    assert await rt.schedules.list(session="s") == ()
    return await told(rt)


BY_INPUT = [Way(name, step) for name, step in STEPS.items()]
OTHERS = [way for way in WAYS if way.start not in (by_input, by_monitor)]


@pytest.mark.parametrize("way", BY_INPUT, ids=str)
async def test_t_tool_02_removed_tool_runs_by_no_path(bank: Bank, way: Way) -> None:
    async with bank.open(way.step, tools=(Refund(bank.ran),)) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("lock")
        await session.ask("go")
        assert UNAVAILABLE.search(await refused(rt, bank))


@pytest.mark.parametrize("way", BY_INPUT, ids=str)
async def test_t_tool_02_tool_of_another_agent_runs_by_no_path(bank: Bank, way: Way) -> None:
    async with bank.open(way.step, tools=()) as rt:
        await (await rt.session("s", agent="a")).ask("go")
        assert UNAVAILABLE.search(await refused(rt, bank))


@pytest.mark.parametrize("way", OTHERS, ids=str)
async def test_t_tool_02_tool_of_another_agent_is_reached_by_no_start(bank: Bank, way: Way) -> None:
    async with bank.open(way.step, tools=()) as rt:
        await way.start(rt)

        async def answered() -> bool:
            return UNAVAILABLE.search(await told(rt)) is not None

        await until(answered, seconds=30)
        await refused(rt, bank)


@pytest.mark.parametrize("way", BY_INPUT, ids=str)
async def test_t_tool_02_turn_of_an_older_composition_cannot_reach_a_new_tool(bank: Bank, way: Way) -> None:
    async with bank.open(call("wait"), way.step, tools=()) as rt:
        session = await rt.session("s", agent="a")
        await session.send("go")

        async def waiting() -> bool:
            return (await session.why()).status == "waiting"

        await until(waiting)
    async with bank.open(call("wait"), way.step, tools=(Refund(bank.ran),)) as rt:  # a deploy
        session = rt.get_session("s")
        await session.resolve("go on", "now")
        assert UNAVAILABLE.search(await refused(rt, bank))


@pytest.mark.parametrize("way", BY_INPUT, ids=str)
async def test_t_tool_02_deploy_removes_a_tool_from_a_running_turn(bank: Bank, way: Way) -> None:
    async with bank.open(call("wait"), way.step, tools=(Refund(bank.ran),)) as rt:
        session = await rt.session("s", agent="a")
        await session.send("go")

        async def waiting() -> bool:
            return (await session.why()).status == "waiting"

        await until(waiting)
    async with bank.open(call("wait"), way.step, tools=()) as rt:
        session = rt.get_session("s")
        await session.resolve("go on", "now")
        assert UNAVAILABLE.search(await refused(rt, bank))
