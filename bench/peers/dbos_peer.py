"""DBOS Transact on SQLite with default settings: w1a, w1b, w3, w4."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dbos import DBOS, SetWorkflowID
from measure import PAYLOAD, StepLog, child, cpu_s, kill_and_start_again, options, rss_mb, speed, stored_bytes, tell

CHOSEN = options("w1a", "w1b", "w3", "w4", "w4child")
LOG = StepLog(CHOSEN.dir) if CHOSEN.work == "w4child" else None
GATE = asyncio.Event()
WOKEN: list[str] = []
DEADLINE = [float("inf")]


@DBOS.step()
async def step(name: str, n: int) -> object:
    if LOG:
        LOG.step(name, n)
    return PAYLOAD


@DBOS.workflow()
async def flow(name: str, count: int) -> int:
    if LOG:
        await GATE.wait()
    done = 0
    while done < count and time.perf_counter() < DEADLINE[0]:
        await step(name, done)
        done += 1
    if LOG:
        LOG.done(name)
    return done


@DBOS.workflow()
async def wait(name: str) -> None:
    WOKEN.append(str(await DBOS.recv_async("go", timeout_seconds=3600)))


def launch() -> None:
    url = CHOSEN.url or f"sqlite:///{CHOSEN.dir}/dbos.sqlite"
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "application_version": "1"})
    DBOS.launch()


async def steps() -> None:
    launch()
    with SetWorkflowID("warm"):
        await flow("warm", 5)
    DEADLINE[0] = time.perf_counter() + CHOSEN.cap
    cpu, began = cpu_s(), time.perf_counter()
    done = sum(await asyncio.gather(*(flow(f"f{k}", CHOSEN.steps) for k in range(CHOSEN.workflows))))
    seconds, used = time.perf_counter() - began, cpu_s() - cpu
    DBOS.destroy()
    tell(**speed(done, seconds, used, stored=stored_bytes(CHOSEN.dir)))


async def waiting() -> None:
    launch()
    before, began, at_once = rss_mb(), time.perf_counter(), asyncio.Semaphore(50)
    started: list[str] = []

    async def start(name: str) -> None:
        async with at_once:
            if time.perf_counter() - began < CHOSEN.cap:
                with SetWorkflowID(name):
                    await DBOS.start_workflow_async(wait, name)
                started.append(name)

    await asyncio.gather(*(start(f"w{k}") for k in range(CHOSEN.workflows)))
    start_s, added = time.perf_counter() - began, rss_mb() - before
    cpu = cpu_s()
    await asyncio.sleep(3)
    idle, began = (cpu_s() - cpu) / 3, time.perf_counter()

    async def wake(name: str) -> None:
        async with at_once:
            if time.perf_counter() - began < CHOSEN.cap:
                await DBOS.send_async(name, "go", "go")

    await asyncio.gather(*(wake(name) for name in started))
    while len(WOKEN) < len(started) and time.perf_counter() - began < 2 * CHOSEN.cap:
        await asyncio.sleep(0.05)
    all_s = time.perf_counter() - began
    tell(
        waiting=len(started),
        start_s=round(start_s, 2),
        added_mb=round(added, 2),
        idle_cpu=round(idle, 3),
        wake_all_s=round(all_s, 2),
        woken=len(WOKEN),
    )
    os._exit(0)


async def recovering() -> None:
    launch()
    if not CHOSEN.again:

        async def start(name: str) -> None:
            with SetWorkflowID(name):
                await DBOS.start_workflow_async(flow, name, CHOSEN.steps)

        await asyncio.gather(*(start(f"f{k}") for k in range(CHOSEN.workflows)))
    GATE.set()
    await asyncio.sleep(3600)


if __name__ == "__main__":
    if CHOSEN.work == "w4":
        kill_and_start_again(lambda again: child(CHOSEN, again), CHOSEN)
    else:
        asyncio.run({"w1a": steps, "w1b": steps, "w3": waiting, "w4child": recovering}[CHOSEN.work]())
