"""Whoever waits for another process looks when there is something to see, and is not kept busy by all else."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from perdure import Agent, Runtime, tool
from perdure.ids import StreamId
from perdure.models.scripted import ScriptedModel, call, say
from perdure.vocab.records import Row
from tests.scenarios.conftest import NewStore


async def test_who_waits_for_one_turn_does_not_look_whenever_another_goes_on(
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
        assert looks[busy.stream] >= 8
        assert looks[sent.session.stream] <= 2
        door.set()
        assert (await result).status == "finished"
