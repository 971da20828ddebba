"""Absurd on Postgres: w1a, w1b. A worker has one connection, so 20 workers share the 50 workflows."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL
from measure import PAYLOAD, cpu_s, options, speed, tell

CHOSEN = options("w1a", "w1b")
CLIENTS = 20
DONE: list[int] = []


async def step() -> object:
    return PAYLOAD


async def client() -> Any:
    app: Any = AsyncAbsurd(CHOSEN.url)

    @app.register_task("flow")
    async def flow(given: dict[str, int], ctx: Any) -> int:
        for _ in range(given["steps"]):
            await ctx.step("step", step)
        DONE.append(given["steps"])
        return given["steps"]

    await app._ensure_connected()
    return app


async def main() -> None:
    with psycopg.connect(CHOSEN.url, autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL)
        connection.execute("select absurd.create_queue('default')")
    clients = [await client() for _ in range(min(CLIENTS, CHOSEN.workflows))]
    each = -(-CHOSEN.workflows // len(clients))
    for _ in range(CHOSEN.workflows):
        await clients[0].spawn("flow", {"steps": CHOSEN.steps})
    cpu, began = cpu_s(), time.perf_counter()
    workers = [asyncio.create_task(one.start_worker(concurrency=each, poll_interval=0.05)) for one in clients]
    while len(DONE) < CHOSEN.workflows and time.perf_counter() - began < CHOSEN.cap:
        await asyncio.sleep(0.002)
    seconds, used = time.perf_counter() - began, cpu_s() - cpu
    tell(**speed(sum(DONE), seconds, used, workers=len(workers)))
    os._exit(0)


asyncio.run(main())
