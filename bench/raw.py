"""The physical limit: bare loops that write the same rows.

w1a and w1b: one row per step through a writer thread with group commit (`--mode inline`: no thread). w2a and w2b: three
rows per turn. w3: a row and a future for each waiter. w4: load half of the rows, write the rest.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sqlite3
import threading
import time
from argparse import Namespace
from pathlib import Path

from load import ask
from measure import ANSWER, ARGUMENT, ASK, FOUND, PAYLOAD, cpu_s, options, rss_mb, speed, stored_bytes, tell


def connect(path: Path) -> sqlite3.Connection:
    """Open a database with the durability settings of Perdure."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS rows (flow, n, value, PRIMARY KEY (flow, n)) WITHOUT ROWID")
    return connection


class Writer:
    """A writer thread that commits all queued rows together."""

    def __init__(self, path: Path) -> None:
        self.commits = 0
        self._connection = connect(path)
        self._queue: queue.SimpleQueue[tuple[tuple[str, int, str], asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def write(self, flow: str, n: int, value: str) -> asyncio.Future[None]:
        written: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(((flow, n, value), written))
        return written

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._connection.close()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            while not self._queue.empty():
                item = self._queue.get()
                if item is None:
                    self._queue.put(None)  # stop after this batch
                    break
                batch.append(item)
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", [row for row, _ in batch])
            self._connection.execute("COMMIT")
            self.commits += 1
            self._loop.call_soon_threadsafe(_end, [written for _, written in batch])


def _end(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)


async def steps(chosen: Namespace) -> None:
    writer = Writer(chosen.dir / "raw.db")

    async def flow(name: str, count: int) -> None:
        for n in range(count):
            await writer.write(name, n, json.dumps(PAYLOAD))

    await flow("warm", 20)
    commits, cpu, began = writer.commits, cpu_s(), time.perf_counter()
    await asyncio.gather(*(flow(f"f{k}", chosen.steps) for k in range(chosen.workflows)))
    seconds, used = time.perf_counter() - began, cpu_s() - cpu
    writer.close()
    items = chosen.workflows * chosen.steps
    tell(**speed(items, seconds, used, commits_each=round((writer.commits - commits) / items, 3)))


def inline_steps(chosen: Namespace) -> None:
    connection = connect(chosen.dir / "raw.db")
    began = time.perf_counter()
    for n in range(chosen.steps):
        connection.execute("INSERT INTO rows VALUES (?, ?, ?)", ("f", n, json.dumps(PAYLOAD)))
    tell(**speed(chosen.steps, time.perf_counter() - began, 0.0, commits_each=1.0))


async def turns(chosen: Namespace) -> None:
    writer = Writer(chosen.dir / "raw.db")
    history: dict[str, list[str]] = {}

    async def turn(session: str) -> None:
        said = history.setdefault(session, [])
        for text in (ASK + ARGUMENT, FOUND, ANSWER):
            await writer.write(session, len(said), json.dumps({"role": "any", "content": text}))
            said.append(text)

    numbers = await ask(turn, chosen)
    writer.close()
    tell(**numbers, stored=stored_bytes(chosen.dir))


async def waiting(chosen: Namespace) -> None:
    writer = Writer(chosen.dir / "raw.db")
    before = rss_mb()
    futures: list[asyncio.Future[int]] = [asyncio.get_running_loop().create_future() for _ in range(chosen.workflows)]

    async def wait(future: asyncio.Future[int]) -> int:
        return await future

    tasks = [asyncio.create_task(wait(future)) for future in futures]
    await asyncio.sleep(0.5)
    added, began = rss_mb() - before, time.perf_counter()

    async def wake(k: int) -> None:
        await writer.write(str(k), 0, "go")
        futures[k].set_result(k)

    await asyncio.gather(*(wake(k) for k in range(chosen.workflows)))
    await asyncio.gather(*tasks)
    tell(
        waiting=chosen.workflows,
        added_mb=round(added, 2),
        idle_cpu=0.0,
        wake_all_s=round(time.perf_counter() - began, 3),
    )
    writer.close()


async def recovery(chosen: Namespace) -> None:
    writer, row = Writer(chosen.dir / "raw.db"), json.dumps(PAYLOAD)
    half = chosen.steps // 2
    await asyncio.gather(*(writer.write(str(k), n, row) for k in range(chosen.workflows) for n in range(half)))
    began = time.perf_counter()
    known: dict[str, list[object]] = {}
    for flow, value in sqlite3.connect(chosen.dir / "raw.db").execute("SELECT flow, value FROM rows ORDER BY flow, n"):
        known.setdefault(flow, []).append(json.loads(value))

    async def rest(flow: str, done: int) -> None:
        for n in range(done, chosen.steps):
            await writer.write(flow, n, row)

    await asyncio.gather(*(rest(flow, len(values)) for flow, values in known.items()))
    tell(all_done_s=round(time.perf_counter() - began, 3), done=len(known), steps_twice=0, steps_missing=0)
    writer.close()


def main() -> None:
    chosen = options("w1a", "w1b", "w2a", "w2b", "w3", "w4")
    if chosen.mode == "inline":
        inline_steps(chosen)
        return
    runs = {"w1a": steps, "w1b": steps, "w2a": turns, "w2b": turns, "w3": waiting, "w4": recovery}
    asyncio.run(runs[chosen.work](chosen))


if __name__ == "__main__":
    main()
