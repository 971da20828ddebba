"""Every service of a tool in every kind of body that runs for a session. A new service is included by itself.

The worker's own tenant is another one than the session's. A service is there and bound to the session, or its use is an
error that names it.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from types import FunctionType, MethodType
from typing import cast

import pytest

from perdure import (
    Agent,
    BaseTool,
    Error,
    ProcessContext,
    Runtime,
    RuntimeOptions,
    Session,
    ToolContext,
    ToolError,
    ToolHints,
    UsageLimits,
    WorkerOptions,
    process,
    tool,
)
from perdure.codec import Json
from perdure.codemode import code_mode
from perdure.ids import SessionId, Tenant
from perdure.models.scripted import ScriptedModel, Step, call, say
from perdure.runtime.core import RuntimeCore
from perdure.runtime.internals import core_of
from perdure.runtime.processes.limits import ProcessLimits
from perdure.runtime.sessions.accounts import UsageQuery, accounts
from perdure.runtime.worker.owned import OwnedStream
from perdure.services.background import BackgroundEventSink, BackgroundOutcome
from perdure.tools import ToolResult
from perdure.tools.background import SpawnBackgroundTool
from perdure.tools.context import completions_of, dispatch_of, origin_of, programs_of
from perdure.tools.origin import Clients
from perdure.tools.services import Services
from perdure.tools.toolbox import ToolSource
from perdure.vocab.records import InputAdmitted
from perdure.vocab.registrations import EventType
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import NewStore, until
from tests.scenarios.test_one_door import YEARLY, Obedient

ACME = Tenant("acme")
OWN = "acme:session:s"
NOT_CONFIGURED = {"locale", "network_access"}
"""Services that the application of this test does not give."""
UNBOUND = {"tool_registry", "visible_tool_names", "tool_definitions"}
"""Services that are values of the agent."""

Use = Callable[[ToolContext[object]], object]
USES: Mapping[str, Use] = {
    "sessions": lambda ctx: ctx.sessions.model(),
    "dispatch": dispatch_of,
    "attachments": lambda ctx: ctx.attachments,
    "direct_completions": completions_of,
    "process_events": lambda ctx: ctx.emit("probe.done", {}),
    "processes": lambda ctx: ctx.processes,
    "triggers": lambda ctx: ctx.triggers,
    "programs": programs_of,
}
"""How a tool reaches each client of the runtime."""


@dataclass
class Seen:
    """What one body found: the objects behind the names, and the errors of those that it lacks."""

    found: dict[str, object] = field(default_factory=dict[str, object])
    lacking: dict[str, Exception] = field(default_factory=dict[str, Exception])

    async def look(self, ctx: ToolContext[object]) -> None:
        for one in fields(Services):
            if (value := getattr(ctx.services, one.name)) is not None:
                self.found[one.name] = value
        for name, use in USES.items():
            try:
                used = use(ctx)
                if inspect.isawaitable(used):
                    await cast("Awaitable[object]", used)
            except (ToolError, Error) as problem:
                self.lacking[name] = problem
            else:
                client = getattr(origin_of(ctx).clients, name)
                self.found[name] = client(ctx) if inspect.isfunction(client) else client


SEEN: dict[str, Seen] = {}


@tool(effect="pure")
async def probe(ctx: ToolContext) -> str:
    """Look at every service."""
    await SEEN["now"].look(ctx)
    return "looked"


@tool(effect="resumable")
async def durable_probe(ctx: ToolContext) -> str:
    """Look at every service."""
    await SEEN["now"].look(ctx)
    return "looked"


ANY: Json = {"type": "object"}


class BackgroundProbe(BaseTool):
    """Looks at every service in a background run."""

    name = "background_probe"
    description = "Look at every service."
    parameters_schema = ANY
    hints = ToolHints(supports_background=True)
    process_events = (EventType(name="probe.done"),)

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.tool_error("only in the background")

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        await SEEN["now"].look(context)
        return BackgroundOutcome("looked")


@process(events=["probe.done"])
async def owned(ctx: ProcessContext) -> str:
    """Look at every service of the session that owns the process."""
    await SEEN["now"].look(await ctx.session())
    return "looked"


@tool(effect="idempotent")
async def launch(ctx: ToolContext) -> str:
    """Start a process that belongs to this session."""
    return str((await ctx.processes.start(owned))["id"])


@tool(effect="resumable")
async def desk(ctx: ToolContext) -> str:
    """Call another tool."""
    return str((await ctx.tools.call("probe", {}, step="x")).output)


@tool(effect="resumable")
async def deep_desk(ctx: ToolContext) -> str:
    """Call another resumable tool."""
    return str((await ctx.tools.call("durable_probe", {}, step="x")).output)


@tool
async def many(ctx: ToolContext) -> str:
    """Call another tool in a batch."""
    return str(await ctx.tools.batch([("probe", {})]))


TOOLS: tuple[ToolSource, ...] = (
    *(probe, durable_probe, BackgroundProbe(), launch, desk, deep_desk, many),
    *(SpawnBackgroundTool(), code_mode()),
)
SPAWN = call("spawn_background", tool="background_probe", args={})
OUTSIDE = {"dispatch", "programs"}
"""What only a turn can serve: it has the visible tools and their approvals, and the state of its programs."""

BODIES: Mapping[str, tuple[Step, set[str]]] = {
    "turn": (call("probe"), {"process_events"}),
    "resumable": (call("durable_probe"), {"process_events"}),
    "child": (call("desk"), {"process_events", "dispatch"}),
    "resumable_child": (call("deep_desk"), {"process_events", "programs"}),
    "batch": (call("many"), {"process_events", "dispatch"}),
    "program": (call("run_python", code="await probe()"), {"process_events", "dispatch"}),
    "background": (SPAWN, OUTSIDE),
    "monitor": (
        call("spawn_background", tool="background_probe", args={}, schedule=YEARLY),
        OUTSIDE,
    ),
    "process": (call("launch"), OUTSIDE),
}
"""What the model asks for, and the clients that the body lacks."""


@asynccontextmanager
async def opened(new_store: NewStore, *steps: Step) -> AsyncGenerator[Runtime]:
    """A runtime of the session's tenant, beside a worker for all tenants that belongs to another one."""
    agents = [Agent("a", model=Obedient(*steps, fired=SPAWN), tools=[*TOOLS])]
    everywhere = WorkerOptions(all_tenants=True)
    async with (
        Runtime(new_store(), agents=agents, processes=[owned], worker=everywhere) as worker,
        Runtime(new_store(), agents=agents, processes=[owned], worker=False, tenant=ACME) as rt,
    ):
        for each in (worker, rt):
            each.triggers.declare("mail.received")
        yield rt


async def observed(rt: Runtime, kind: str) -> Seen:
    """Start a body of this kind, and return what it found."""
    seen = SEEN["now"] = Seen()
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=30)
    if kind == "monitor":
        [schedule] = await rt.schedules.list(session="s")
        await rt.schedules.get(schedule.name).run()

    async def looked() -> bool:
        return set(seen.found) | set(seen.lacking) >= set(USES)

    await until(looked, seconds=30)
    return seen


APART = {"store", "hub", "models", "clock", "controller", "body", "shared", "host", "parent", "site"}
"""Attributes with what all sessions share, or with the call itself."""


def held_by(one: object) -> Iterator[tuple[str, object]]:
    """Yield what an object of ours, a function or a partial holds."""
    if isinstance(one, partial):
        yield from (("", value) for value in (cast("object", one.func), *one.args))
    elif isinstance(one, FunctionType):
        names = zip(one.__code__.co_freevars, one.__closure__ or (), strict=True)
        yield from ((name, cell.cell_contents) for name, cell in names)
    elif isinstance(one, MethodType):
        yield "", one.__self__
    elif type(one).__module__.startswith("perdure."):
        slots = [name for each in type(one).__mro__ for name in getattr(each, "__slots__", ())]
        yield from ((name, getattr(one, name, None)) for name in {*slots, *getattr(one, "__dict__", {})})


def bindings(root: object, depth: int = 5) -> set[str]:
    """Return the tenants and streams that an object holds, as far as its attributes and closures show them."""
    if isinstance(root, RuntimeCore):
        return {str(root.tenant)}
    if isinstance(root, OwnedStream):
        return {root.stream}
    found: set[str] = set()
    for name, value in held_by(root) if depth else ():
        plain = name.strip("_")
        if isinstance(value, str) and plain in ("tenant", "stream", "own"):
            found.add(value)
        elif plain not in APART:
            found |= bindings(value, depth - 1)
    return found


@pytest.mark.parametrize("kind", BODIES)
async def test_d4_every_body_has_every_service_or_an_error_that_names_it(new_store: NewStore, kind: str) -> None:
    assert set(USES) == {one.name for one in fields(Clients)}, "name the use of each client"
    step, absent = BODIES[kind]
    async with opened(new_store, step) as rt:
        seen = await observed(rt, kind)
    wanted = {one.name for one in fields(Services)} | set(USES)
    assert wanted - set(seen.found) - NOT_CONFIGURED == absent, seen.lacking
    for name, problem in seen.lacking.items():
        named = str(problem).lower().replace(" ", "_")
        code = problem.code if isinstance(problem, ToolError) else str(cast("Error", problem).code)
        assert name in named or name.removesuffix("_events") in named, problem
        assert code == "service_unavailable" or "process_event" in code, problem
    for name, value in seen.found.items():
        if name not in UNBOUND:
            bound = bindings(value)
            assert bound, f"{name} is bound to no tenant and no stream"
            foreign = {one for one in bound if one not in (ACME, OWN) and not one.startswith("acme:process:")}
            assert not foreign, f"{name} is bound to {foreign}"


# --- what they do outside a turn


class Asks(BackgroundProbe):
    """Asks the session's model in the background, and starts a process."""

    name = "asks"

    def __init__(self) -> None:
        self.told: list[str] = []
        self.args: Json = None

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        self.args = context.args
        self.told.append(await context.complete("why?", source="research"))
        for use in (
            lambda: context.attachments.put(b"x", "text/plain"),
            lambda: context.sessions.hand_over("a"),
            lambda: context.sessions.set_tool_membership(["probe"], False),
        ):
            with pytest.raises(ToolError) as caught:
                await use()
            assert caught.value.code == "service_unavailable"
            self.told.append(str(caught.value))
        started = await context.processes.start(waits)
        self.told += [
            str(one["definition"]) for one in await context.processes.list_handles_filtered(definition=waits.name)
        ]
        await context.processes.cancel(started["handle"])
        return BackgroundOutcome("asked")


@process
async def waits(ctx: ProcessContext) -> None:
    """Wait for an event."""
    await ctx.wait_for_event("go")


@process
async def asks_later(ctx: ProcessContext) -> str:
    """Ask the model of the owner's session before and after a wait, and keep the answers as a file of the session."""
    session = await ctx.session()
    first = await session.complete("first?", source="research")
    await ctx.sleep("rest", 0.05)
    second = await session.complete("second?", source="research")
    await session.files.write_file("/answers.txt", f"{first} {second}")
    return await ctx.step("say", lambda: f"{first} {second}", effect="pure")


@tool(effect="idempotent")
async def research(ctx: ToolContext) -> str:
    """Start a process that asks the model."""
    return str((await ctx.processes.start(asks_later, id="p1"))["id"])


def thinker(*steps: Step) -> ScriptedModel:
    answers = [say("because", usage=Usage(input=30, output=7, calls=1), exact=True)]
    lines = {"go": [*steps, say("ok")], "why?": answers, "first?": answers, "second?": answers}
    return ScriptedModel.by_input(lines, default=[say("noted", exact=True)])


@asynccontextmanager
async def thinking(
    new_store: NewStore,
    step: Step,
    *tools: ToolSource,
    options: RuntimeOptions | None = None,
    limits: UsageLimits | None = None,
) -> AsyncGenerator[tuple[Runtime, Session]]:
    agent = Agent(
        "a", model=thinker(step), tools=[*tools, probe, SpawnBackgroundTool()], limits=limits or UsageLimits()
    )
    async with Runtime(new_store(), agents=[agent], processes=[waits, asks_later], options=options) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go", timeout=30)
        yield rt, session


async def charged(session: Session, calls: int) -> list[tuple[str, int]]:
    """Return the sources and tokens of what the session's processes bought."""

    async def told() -> bool:
        return len([one for one in await session.usage_entries() if one.source == "direct:research"]) >= calls

    await until(told, seconds=30)
    return [(one.source, one.usage.tokens) for one in await session.usage_entries() if one.source.startswith("direct:")]


async def test_d4_background_run_asks_a_model_and_its_session_is_charged(new_store: NewStore) -> None:
    asks = Asks()
    spawn = call("spawn_background", tool="asks", args={"about": "tides"})
    async with thinking(new_store, spawn, asks) as (rt, session):
        assert await charged(session, 1) == [("direct:research", 37)]
        await until(lambda: rested(rt), seconds=30)
        assert asks.args == {"about": "tides"}
        assert asks.told == [
            "because",
            "New attachments not available in this context.",
            "Handoff not available in this context.",
            "Tool membership not available in this context.",
            "waits",
        ]
        by_source = await accounts(core_of(rt), UsageQuery("source"))
        assert {one.name: one.usage.tokens for one in by_source.sums}["direct:research"] == 37
        [whole] = (await accounts(core_of(rt), UsageQuery())).sums
        assert (whole.name, whole.usage) == ("s", by_source.total)


async def rested(rt: Runtime) -> bool:
    tasks = await rt.tasks.list(SessionId("s"))
    return all(task.is_over for task in tasks) and (await rt.get_session("s").why()).status == "idle"


async def test_d4_session_limits_bind_a_background_run(new_store: NewStore) -> None:
    class Greedy(Asks):
        async def execute_background(
            self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
        ) -> BackgroundOutcome:
            for _ in range(20):
                self.told.append(await context.complete("why?", source="research"))
            return BackgroundOutcome("asked")

    asks = Greedy()
    spawn = call("spawn_background", tool="asks", args={})
    async with thinking(new_store, spawn, asks, limits=UsageLimits(session_tokens=300)) as (rt, session):
        await until(lambda: rested(rt), seconds=30)
        [task] = await rt.tasks.list(SessionId("s"))
        assert task.error is not None
        assert "limit reached: the session has used" in task.error.message
        bought = 37 * len(asks.told)
        assert 0 < len(asks.told) <= 9, "nine of 37 tokens reach the limit, also without those of the turn"
        assert sum(tokens for _, tokens in await charged(session, len(asks.told))) == bought


async def test_d4_owned_process_has_the_services_of_its_session(new_store: NewStore) -> None:
    no_idle = RuntimeOptions(idle_timeout_s=0.0)  # the wait parks the process, so its function is entered twice
    async with thinking(new_store, call("research"), research, options=no_idle) as (rt, session):
        assert await rt.get_process("p1").result(timeout=30) == "because because"
        found = await session.files.read_file("/answers.txt")
        assert found is not None
        assert found.content == "because because"
        assert await charged(session, 2) == [("direct:research", 37)] * 2, "an answered request is replayed"


async def test_d4_process_of_no_session_learns_that_it_has_none(new_store: NewStore) -> None:
    async with thinking(new_store, call("probe")) as (rt, _):
        handle = await rt.start(asks_later)
        outcome = await handle.wait(timeout=30)
        assert "belongs to no session" in str(outcome)


async def test_d4_chain_of_processes_through_their_session_is_limited(new_store: NewStore) -> None:
    @process
    async def chain(ctx: ProcessContext, n: int) -> str:
        """Start the next one, and wait for it."""
        session = await ctx.session()
        try:
            await session.processes.start("chain", n + 1, id=f"c{n + 1}")
        except ToolError as problem:
            return f"{n}: {problem.code}"
        return str(await ctx.wait_for_process(f"c{n + 1}"))

    @tool(effect="idempotent")
    async def begin(ctx: ToolContext) -> str:
        """Begin the chain."""
        return str((await ctx.processes.start(chain, 1, id="c1"))["id"])

    agent = Agent("a", model=ScriptedModel(call("begin"), say("ok")), tools=[begin])
    options = RuntimeOptions(processes=ProcessLimits(depth=3))
    async with Runtime(new_store(), agents=[agent], processes=[chain], options=options) as rt:
        await (await rt.session("s", agent="a")).ask("go", timeout=30)
        assert await rt.get_process("c1").result(timeout=30) == "3: process_depth_exceeded", (
            "a fourth would have three live ancestors"
        )


async def test_s16_messages_of_a_background_run_to_its_session_are_its_own_turns(new_store: NewStore) -> None:
    class Nags(Asks):
        async def execute_background(
            self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
        ) -> BackgroundOutcome:
            own = context.sessions.get(context.session_id)
            await own.send("nag")
            await context.sessions.start_turn(context.session_id, "k", "nag again")
            return BackgroundOutcome("nagged")

    spawn = call("spawn_background", tool="asks", args={}, signal_on_completion=False)
    async with thinking(new_store, spawn, Nags()) as (rt, session):
        await until(lambda: rested(rt), seconds=30)
        inputs = [row.record for row in await session.journal() if isinstance(row.record, InputAdmitted)]
        assert [one.by_session for one in inputs] == [False, True, True]
