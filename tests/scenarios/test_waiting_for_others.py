"""Waits for another process: polls follow its commits, and unrelated commits cause none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest

from perdure import Agent, Runtime, tool
from perdure.ids import StreamId
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime import lifetime
from perdure.runtime.internals import core_of, ref_of
from perdure.store.shapes import Head
from perdure.vocab.records import Row
from tests.scenarios.conftest import NewStore


async def test_waiter_polls_only_when_its_own_stream_moves(
    new_store: NewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, door, looks = asyncio.Event(), asyncio.Event(), Counter[StreamId]()

    @tool(effect="idempotent")
    async def wait_at_the_door() -> str:
        """Wait until it opens."""
        inside.set()
        await door.wait()
        return "in"

    agents = [
        Agent("slow", model=ScriptedModel(call("wait_at_the_door"), say("done")), tools=[wait_at_the_door]),
        Agent("quick", model=ScriptedModel(*[say("fine")] * 10)),
    ]
    store = new_store()
    find = store.find

    async def noting(stream: StreamId, key: str) -> Row | None:
        looks[stream] += 1
        return await find(stream, key)

    async with Runtime(new_store(), agents=agents), Runtime(store, agents=agents, worker=False) as rt:
        sent = await (await rt.session("slow", agent="slow")).send("go in")
        result = asyncio.create_task(sent.result(timeout=20))
        busy = await rt.session("busy", agent="quick")
        await inside.wait()
        for _ in range(2):  # all that the first turn has written so far is seen by then
            await busy.ask("hi", timeout=20)
        monkeypatch.setattr(store, "find", noting)
        for _ in range(8):
            await busy.ask("hi", timeout=20)
        assert looks[ref_of(busy).stream] >= 8
        assert looks[ref_of(sent.session).stream] <= 2
        door.set()
        assert (await result).status == "finished"


# --- when something goes wrong on the way


@pytest.fixture
async def apart(new_store: NewStore) -> AsyncIterator[Runtime]:
    """A runtime that only sends; the work is done by another one."""
    agents = [Agent("quick", model=ScriptedModel(*[say("fine")] * 10))]
    async with Runtime(new_store(), agents=agents), Runtime(new_store(), agents=agents, worker=False) as rt:
        yield rt


async def answered(rt: Runtime) -> None:
    assert await (await rt.session("s", agent="quick")).ask("hi", timeout=20)


async def test_slow_poll_does_not_delay_the_next_notification(apart: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "RESPITE", 1e9)
    for _ in range(3):
        await answered(apart)


async def test_failed_poll_is_repeated(apart: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    heads, failed = core_of(apart).store.heads, asyncio.Event()

    async def broken(streams: Sequence[StreamId]) -> dict[StreamId, Head]:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        return await heads(streams)

    monkeypatch.setattr(core_of(apart).store, "heads", broken)
    for _ in range(3):
        await answered(apart)
    assert failed.is_set()


async def test_waiter_sees_a_commit_without_notification(apart: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a worker that was killed between its commit and telling of it."""
    version = await core_of(apart).store.version()

    async def as_ever() -> int:
        return version

    monkeypatch.setattr(core_of(apart).store, "version", as_ever)
    await answered(apart)
