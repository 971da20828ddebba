"""Programs that tests run in processes of their own, and what both sides share."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from perdure.commit.plan import Entry, Plan
from perdure.ids import DEFAULT_TENANT, Seq, SessionId, StreamId, WorkerId, session_stream
from perdure.inbox.admit import delivery
from perdure.inbox.items import Wake
from perdure.store.protocol import Store
from perdure.store.shapes import Claim
from perdure.store.sqlite import SqliteStore, writer


class RealClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_until(self, wall_ms: int) -> None:
        await asyncio.sleep(max(0, wall_ms - self.wall_ms()) / 1_000)


def stream_named(name: str) -> StreamId:
    return session_stream(DEFAULT_TENANT, SessionId(name))


def entry(text: str, key: str | None = None) -> Entry:
    return Entry(kind="note", data=f'{{"text":"{text}"}}'.encode(), at=1, key=key)


async def opened(path: Path, worker: WorkerId) -> SqliteStore:
    store = SqliteStore(path, RealClock())
    await store.open()
    await store.register(worker, pid=os.getpid(), version="1", now=0)
    return store


async def owned(store: Store, name: str, worker: WorkerId) -> Claim:
    """A stream of this name, in this worker's hands."""
    stream = stream_named(name)
    await store.admit(delivery(stream, "open", Wake(reason="x"), at=1, agent="a"))
    claim = await store.claim(stream, worker)
    assert isinstance(claim, Claim), claim
    return claim


def plan(claim: Claim, worker: WorkerId, n: int, *entries: Entry, known: int = 0) -> Plan:
    return Plan(
        stream=claim.stream, worker=worker, fence=claim.fence, n=n, entries=tuple(entries), known_seq=Seq(known)
    )


async def hammer(path: Path, name: str, streams: int, appends: int) -> None:
    """Own some streams, append to all of them at once, annotate streams of the other party; raise on any error."""
    worker = WorkerId(name)
    store = await opened(path, worker)
    claims = [await owned(store, f"{name}-{i}", worker) for i in range(streams)]

    async def work(claim: Claim) -> None:
        for n in range(1, appends + 1):
            await store.append(plan(claim, worker, n, entry(f"{name}.{n}")))
            if n % 5 == 0:
                await store.annotate(stream_named("shared"), entry(f"{name}.{n}"))

    await asyncio.gather(*(work(claim) for claim in claims))
    await store.deregister(worker)
    await store.close()


async def hold_and_hang(path: Path, name: str, streams: int) -> None:
    """Own some streams in the middle of a turn, fork a child that lives on, say so, and do nothing any more."""
    worker = WorkerId(name)
    store = await opened(path, worker)
    for i in range(streams):
        claim = await owned(store, f"{name}-{i}", worker)
        await store.append(plan(claim, worker, 1, entry("in the middle")))
    print(fork_a_sleeper(), flush=True)
    await asyncio.sleep(60)


async def append_and_checkpoint(path: Path, name: str) -> None:
    """Append to one stream until killed, and move the write-ahead log all the time. Print each durable append."""
    writer.CHECKPOINT_BYTES = 3 * writer.COMMIT_BYTES
    worker = WorkerId(name)
    store = await opened(path, worker)
    claim = await owned(store, name, worker)
    for n in count(1):
        await store.append(plan(claim, worker, n, entry(f"{name}.{n}")))
        print(n, flush=True)
        if n % 20 == 0:
            await asyncio.to_thread(store._empty_wal)  # pyright: ignore[reportPrivateUsage] - as a deletion does


def fork_a_sleeper() -> int:
    return fork(lambda: time.sleep(30))


def fork(work: Callable[[], int | None]) -> int:
    """Run something in a forked child, which then ends at once, whatever happened; its exit code is the result."""
    child = os.fork()
    if child:
        return child
    code: int | None = 99
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not the test runner's handler: that one raises
        signal.alarm(40)
        code = work()
    finally:
        os._exit(code or 0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["hammer", path, name, streams, appends]:
            asyncio.run(hammer(Path(path), name, int(streams), int(appends)))
        case ["hold", path, name, streams]:
            asyncio.run(hold_and_hang(Path(path), name, int(streams)))
        case ["checkpoint", path, name]:
            asyncio.run(append_and_checkpoint(Path(path), name))
        case other:
            raise SystemExit(f"unknown: {other}")
