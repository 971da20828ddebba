"""The workloads, for Perdure and for the bare loop each is compared with. One call is one measured run.

W1a: one stream of serial `once` steps. W1b: 50 streams of steps at once. W2a: turns of two model calls and one `once`
tool in one session. The raw loops write rows of the same size with nothing around them.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from perdure import Agent, Runtime, tool
from perdure.effects.controller import Care, JournaledController, Local
from perdure.effects.journal import EffectJournal
from perdure.ids import Fence, Seq, StreamId, WorkerId
from perdure.inbox.admit import Admitted, delivery
from perdure.inbox.items import Wake
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.owned import OwnedStream
from perdure.store.sqlite.store import SqliteStore
from perdure.vocab.effects import (
    DurableStep,
    EffectKind,
    Envelope,
    Invocation,
    Scope,
)
from perdure.vocab.outcomes import DurableStepOutcome, Outcome
from perdure.vocab.usage import Usage

ROW = json.dumps({"step": 1, "ok": True, "text": "x" * 160, "score": 0.5})
VALUE = json.loads(ROW)
ASK = "please look up the item and tell me what it is; " + "q" * 52
ANSWER = "the item is as follows: " + "a" * 176
SPENT = Usage(input=300, output=50, calls=1)  # counting tokens over and over is the simulated model's cost, not ours
FOUND = "tool result: " + "t" * 187


@dataclass(frozen=True)
class Measured:
    """What one run took."""

    items: int
    seconds: float
    commits: int = 0
    awaited: int = 0
    early_ms: float = 0.0
    late_ms: float = 0.0
    stored_bytes: int = 0

    @property
    def per_s(self) -> float:
        return self.items / self.seconds


# --- Perdure


async def _steps(folder: Path, streams: int, steps: int) -> Measured:
    store = SqliteStore(folder / "ours.db", SystemClock())
    await store.open()
    worker = WorkerId("w_bench")
    await store.register(worker, pid=0, version="bench", now=0)

    async def local(_: Envelope) -> Outcome:
        return DurableStepOutcome(value=VALUE)

    async def one(name: str) -> None:
        stream = StreamId(f"default:session:{name}")
        admitted = await store.admit(delivery(stream, "go", Wake(reason="go"), at=0, agent="a"), claim_for=worker)
        assert isinstance(admitted, Admitted)
        fence = admitted.fence
        assert fence is not None
        owned = OwnedStream(store, stream, worker, Fence(fence), Seq(1), SystemClock())
        controller = JournaledController(EffectJournal(), owned)
        scope = Scope(session_id=name)
        for n in range(steps):
            invocation = Invocation.effect(scope, f"s{n}", EffectKind.DURABLE_STEP, f"{name}:{n}")
            step = Envelope(invocation=invocation, command=DurableStep(step_id=f"s{n}"))
            await controller.execute(step, Local(EffectKind.DURABLE_STEP, local), Care(effect="once"))
        await owned.durable()

    await one("warm")
    before, started = store.counters.commits, time.perf_counter()
    await asyncio.gather(*(one(f"s{k}") for k in range(streams)))
    seconds = time.perf_counter() - started
    commits = store.counters.commits - before
    await store.close()
    return Measured(streams * steps, seconds, commits)


@tool
async def lookup(item: str) -> str:
    """Look an item up."""
    return FOUND


async def _turns(folder: Path, turns: int) -> Measured:
    path = folder / "turns.db"
    agent = Agent(
        "a",
        model=ScriptedModel(replace(call("lookup", item="x" * 20), usage=SPENT), say(ANSWER, usage=SPENT)),
        tools=[lookup],
    )
    async with Runtime(f"sqlite:///{path}", agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask(ASK)
        counters = rt.store.counters
        commits, awaited, times = counters.commits, counters.awaited, list[float]()
        started = time.perf_counter()
        for _ in range(turns):
            begun = time.perf_counter()
            await session.ask(ASK)
            times.append(time.perf_counter() - begun)
        seconds = time.perf_counter() - started
        commits, awaited = counters.commits - commits, counters.awaited - awaited + turns
    return Measured(
        turns,
        seconds,
        commits,
        awaited,
        early_ms=_median(times[5:15]) * 1e3,
        late_ms=_median(times[-10:]) * 1e3,
        stored_bytes=path.stat().st_size,
    )


# --- the bare loops


class RawWriter:
    """One thread that owns the connection and commits whatever has queued up."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: queue.SimpleQueue[tuple[str, int, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work)
        self.commits = 0
        self._thread.start()

    def write(self, name: str, n: int) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((name, n, done))
        return done

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute("pragma journal_mode=wal")
        connection.execute("pragma synchronous=full")
        connection.execute("create table if not exists j(wf text, n int, v text, primary key(wf, n)) without rowid")
        while (first := self._queue.get()) is not None:
            batch = [first]
            while not self._queue.empty():
                item = self._queue.get()
                if item is None:
                    self._queue.put(None)
                    break
                batch.append(item)
            connection.execute("begin immediate")
            connection.executemany("insert into j values(?,?,?)", [(name, n, ROW) for name, n, _ in batch])
            connection.execute("commit")
            self.commits += 1
            self._loop.call_soon_threadsafe(_resolve, [done for _, _, done in batch])
        connection.close()


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


async def _raw(folder: Path, streams: int, rows: int) -> Measured:
    writer = RawWriter(folder / "raw.db")

    async def one(name: str) -> None:
        for n in range(rows):
            await writer.write(name, n)

    await one("warm")
    before, started = writer.commits, time.perf_counter()
    await asyncio.gather(*(one(f"s{k}") for k in range(streams)))
    seconds = time.perf_counter() - started
    writer.close()
    return Measured(streams * rows, seconds, writer.commits - before)


async def _raw_turns(folder: Path, turns: int) -> Measured:
    done = await _raw(folder, 1, 3 * turns)
    return Measured(turns, done.seconds, done.commits)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


Run = Callable[[Path], Awaitable[Measured]]
WORKLOADS: dict[str, tuple[Run, Run]] = {
    "W1a": (lambda folder: _steps(folder, 1, 1000), lambda folder: _raw(folder, 1, 1000)),
    "W1b": (lambda folder: _steps(folder, 50, 100), lambda folder: _raw(folder, 50, 100)),
    "W2a": (lambda folder: _turns(folder, 200), lambda folder: _raw_turns(folder, 200)),
}
