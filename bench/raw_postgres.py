"""The physical limit on Postgres: bare asyncpg loops that write the same rows.

w1a: one row per commit on one connection. w1b: 50 tasks whose rows share one statement and one commit. w2a and w2b:
three rows per turn; in w2b, one commit for the rows of all sessions.
"""

from __future__ import annotations

import asyncio
import json
import time
from argparse import Namespace

import asyncpg
from load import ask
from measure import ANSWER, ARGUMENT, ASK, FOUND, PAYLOAD, cpu_s, options, speed, tell

INSERT = "INSERT INTO rows SELECT * FROM unnest($1::text[], $2::int[], $3::text[])"

Row = tuple[str, int, str]


class Writer:
    """A connection that commits all queued rows together."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.commits = 0
        self._connection = connection
        self._queued: list[tuple[Row, asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None

    def write(self, *row: str | int) -> asyncio.Future[None]:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queued.append((row, written))  # type: ignore[arg-type]
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())
        return written

    async def _flush(self) -> None:
        while self._queued:
            batch, self._queued = self._queued, []
            await self._connection.execute(
                INSERT, *(list(column) for column in zip(*(row for row, _ in batch), strict=True))
            )
            self.commits += 1
            for _, written in batch:
                written.set_result(None)


async def open_writer(chosen: Namespace) -> Writer:
    connection = await asyncpg.connect(chosen.url)
    await connection.execute("CREATE TABLE rows (flow text, n int, value text, PRIMARY KEY (flow, n))")
    return Writer(connection)


async def steps(chosen: Namespace) -> None:
    writer = await open_writer(chosen)

    async def flow(name: str, count: int) -> None:
        for n in range(count):
            await writer.write(name, n, json.dumps(PAYLOAD))

    await flow("warm", 20)
    commits, cpu, began = writer.commits, cpu_s(), time.perf_counter()
    await asyncio.gather(*(flow(f"f{k}", chosen.steps) for k in range(chosen.workflows)))
    seconds, used = time.perf_counter() - began, cpu_s() - cpu
    items = chosen.workflows * chosen.steps
    tell(**speed(items, seconds, used, commits_each=round((writer.commits - commits) / items, 3)))


async def turns(chosen: Namespace) -> None:
    writer = await open_writer(chosen)
    history: dict[str, list[str]] = {}

    async def turn(session: str) -> None:
        said = history.setdefault(session, [])
        for text in (ASK + ARGUMENT, FOUND, ANSWER):
            await writer.write(session, len(said), json.dumps({"role": "any", "content": text}))
            said.append(text)

    tell(**await ask(turn, chosen))


def main() -> None:
    chosen = options("w1a", "w1b", "w2a", "w2b")
    asyncio.run((steps if chosen.work.startswith("w1") else turns)(chosen))


if __name__ == "__main__":
    main()
