"""Thousands of sessions parked inside a resumable tool, or on an approval, cost rows in the store and nothing else."""

from __future__ import annotations

import asyncio
import gc
import linecache
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from perdure import Agent, Runtime, RuntimeOptions, ToolContext, tool
from perdure.models.protocol import ModelEvent, ModelRequest
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.sessions.session import Session
from perdure.runtime.turns.in_flight import InFlight
from perdure.runtime.turns.session_host import SessionHost
from perdure.store.sqlite.store import SqliteStore
from perdure.tools.body import Body
from perdure.tools.decorator import Tool
from tests.scenarios.conftest import until

WARM = 3_000
SESSIONS = 10_000
KEPT = (SessionHost, InFlight, Body)


class Forgetful(ScriptedModel):
    """Keeps no list of what it was asked."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.clear()
        async for event in super().stream(request):
            yield event


def parked_in(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        [(count,)] = connection.execute("SELECT count(*) FROM streams WHERE parked AND owner IS NULL")
    return count


def running_threads() -> int:
    """All except the store's few readers, which begin when they are first needed."""
    return sum(not thread.name.startswith("perdure-reader") for thread in threading.enumerate())


def kept_objects() -> list[object]:
    return [thing for thing in gc.get_objects() if isinstance(thing, KEPT)]


@tool(effect="resumable", name="act")
async def wait_inside(ctx: ToolContext) -> object:
    """Wait for an answer."""
    return await ctx.wait_for_event("answer")


async def answer(session: Session) -> None:
    await session.resolve("answer", 42)


@tool(needs_approval=True, name="act")
async def wait_before() -> str:
    """Wait to be allowed."""
    return "done"


async def approve(session: Session) -> None:
    [asked] = await session.pending()
    assert asked.kind == "approval"
    await ref_of(session).runtime.approvals.approve(asked.id, by="ana")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("act", "wake"), [(wait_inside, answer), (wait_before, approve)], ids=["body", "approval"])
async def test_ten_thousand_parked_sessions_keep_no_task_no_thread_and_no_memory(
    act: Tool[..., object], wake: Callable[[Session], Awaitable[None]], tmp_path: Path
) -> None:
    of_other_tests = {id(thing) for thing in kept_objects()}  # such as those in the traceback of a failure
    model = Forgetful(call("act"), say("ok"))
    store = SqliteStore(tmp_path / "s.db", SystemClock(), synchronous="NORMAL")
    async with Runtime(
        store, agents=[Agent("a", model=model, tools=[act])], options=RuntimeOptions(idle_timeout_s=0)
    ) as rt:
        tasks, threads = len(asyncio.all_tasks()), running_threads()

        async def park(first: int, last: int) -> int:
            """Park these; how many pieces of memory the interpreter then has in use."""
            for start in range(first, last, 200):
                new = [await rt.session(f"s{n}", agent="a") for n in range(start, start + 200)]
                await asyncio.gather(*(session.send("go") for session in new))
                del new

            async def all_parked() -> bool:
                return parked_in(tmp_path / "s.db") == last

            await until(all_parked, seconds=300, every=0.5)
            await asyncio.sleep(0.3)
            linecache.clearcache()  # the stack in the report of a blocked loop reads whole source files
            gc.collect()
            return sys.getallocatedblocks()

        few = await park(0, WARM)  # until the caches are full
        many = await park(WARM, SESSIONS)
        assert many - few < (SESSIONS - WARM) / 2, "more than nothing is kept for a session"
        assert len(asyncio.all_tasks()) == tasks
        assert running_threads() <= threads
        assert [thing for thing in kept_objects() if id(thing) not in of_other_tests] == []
        worker = core_of(rt).worker
        assert worker is not None
        assert worker.stream_pool.hosts == {}

        some = [rt.get_session(f"s{n}") for n in range(0, SESSIONS, 500)]
        for session in some:
            await wake(session)

        async def answered() -> bool:
            return all([(await session.why()).status == "idle" for session in some])

        await until(answered, seconds=60)
