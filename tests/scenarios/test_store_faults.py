"""A store that fails in the middle of a turn: nothing is lost, nothing is done twice, the turn goes on by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest

from perdure import Agent, Code, Error, ProcessContext, Runtime, RuntimeOptions, Session, ToolContext, process, tool
from perdure.ids import StreamId, WorkerId
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import ref_of
from perdure.runtime.processes.handle import ProcessHandle
from perdure.store.protocol import Store
from perdure.store.shapes import EVERYTHING, ReadyStream, Serves
from perdure.testing.faults import Side, faulty_store
from perdure.vocab.messages import ToolResultPart
from perdure.vocab.records import EffectSettled, TurnEnded
from tests.scenarios.conftest import until

NewStore = Callable[[], Store]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("code", [Code.STORE_FULL, Code.STORE_UNAVAILABLE, Code.STORE_LOCKED])
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_a_failed_append_is_sorted_out_by_the_log(new_store: NewStore, at: int, side: Side, code: Code) -> None:
    ran: list[str] = []

    @tool
    async def charge(ctx: ToolContext) -> str:
        """Charge."""
        ran.append(ctx.idempotency_key)
        return "charged"

    store = faulty_store(new_store(), at=at, side=side, code=code, times=2 if side == "before" else 1)
    agent = Agent("a", model=ScriptedModel(call("charge"), say("ok")), tools=[charge])
    async with Runtime(store, agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go")
        result = await sent.result(timeout=20)
        assert result.status == "finished"
        rows = await session.journal()
        settled = [row.record.id for row in rows if isinstance(row.record, EffectSettled)]
        assert len(settled) == len(set(settled))
        assert sum(isinstance(row.record, TurnEnded) for row in rows) == 1
        results = [p for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)]
        assert len(ran) <= 1
        if side == "before" or at > 2:
            assert results[0].output == "charged", "the outcome was known: no doubt"
        elif not ran:
            # the intent became durable and its append failed: nothing was dispatched, and the log cannot show that
            assert results[0].output["code"] == "outcome_unknown"


async def over(session: Session) -> bool:
    rows = await session.journal()
    return [row.record.status for row in rows if isinstance(row.record, TurnEnded)] == ["finished"]


async def test_a_store_that_comes_back_finds_its_sessions_waiting_not_resting(
    new_store: NewStore, caplog: pytest.LogCaptureFixture
) -> None:
    """However often the store fails, the retry delay stays at most one second."""
    caplog.set_level(logging.WARNING, "perdure.runtime")
    store = faulty_store(new_store(), at=1, side="before", code=Code.STORE_UNAVAILABLE, times=6)
    async with Runtime(store, agents=[Agent("a", model=ScriptedModel(say("ok")))]) as rt:
        sent = await (await rt.session("s", agent="a")).send("go")
        assert (await sent.result(timeout=30)).status == "finished"
    rests = [
        float(told.split("trying again in ")[1].split()[0]) for told in caplog.messages if "trying again in" in told
    ]
    assert len(rests) == 6
    assert max(rests) <= 1.0


class Mumbling:
    """A store that takes what is ready and does not say so, once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.lost: list[ReadyStream] = []

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    async def claim_ready(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[ReadyStream, ...]:
        found = await self._store.claim_ready(worker, limit=limit, now=now, serves=serves)
        if any(ready.claim for ready in found) and not self.lost:
            self.lost.extend(found)
            raise Error(Code.STORE_UNAVAILABLE, "nobody heard the answer")
        return found


class Unscannable:
    """A store that cannot be scanned for work for some time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = False
        self.refused = 0

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    async def claimable(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[StreamId, ...]:
        if self.away:
            self.refused += 1
            raise Error(Code.STORE_UNAVAILABLE, "the store is away")
        return await self._store.claimable(worker, limit=limit, now=now, serves=serves)


async def test_news_during_an_outage_is_read_afterwards(new_store: NewStore) -> None:
    @process
    async def patient(ctx: ProcessContext) -> str:
        return str(await ctx.wait_for_event("news"))

    store = Unscannable(new_store())
    async with Runtime(cast(Store, store), processes=[patient]) as rt:
        handle = await rt.start(patient, id="p")
        await until(lambda: waits(handle))
        store.away = True
        async with Runtime(new_store(), worker=False) as elsewhere:
            await elsewhere.processes.from_json("p").resolve("news", "came")
        await until(lambda: answered(store.refused >= 8))
        store.away = False
        assert await handle.result(timeout=15) == "came", "it waits in memory for 30 s at most, and the poll was lost"


async def waits(handle: ProcessHandle) -> bool:
    return bool((await handle.info()).waiting)


async def answered(truth: bool) -> bool:
    return truth


async def test_turn_with_a_lost_claim_reply_is_served(new_store: NewStore) -> None:
    @tool(effect="pure")
    async def ponder() -> str:
        """Ponder."""
        if not mumbling.lost:
            pondering.set()
            await asyncio.sleep(60)
        return "pondered"

    mumbling, pondering = Mumbling(new_store()), asyncio.Event()
    agent = Agent("a", model=ScriptedModel(call("ponder"), say("ok")), tools=[ponder])
    async with Runtime(new_store(), agents=[agent], options=RuntimeOptions(drain_s=0)) as rt:
        sent = await (await rt.session("s", agent="a")).send("go")
        async with asyncio.timeout(20):
            await pondering.wait()
    async with Runtime(cast("Store", mumbling), agents=[agent]) as rt:
        session = rt.get_session("s")
        await until(lambda: over(session), seconds=40)
    assert [ready.stream for ready in mumbling.lost] == [ref_of(sent.session).stream]
