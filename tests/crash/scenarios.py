"""The turns that are killed: each builds an agent whose tools write every dispatch to a ledger, and runs one input.

A child process calls `run(name, ...)`. It may be told, through the environment, to die at a durable boundary, inside a
tool right after its outside effect, or in the middle of the model's stream.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from perdure import (
    Agent,
    CannotTell,
    DidNotHappen,
    Happened,
    Runtime,
    RuntimeOptions,
    Session,
    ToolContext,
    ToolError,
    tool,
)
from perdure.codec import Json
from perdure.commit.plan import Plan, Receipt
from perdure.events import RecordEvent
from perdure.models.protocol import Model, ModelEvent, ModelRequest, TextPiece
from perdure.models.scripted import ScriptedModel, call, calls, say, truncate
from perdure.runtime.clock import SystemClock
from perdure.runtime.stores import store_for
from perdure.store.protocol import Store
from perdure.testing.crash import Boundary, die, tripwire, tripwire_from_environment
from perdure.tools.decorator import AnyTool
from perdure.tools.prepare import ToolPrepareContext
from perdure.tools.provider import ProviderContext, ToolProvider
from perdure.tools.toolbox import ToolSource
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.records import TurnEnded
from perdure.vocab.tools import Durability, RetryPolicy, ToolContract, ToolManifest

DIE_IN = "PERDURE_DIE_IN"
STOP_AT = "PERDURE_STOP_AT"
LEASE_S = "PERDURE_LEASE_S"
SILENT = "PERDURE_SILENT"
URL = "store-url"


def store_url(folder: Path) -> str:
    """The store that the processes of one test share: a file beside the others, unless one says where."""
    named = folder / URL
    return named.read_text() if named.exists() else f"sqlite:///{folder / 's.db'}"


class Ledger:
    """The outside world: remembers every dispatch, never forgives a second one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, tool_name: str, key: str) -> None:
        descriptor = os.open(self.path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(descriptor, f"{tool_name} {key}\n".encode())
        os.close(descriptor)
        if os.environ.get(DIE_IN) == tool_name:
            die()

    def lines(self) -> list[tuple[str, str]]:
        if not self.path.exists():
            return []
        pairs = (line.rsplit(" ", 1) for line in self.path.read_text().splitlines())
        return [(name, key) for name, key in pairs]

    def count(self, tool_name: str) -> int:
        return sum(name == tool_name for name, _ in self.lines())


class Mortal:
    """A model that can die after its first words."""

    def __init__(self, model: ScriptedModel) -> None:
        self._model = model
        self.name = model.name
        self._asked = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self._asked += 1
        async for event in self._model.stream(request):
            yield event
            if isinstance(event, TextPiece) and os.environ.get(DIE_IN) == f"model {self._asked}":
                die()


def one_once(ledger: Ledger) -> tuple[Model, list[AnyTool]]:
    @tool
    async def charge(ctx: ToolContext, cents: int) -> str:
        """Charge a card."""
        ledger.write("charge", ctx.idempotency_key)
        return f"charged {cents}"

    return ScriptedModel(call("charge", cents=5), say("all done")), [charge]


class Writes:
    """How many appends are under way, so that a tool can end when the end of another one is durable."""

    def __init__(self) -> None:
        self._under_way = 0

    def watched(self, store: Store) -> Store:
        """The same store."""
        return cast("Store", _Watched(store, self))

    def submit(self, append: Awaitable[Receipt]) -> Awaitable[Receipt]:
        self._under_way += 1
        future = asyncio.ensure_future(append)
        future.add_done_callback(self._over)
        return future

    def _over(self, _: object) -> None:
        self._under_way -= 1

    async def settled(self, what: asyncio.Event) -> None:
        """Wait until this has happened here, and everything that followed from it is durable. What happened in an
        earlier life does not happen again."""
        with suppress(TimeoutError):
            await asyncio.wait_for(what.wait(), 0.5)
        await _let_others()
        while self._under_way:
            await asyncio.sleep(0.002)
            await _let_others()


async def _let_others() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


class _Watched:
    def __init__(self, store: Store, writes: Writes) -> None:
        self._store = store
        self._writes = writes

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    def append(self, plan: Plan) -> Awaitable[Receipt]:
        return self._writes.submit(self._store.append(plan))


writes = Writes()


def three_classes(ledger: Ledger) -> tuple[Model, list[AnyTool]]:
    """Three tools of different classes in one reply, made to finish one after another."""
    charging, looked, has_put = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def look(ctx: ToolContext) -> str:
        """Look something up."""
        ledger.write("look", ctx.idempotency_key)
        await writes.settled(charging)
        looked.set()
        return "seen"

    @tool(effect="idempotent")
    async def put(ctx: ToolContext) -> str:
        """Put something somewhere."""
        ledger.write("put", ctx.idempotency_key)
        await writes.settled(looked)
        has_put.set()
        return "put"

    @tool(effect="once")
    async def charge(ctx: ToolContext) -> str:
        """Charge a card."""
        ledger.write("charge", ctx.idempotency_key)
        charging.set()
        await writes.settled(has_put)
        return "charged"

    return ScriptedModel(calls(call("look"), call("put"), call("charge")), say("all done")), [look, put, charge]


def queued(ledger: Ledger) -> tuple[Model, list[AnyTool]]:
    """Two once calls of one concurrency class and a serial one: each waits for the one before it."""

    @tool(concurrency_group="bank")
    async def first(ctx: ToolContext) -> str:
        """First."""
        ledger.write("first", ctx.idempotency_key)
        return "1"

    @tool(concurrency_group="bank")
    async def second(ctx: ToolContext) -> str:
        """Second."""
        ledger.write("second", ctx.idempotency_key)
        return "2"

    @tool(sequential=True)
    async def third(ctx: ToolContext) -> str:
        """Third."""
        ledger.write("third", ctx.idempotency_key)
        return "3"

    return ScriptedModel(calls(call("third"), call("first"), call("second")), say("all done")), [first, second, third]


def probed(ledger: Ledger) -> tuple[Model, list[AnyTool]]:
    """A probe that reads the ledger: it answers either way, according to what really happened."""

    def ask(ctx: ToolContext) -> Happened | DidNotHappen:
        done = any(key == ctx.idempotency_key for _, key in ledger.lines())
        return Happened("charged, says the bank") if done else DidNotHappen()

    @tool(probe=ask)
    async def charge(ctx: ToolContext) -> str:
        """Charge a card."""
        ledger.write("charge", ctx.idempotency_key)
        return "charged"

    return ScriptedModel(call("charge"), say("all done")), [charge]


def probe_unknown(ledger: Ledger) -> tuple[Model, list[AnyTool]]:
    """A probe that cannot tell."""

    def ask(ctx: ToolContext) -> CannotTell:
        return CannotTell("the bank does not answer")

    @tool(probe=ask)
    async def charge(ctx: ToolContext) -> str:
        """Charge a card."""
        ledger.write("charge", ctx.idempotency_key)
        return "charged"

    return ScriptedModel(call("charge"), say("all done")), [charge]


def retried(ledger: Ledger) -> tuple[Model, list[AnyTool]]:
    """A once tool that fails the first time and says that trying again is safe."""

    @tool(retries=RetryPolicy(kind="safe", max_attempts=2, base_delay_ms=30))
    async def charge(ctx: ToolContext) -> str:
        """Charge a card."""
        ledger.write("charge", ctx.idempotency_key)
        if ctx.attempt == 1:
            raise ToolError("busy, nothing was charged", retry_safe=True)
        return "charged"

    return ScriptedModel(call("charge"), say("all done")), [charge]


def failing(ledger: Ledger) -> tuple[Model, list[AnyTool]]:
    """A once tool that fails, which is an outcome like any other."""

    @tool
    async def charge(ctx: ToolContext) -> str:
        """Charge a card."""
        ledger.write("charge", ctx.idempotency_key)
        raise ToolError("card declined", code="declined")

    return ScriptedModel(call("charge"), say("all done")), [charge]


def timing_out(ledger: Ledger) -> tuple[Model, list[AnyTool]]:
    """A once tool that never comes back: in doubt, not failed."""

    @tool(timeout="500ms")  # from the intent on, so it must not take that long to write
    async def charge(ctx: ToolContext) -> str:
        """Charge a card."""
        ledger.write("charge", ctx.idempotency_key)
        await asyncio.sleep(3600)
        return "never"

    return ScriptedModel(call("charge"), say("all done")), [charge]


def stream_cut(ledger: Ledger) -> tuple[Model, list[AnyTool]]:
    """The provider's stream breaks once after the tool ran; the call is not made again."""

    @tool
    async def charge(ctx: ToolContext) -> str:
        """Charge a card."""
        ledger.write("charge", ctx.idempotency_key)
        return "charged"

    return ScriptedModel(call("charge"), truncate(after="all d"), say("all done")), [charge]


def zombie(ledger: Ledger) -> tuple[Model, list[AnyTool]]:
    """A once tool that takes as long as it is told to: until a file appears."""

    @tool
    async def charge(ctx: ToolContext) -> str:
        """Charge a card."""
        ledger.write("charge", ctx.idempotency_key)
        while not ledger.path.with_name("go").exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.01)
        return "charged at last"

    return ScriptedModel(call("charge"), say("all done")), [charge]


def zombie_probed(ledger: Ledger) -> tuple[Model, list[AnyTool]]:
    """A probe that truthfully says that nothing has happened yet."""

    @tool(probe=lambda ctx: DidNotHappen())
    async def charge(ctx: ToolContext) -> str:
        """Charge a card."""
        ledger.write("charge", ctx.idempotency_key)
        return "charged"

    return ScriptedModel(call("charge"), say("all done")), [charge]


def zombie_late(ledger: Ledger) -> tuple[Model, list[AnyTool]]:
    """A call with a deadline that is frozen before its outside effect, and a probe that tells the truth."""

    def ask(ctx: ToolContext) -> Happened | DidNotHappen:
        return Happened() if ledger.count("charge") else DidNotHappen()

    @tool(timeout="1s", probe=ask)
    async def charge(ctx: ToolContext) -> str:
        """Charge a card, a moment after the call has begun."""
        ledger.write("begun", ctx.idempotency_key)
        await asyncio.sleep(0.6)
        ledger.write("charge", ctx.idempotency_key)
        return "charged"

    return ScriptedModel(call("charge"), say("all done")), [charge]


def deploy(ledger: Ledger) -> tuple[Model, list[AnyTool]]:
    """The code before a deploy: two tools, one of them owed when the process dies."""

    @tool(effect="idempotent")
    async def put(ctx: ToolContext, where: str, size: int = 1) -> str:
        """Put something somewhere."""
        ledger.write("put", ctx.idempotency_key)
        return f"{where} {size}"

    @tool(effect="pure")
    async def unused(ctx: ToolContext) -> str:
        """Not called."""
        return ""

    return ScriptedModel(call("put", where="shelf"), say("all done")), [put, unused]


class Shop(ToolProvider):
    """A provider whose hook returns a different ticket at each call."""

    MANIFESTS = (
        ToolManifest(name="put", durability=Durability(effect="idempotent")),
        ToolManifest(name="charge", durability=Durability(serial=True)),
    )

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def tool_manifests(self) -> tuple[ToolManifest, ...]:
        return self.MANIFESTS

    def resolve_contract(self, name: str) -> ToolContract | None:
        manifest = self.resolve_manifest(name)
        return manifest.contract({"type": "object"}) if manifest else None

    async def prepare_tool_call(self, ctx: ToolPrepareContext, call: PreparedToolCall) -> PreparedToolCall:
        await asyncio.sleep(0)
        return msgspec.structs.replace(call, prepared_payload=os.urandom(8).hex())

    async def execute(self, name: str, args: Json, ctx: ProviderContext[object]) -> object:
        self._ledger.write(name, f"{ctx.idempotency_key}#{ctx.prepared_payload}")
        return f"{name} done"


def provided(ledger: Ledger) -> tuple[Model, list[ToolSource]]:
    """Two tools of a provider with an async hook: one that may run again, and after it one that may not."""
    return ScriptedModel(calls(call("put"), call("charge")), say("all done")), [Shop(ledger)]


def nesting(ledger: Ledger) -> tuple[Model, list[ToolSource]]:
    """A resumable tool that calls others: one that must not run twice, and one that may, each after the other."""

    @tool
    async def charge(ctx: ToolContext, cents: int) -> str:
        """Charge a card."""
        ledger.write("charge", ctx.idempotency_key)
        return f"charged {cents}"

    @tool(effect="idempotent")
    async def put(ctx: ToolContext) -> str:
        """Put something somewhere."""
        ledger.write("put", ctx.idempotency_key)
        return "put"

    @tool(effect="resumable")
    async def book(ctx: ToolContext) -> list[str | None]:
        """Book."""
        [charged] = await ctx.tools.batch([("charge", {"cents": 5})])
        [stored] = await ctx.tools.batch([("put", {})])
        return [charged.error_code, stored.error_code]

    return ScriptedModel(call("book"), say("all done")), [book, charge, put]


SCENARIOS: dict[str, Callable[[Ledger], tuple[Model, Sequence[ToolSource]]]] = {
    scenario.__name__: scenario
    for scenario in (
        one_once,
        three_classes,
        queued,
        probed,
        probe_unknown,
        retried,
        failing,
        timing_out,
        stream_cut,
        zombie,
        zombie_probed,
        zombie_late,
        deploy,
        provided,
        nesting,
    )
}


async def _until_idle(session: Session) -> None:
    """Run as a worker that receives no input."""
    async with asyncio.timeout(20):
        async for event in session.events():
            if isinstance(event, RecordEvent) and isinstance(event.record, TurnEnded):
                return


def _stop_where_told(store: Store) -> Store:
    if not (named := os.environ.get(STOP_AT)):
        return store
    n, side = named.split(":")

    def on_boundary(boundary: Boundary) -> None:
        if (boundary.n, boundary.side) == (int(n), side):
            os.kill(os.getpid(), signal.SIGSTOP)

    return tripwire(store, on_boundary)


async def _run(name: str, folder: Path) -> None:
    model, tools = SCENARIOS[name](Ledger(folder / "ledger"))
    if isinstance(model, ScriptedModel):
        model = Mortal(model)
    clock = SystemClock()
    lease_s = float(os.environ.get(LEASE_S, "10"))
    real = store_for(store_url(folder), clock, lease_ms=int(lease_s * 1000))
    store = writes.watched(_stop_where_told(tripwire_from_environment(real)))
    tuning = RuntimeOptions(clock=clock, lease_s=lease_s)
    async with Runtime(
        store, agents=[Agent("a", model=model, tools=tools, instructions="as it was")], options=tuning
    ) as rt:
        session = await rt.session("s", agent="a")
        if os.environ.get(SILENT):
            await _until_idle(session)
            return
        sent = await session.send("go", key="the-only-input")
        result = await sent.result(timeout=30)
        (folder / "answer").write_text(f"{result.status} {result.text}")


def run(name: str, folder: str, environment: dict[str, str]) -> None:
    """Run in a child process: the whole turn, or as much of it as it lives to see."""
    os.environ.update(environment)
    asyncio.run(_run(name, Path(folder)))
