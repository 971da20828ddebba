"""Perdure on the workloads. Steps are `ctx.step` in a resumable tool; with `--mode journal`, the append path alone.

Besides: `cold` (the first turn of a session that is not in memory, after 50 and after 5,000 turns), `chat` (400 turns
that hold 0.9 MB), `startup` (`perdure --help` beside importing typer).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import signal
import sqlite3
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from statistics import median

try:
    import asyncpg
except ModuleNotFoundError:
    sys.exit("asyncpg is not installed. Run: make venv, then .venv/bin/python bench/ours.py")
from load import ask
from measure import (
    ANSWER,
    ARGUMENT,
    ASK,
    FOUND,
    PAYLOAD,
    StepLog,
    child,
    cpu_s,
    kill_and_start_again,
    options,
    rss_mb,
    speed,
    tell,
)

from perdure import Agent, OutcomeUnknown, Runtime, RuntimeOptions, ToolContext, WorkerOptions, tool
from perdure.codec import encode
from perdure.effects.controller import DispatchPolicy, JournaledController, Local
from perdure.effects.journal import EffectJournal
from perdure.ids import Fence, Seq, StreamId, WorkerId
from perdure.inbox.admit import Admitted, delivery
from perdure.inbox.items import Wake
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest, ProviderCall
from perdure.models.scripted import ScriptedModel, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.runtime.sessions.session import Session
from perdure.runtime.worker.owned import OwnedStream
from perdure.store.sqlite.store import SqliteStore
from perdure.vocab.effects import DurableStep, EffectKind, Envelope, Invocation, Scope
from perdure.vocab.messages import Text, ToolResultPart
from perdure.vocab.outcomes import DurableStepOutcome, Outcome
from perdure.vocab.usage import Usage

THINKS_S = 0.02
WARM = 5_000
PARKED = "SELECT count(*) FROM streams WHERE parked AND owner IS NULL"
SPENT = Usage(input=300, output=50, calls=1)  # fixed: token counting is a cost of the simulated model


def file(chosen: Namespace) -> Path:
    return chosen.dir / "ours.db"


def address(chosen: Namespace) -> str:
    return chosen.url or f"sqlite:///{file(chosen)}"


def stored(chosen: Namespace) -> int:
    return 0 if chosen.url else file(chosen).stat().st_size


def runtime(chosen: Namespace, agent: Agent, tuning: RuntimeOptions | None = None) -> Runtime:
    return Runtime(address(chosen), agents=[agent], options=tuning)


class Forgetful(ScriptedModel):
    """A scripted model that keeps no list of requests."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.clear()
        async for event in super().stream(request):
            yield event


class Calling:
    """A model like those of the peers: one immediate reply, first a call, then the answer."""

    name = "bench"

    def __init__(self, tool: str, **arguments: object) -> None:
        self._call = ProviderCall(provider_id="call_0", name=tool, arguments=encode(arguments).decode())

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        answered = isinstance(request.messages[-1].parts[-1], ToolResultPart)
        part = Text(text=ANSWER) if answered else self._call
        yield ModelReply(parts=(part,), finish="stop", usage=SPENT, model=self.name)


async def work() -> object:
    return PAYLOAD


# --- w1: steps


async def tool_steps(chosen: Namespace) -> None:
    @tool(effect="resumable")
    async def flow(ctx: ToolContext, count: int) -> int:
        """Run steps."""
        for n in range(count):
            await ctx.step(f"s{n}", work)
        return count

    def agent(name: str, count: int) -> Agent:
        return Agent(name, model=Calling("flow", count=count), tools=[flow])

    agents = [agent("warm", 20), agent("a", chosen.steps)]
    async with Runtime(address(chosen), agents=agents) as rt:
        await (await rt.session("warm", agent="warm")).ask(ASK)
        sessions = [await rt.session(f"s{k}", agent="a") for k in range(chosen.workflows)]
        commits, cpu, began = core_of(rt).store.counters.commits, cpu_s(), time.perf_counter()
        await asyncio.gather(*(session.ask(ASK) for session in sessions))
        seconds, used = time.perf_counter() - began, cpu_s() - cpu
        commits = core_of(rt).store.counters.commits - commits
    items = chosen.workflows * chosen.steps
    tell(**speed(items, seconds, used, commits_each=round(commits / items, 3), stored=stored(chosen)))


def _nobody(streams: Collection[StreamId]) -> None:
    """Deliver nothing: no plan of this workload sends to other streams."""


async def journal_steps(chosen: Namespace) -> None:
    store = SqliteStore(file(chosen), SystemClock())
    await store.open()
    worker = WorkerId("w_bench")
    await store.register(worker, pid=0, version="bench", now=0)

    async def local(_: Envelope) -> Outcome:
        return DurableStepOutcome(value=PAYLOAD)

    async def flow(name: str, count: int) -> None:
        stream = StreamId(f"default:session:{name}")
        admitted = await store.admit(delivery(stream, "go", Wake(reason="go"), at=0, agent="a"), claim_for=worker)
        assert isinstance(admitted, Admitted)
        owned = OwnedStream(store, stream, worker, Fence(admitted.fence or 0), Seq(1), SystemClock(), _nobody)
        controller = JournaledController(EffectJournal(), owned)
        scope = Scope(session_id=name)
        for n in range(count):
            invocation = Invocation.effect(scope, f"s{n}", EffectKind.DURABLE_STEP, f"{name}:{n}")
            step = Envelope(invocation=invocation, command=DurableStep(step_id=f"s{n}"))
            await controller.execute(step, Local(EffectKind.DURABLE_STEP, local), DispatchPolicy(effect="once"))
        await owned.durable()

    await flow("warm", 20)
    commits, cpu, began = store.counters.commits, cpu_s(), time.perf_counter()
    await asyncio.gather(*(flow(f"s{k}", chosen.steps) for k in range(chosen.workflows)))
    seconds, used = time.perf_counter() - began, cpu_s() - cpu
    commits = store.counters.commits - commits
    await store.close()
    items = chosen.workflows * chosen.steps
    tell(**speed(items, seconds, used, commits_each=round(commits / items, 3), stored=stored(chosen)))


async def steps(chosen: Namespace) -> None:
    await (journal_steps if chosen.mode == "journal" else tool_steps)(chosen)


# --- w2: turns


@tool
async def lookup(item: str) -> str:
    """Look an item up."""
    return FOUND


async def turns(chosen: Namespace) -> None:
    async with Runtime(f"sqlite:///{chosen.dir / 'empty.db'}"):
        pass
    empty = (chosen.dir / "empty.db").stat().st_size
    async with runtime(chosen, Agent("a", model=Calling("lookup", item=ARGUMENT), tools=[lookup])) as rt:
        sessions: dict[str, Session] = {}

        async def turn(name: str) -> None:
            session = sessions.get(name) or sessions.setdefault(name, await rt.session(name, agent="a"))
            await session.ask(ASK)

        before = core_of(rt).store.counters.commits
        numbers = await ask(turn, chosen)
        commits = core_of(rt).store.counters.commits - before
    each = round(commits / (chosen.turns + 1), 2)
    size = {} if chosen.url else {"stored": stored(chosen), "stored_for_turns": stored(chosen) - empty}
    tell(**numbers, commits_each=each, **size)


async def chat(chosen: Namespace) -> None:
    agent = Agent("a", model=Forgetful(say("a" * 2000, usage=SPENT)))
    async with runtime(chosen, agent) as rt:
        session = await rt.session("s", agent="a")
        for _ in range(400):
            await session.ask("q" * 250)
    tell(turns=400, said=400 * 2250, stored=stored(chosen))


# --- w3: waiting


async def waiting(chosen: Namespace) -> None:
    woken = 0

    @tool(effect="resumable")
    async def wait(ctx: ToolContext) -> str:
        """Wait for an event."""
        nonlocal woken
        await ctx.wait_for_event("go")
        woken += 1
        return "went"

    async with runtime(
        chosen, Agent("a", model=Calling("wait"), tools=[wait]), RuntimeOptions(idle_timeout_s=0.0)
    ) as rt:

        async def start(names: Iterable[str]) -> None:
            for name in names:
                await (await rt.session(name, agent="a")).send(ASK)

        async def start_all(prefix: str, count: int) -> None:
            names = iter([f"{prefix}{k}" for k in range(count)])
            await asyncio.gather(*(start(names) for _ in range(100)))
            while await parked(chosen) < count + (WARM if prefix == "s" else 0):
                await asyncio.sleep(0.2)

        await start_all("warm", WARM)  # warm up to peak concurrency and full caches
        gc.collect()
        before, kept, blocks, began = rss_mb(), kept_mb(), sys.getallocatedblocks(), time.perf_counter()
        await start_all("s", chosen.workflows)
        start_s = time.perf_counter() - began
        gc.collect()
        added, kept, blocks = rss_mb() - before, kept_mb() - kept, sys.getallocatedblocks() - blocks
        await asyncio.sleep(1)
        cpu, looked = cpu_s(), time.perf_counter()
        await asyncio.sleep(5)
        idle = (cpu_s() - cpu) / (time.perf_counter() - looked)
        names = iter([f"s{k}" for k in range(chosen.workflows)])

        async def wake() -> None:
            for name in names:
                await rt.get_session(name).resolve("go", "yes")

        began = time.perf_counter()
        await asyncio.gather(*(wake() for _ in range(100)))
        sent = time.perf_counter() - began
        while woken < chosen.workflows and time.perf_counter() - began < chosen.cap:
            await asyncio.sleep(0.01)
        all_s = time.perf_counter() - began
    tell(
        waiting=chosen.workflows,
        start_s=round(start_s, 2),
        added_mb=round(added, 2),
        kept_mb=round(kept, 2),
        kept_objects=blocks,
        idle_cpu=round(idle, 4),
        resolve_s=round(sent, 2),
        wake_all_s=round(all_s, 2),
        woken=woken,
    )


def kept_mb() -> float:
    """Return the memory of this process after the allocator has released free memory."""
    with suppress(OSError, AttributeError):  # this C library has no malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
    return rss_mb()


async def parked(chosen: Namespace) -> int:
    """Return the number of parked, unowned sessions in the store."""
    if chosen.url:
        connection = await asyncpg.connect(chosen.url)
        try:
            return await connection.fetchval(PARKED.replace("streams", "perdure.streams"))
        finally:
            await connection.close()
    with sqlite3.connect(file(chosen)) as connection:
        connection.execute("PRAGMA cache_size = 16")  # keep this process's memory small
        [(count,)] = connection.execute(PARKED)
    return count


# --- w4: recovery


async def recovering(chosen: Namespace) -> None:
    log, gate = StepLog(chosen.dir), asyncio.Event()

    @tool(effect="resumable")
    async def flow(ctx: ToolContext) -> int:
        """Run steps; skip and count steps of unknown outcome."""
        await gate.wait()
        doubts: list[str] = []
        for n in range(chosen.steps):

            async def step(n: int = n) -> object:
                log.step(ctx.session_id, n)
                return PAYLOAD

            try:
                await ctx.step(f"s{n}", step)
            except OutcomeUnknown:
                doubts.append(str(n))
        log.done(ctx.session_id, ",".join(doubts) or "-")
        return len(doubts)

    async with runtime(chosen, Agent("a", model=Calling("flow"), tools=[flow])) as rt:
        if not chosen.again:
            sessions = [await rt.session(f"s{k}", agent="a") for k in range(chosen.workflows)]
            await asyncio.gather(*(session.send(ASK) for session in sessions))
        gate.set()
        await asyncio.sleep(3600)


# --- w5: a fleet


class Thinking(Calling):
    """A model as slow as a fast real one."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await asyncio.sleep(THINKS_S)
        async for event in super().stream(request):
            yield event


def thinker() -> Agent:
    return Agent("a", model=Thinking("lookup", item=ARGUMENT), tools=[lookup])


async def fleet(chosen: Namespace) -> None:
    """Measure turns on other workers, from the first input to the last result. `workflows` is the number of workers."""
    async with Runtime(address(chosen), agents=[thinker()], worker=False) as rt:
        workers = [worker(chosen) for _ in range(chosen.workflows)]
        try:
            numbers = await _asked_of(rt, chosen)
        finally:
            for one in workers:
                one.terminate()
                one.wait()
    tell(**numbers, workers=chosen.workflows)


async def _asked_of(rt: Runtime, chosen: Namespace) -> dict[str, object]:
    for k in range(10 * chosen.workflows):  # warm up every worker
        await (await rt.session(f"warm{k}", agent="a")).ask(ASK)
    cpu, began = cpu_s(), time.perf_counter()
    sent = [await (await rt.session(f"s{k}", agent="a")).send(ASK) for k in range(chosen.turns)]
    await asyncio.gather(*(one.result(timeout=chosen.cap) for one in sent))
    return speed(chosen.turns, time.perf_counter() - began, cpu_s() - cpu)


def worker(chosen: Namespace) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, sys.argv[0], "w5child", "--dir", str(chosen.dir), "--url", chosen.url])


async def work_for_others(chosen: Namespace) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Runtime(address(chosen), agents=[thinker()], worker=WorkerOptions(concurrency=5)):
        await stop.wait()


# --- cold claims


class Noting(Forgetful):
    """A model that records the time of its last request."""

    asked = 0.0

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.asked = time.perf_counter()
        return super().stream(request)


async def cold(chosen: Namespace) -> None:
    """Measure from `send` to the model call in a process without the session in memory; the view has 50 turns."""
    counts = (50, 5000)
    took: dict[int, list[float]] = {count: [] for count in counts}
    model = Noting(say("fine", usage=SPENT))
    agent = Agent("a", model=model, view_bytes=50 * 40)
    async with runtime(chosen, agent) as rt:
        for count in counts:
            session = await rt.session(f"s{count}", agent="a")
            for _ in range(count):
                await session.ask("How are you?")
    for _ in range(9):
        for count in counts:
            async with runtime(chosen, agent) as rt:
                await (await rt.session("warm", agent="a")).ask("Are you awake?")
                session = await rt.session(f"s{count}", agent="a")
                began = time.perf_counter()
                sent = await session.send("How are you?")
                await sent.result()
                took[count].append(model.asked - began)
    few, many = (median(took[count]) for count in counts)
    tell(after_50_ms=round(few * 1e3, 3), after_5000_ms=round(many * 1e3, 3), ratio=round(many / few, 2))


# --- start-up


def startup() -> None:
    help_s: list[float] = []
    typer_s: list[float] = []
    for _ in range(9):
        typer_s.append(_runs([sys.executable, "-c", "import typer"]))
        help_s.append(_runs([sys.executable, "-m", "perdure", "--help"]))
    ratio = median(mine / other for mine, other in zip(help_s, typer_s, strict=True))
    tell(help_ms=round(median(help_s) * 1e3), typer_ms=round(median(typer_s) * 1e3), ratio=round(ratio, 2))


def _runs(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    chosen = options("w1a", "w1b", "w2a", "w2b", "w3", "w4", "w4child", "w5", "w5child", "cold", "chat", "startup")
    if chosen.work == "w4":
        kill_and_start_again(lambda again: child(chosen, again), chosen)
    elif chosen.work == "startup":
        startup()
    else:
        runs = {"w1a": steps, "w1b": steps, "w2a": turns, "w2b": turns, "w3": waiting, "w4child": recovering}
        runs |= {"w5": fleet, "w5child": work_for_others, "cold": cold, "chat": chat}
        asyncio.run(runs[chosen.work](chosen))


if __name__ == "__main__":
    main()
