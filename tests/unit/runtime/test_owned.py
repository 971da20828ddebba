"""The writing end of a stream, where the store completes an append inline: waiters resume within that call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from perdure.commit.plan import Plan, Receipt
from perdure.ids import Fence, Seq, StreamId, WorkerId
from perdure.runtime.clock import SystemClock
from perdure.runtime.worker.owned import OwnedStream
from perdure.store.answer import Answer
from perdure.store.protocol import Store
from perdure.store.shapes import Counters
from perdure.vocab.records import TitleSet


class Later:
    """A store that answers when it is told to, from outside every task."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.asked: list[tuple[Plan, Answer[Receipt]]] = []
        self.seq = 0
        self.lapsed = 0

    def lease_live(self, worker: WorkerId) -> bool:
        return True

    def lapses(self, worker: WorkerId) -> int:
        return self.lapsed

    async def renew(self, worker: WorkerId) -> None:
        pass

    def append(self, plan: Plan) -> Answer[Receipt]:
        answer = Answer[Receipt](loop=asyncio.get_running_loop())
        self.asked.append((plan, answer))
        return answer

    def titles(self) -> list[list[bytes]]:
        return [[entry.data for entry in plan.entries] for plan, _ in self.asked]

    async def answer(self, *, alone: bool) -> None:
        plan, answer = self.asked[-1]
        first, self.seq = self.seq + 1, self.seq + len(plan.entries)
        answer.set_result(Receipt(plan.stream, plan.fence, plan.n, Seq(first), Seq(self.seq)))
        answer.alone = alone
        await _from_outside(answer.tell)


async def _from_outside(call: Callable[[], None]) -> None:
    called = asyncio.get_running_loop().create_future()

    def outside() -> None:
        try:
            call()
        except SystemExit as end:  # which would end the event loop
            called.set_exception(end)
        else:
            called.set_result(None)

    asyncio.get_running_loop().call_soon(outside)
    await called


@pytest.fixture
def store() -> Later:
    return Later()


@pytest.fixture
def owned(store: Later) -> OwnedStream:
    of = StreamId("default:session:s"), WorkerId("ann"), Fence(1), Seq(0), SystemClock()
    return OwnedStream(cast("Store", store), *of, lambda _: None)


async def goes_on(owned: OwnedStream, title: str, *, waits: bool) -> None:
    await owned.durable()
    owned.submit(TitleSet(title=title))
    if waits:
        await owned.durable()
    else:
        await asyncio.sleep(0)


@pytest.mark.parametrize("waits", [False, True])
async def test_records_submitted_by_a_resumed_task_are_appended(owned: OwnedStream, store: Later, waits: bool) -> None:
    owned.submit(TitleSet(title="one"))
    tasks = [asyncio.create_task(goes_on(owned, title, waits=waits)) for title in ("two",)]
    await asyncio.sleep(0)
    await store.answer(alone=True)
    assert store.titles() == [[b'{"title":"one"}'], [b'{"title":"two"}']]
    await store.answer(alone=True)
    await asyncio.gather(*tasks)
    assert owned.settled


async def test_records_of_all_resumed_tasks_share_one_append(owned: OwnedStream, store: Later) -> None:
    owned.submit(TitleSet(title="one"))
    tasks = [asyncio.create_task(goes_on(owned, title, waits=False)) for title in ("two", "three")]
    await asyncio.sleep(0)
    await store.answer(alone=True)
    assert store.titles()[1:] == [[b'{"title":"two"}', b'{"title":"three"}']]
    await asyncio.gather(*tasks)


async def test_task_ending_the_loop_does_not_lose_other_records(owned: OwnedStream, store: Later) -> None:
    async def ends() -> None:
        await owned.durable()
        owned.submit(TitleSet(title="two"))
        raise SystemExit

    owned.submit(TitleSet(title="one"))
    tasks = asyncio.create_task(ends()), asyncio.create_task(owned.durable())
    await asyncio.sleep(0)
    with pytest.raises(SystemExit):
        await store.answer(alone=True)
    assert store.titles()[1:] == [[b'{"title":"two"}']]
    await asyncio.wait_for(tasks[1], 1)
    assert isinstance(tasks[0].exception(), SystemExit)


async def test_waiter_of_a_shared_reply_resumes_one_iteration_later(owned: OwnedStream, store: Later) -> None:
    owned.submit(TitleSet(title="one"))
    task = asyncio.create_task(goes_on(owned, "two", waits=True))
    await asyncio.sleep(0)
    plan, answer = store.asked[0]
    seen: list[int] = []

    def both() -> None:
        answer.set_result(Receipt(plan.stream, plan.fence, plan.n, Seq(1), Seq(1)))
        answer.tell()
        seen.append(len(store.asked))

    await _from_outside(both)
    assert seen == [1], "callers of the same reply come first"
    await asyncio.sleep(0)
    assert len(store.asked) == 2
    store.seq = 1
    await store.answer(alone=False)
    await task


async def test_s3_x10_lease_renewed_after_a_lapse_permits_nothing_before_an_append(
    owned: OwnedStream, store: Later
) -> None:
    """X10: the heartbeat may renew a lapsed lease after another worker has claimed the stream."""
    assert owned.lease_live()
    owned.submit(TitleSet(title="sent before the lapse"))
    owned.flush()
    store.lapsed += 1
    assert not owned.lease_live()
    await store.answer(alone=True)
    assert not owned.lease_live(), "that append may have been written before another worker's claim"
    reasserting = asyncio.create_task(owned.reassert())
    while len(store.asked) < 2:  # noqa: ASYNC110 - a task submits it
        await asyncio.sleep(0)
    assert not owned.lease_live()
    await store.answer(alone=True)
    await reasserting
    assert owned.lease_live()
