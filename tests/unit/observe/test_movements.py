"""Commits of other processes: waiters of the moved streams poll again, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import cast

import pytest

from perdure.errors import Code, Error
from perdure.ids import Seq, StreamId
from perdure.observe.head_poller import HeadPoller
from perdure.observe.hub import PEOPLE, Hub, HubSubscription
from perdure.store.protocol import Store
from perdure.store.shapes import Head

ONE, TWO = StreamId("one"), StreamId("two")


class Heads:
    """Where streams end, as a store would tell it."""

    def __init__(self) -> None:
        self.stand: dict[StreamId, Head] = {ONE: Head(1, 0, Seq(5)), TWO: Head(2, 0, Seq(5))}
        self.asked: list[tuple[StreamId, ...]] = []
        self.away = False

    async def heads(self, streams: Sequence[StreamId]) -> dict[StreamId, Head]:
        if self.away:
            raise Error(Code.STORE_UNAVAILABLE, "away")
        self.asked.append(tuple(streams))
        return {stream: self.stand[stream] for stream in streams if stream in self.stand}


class Watch:
    """A hub with waiters, and their wakeups."""

    def __init__(self, stack: ExitStack) -> None:
        self.hub, self.store = Hub(), Heads()
        self.movements = HeadPoller(cast("Store", self.store), self.hub)
        self._stack = stack

    def waits(self, stream: StreamId, *, live: bool = False) -> HubSubscription:
        waiting = self._stack.enter_context(self.hub.subscribe(stream, live=live))
        waiting.look_again = False
        return waiting

    async def told(self, *waiting: HubSubscription) -> list[bool]:
        """Poll, and return which of the waiters were woken."""
        await self.movements.poll()
        told = [one.look_again for one in waiting]
        for one in waiting:
            one.look_again = False
        return told


@pytest.fixture
def watch() -> Iterator[Watch]:
    with ExitStack() as stack:
        yield Watch(stack)


async def test_moved_stream_wakes_its_own_waiters_only(watch: Watch) -> None:
    one, two = watch.waits(ONE), watch.waits(TWO)
    await watch.told(one, two)
    assert await watch.told(one, two) == [False, False]
    watch.store.stand[ONE] = Head(1, 0, Seq(6))
    assert await watch.told(one, two) == [True, False]
    assert await watch.told(one, two) == [False, False]


async def test_new_waiter_is_woken_at_the_first_poll(watch: Watch) -> None:
    one = watch.waits(ONE)
    assert await watch.told(one) == [True]
    assert await watch.told(one) == [False]
    two = watch.waits(TWO)
    assert await watch.told(one, two) == [False, True]


async def test_waiter_joining_a_known_stream_misses_no_movement(watch: Watch) -> None:
    first = watch.waits(ONE)
    await watch.told(first)
    second = watch.waits(ONE)
    watch.store.stand[ONE] = Head(1, 0, Seq(6))
    assert await watch.told(first, second) == [True, True]


async def test_deleted_created_or_recreated_stream_has_moved(watch: Watch) -> None:
    one, none = watch.waits(ONE), watch.waits(StreamId("not yet"))
    await watch.told(one, none)
    del watch.store.stand[ONE]
    assert (await watch.told(one, none))[0]
    watch.store.stand[StreamId("not yet")] = Head(3, 0, Seq(1))
    watch.store.stand[ONE] = Head(4, 0, Seq(5))
    assert await watch.told(one, none) == [True, True]
    watch.store.stand[ONE] = Head(5, 0, Seq(5))
    assert await watch.told(one, none) == [True, False]


async def test_observers_and_people_always_look(watch: Watch) -> None:
    observer, people, waiting = watch.waits(ONE, live=True), watch.waits(PEOPLE), watch.waits(ONE)
    await watch.told(observer, people, waiting)
    assert await watch.told(observer, people, waiting) == [True, True, False]
    assert watch.store.asked[-1] == (ONE,), "people are no stream"


async def test_poll_without_waiters_queries_nothing(watch: Watch) -> None:
    watch.waits(ONE, live=True)
    watch.waits(PEOPLE)
    await watch.told()
    assert watch.store.asked == []


async def test_a_look_that_failed_changes_nothing(watch: Watch) -> None:
    one = watch.waits(ONE)
    await watch.told(one)
    watch.store.stand[ONE] = Head(1, 0, Seq(6))
    watch.store.away = True
    with pytest.raises(Error):
        await watch.movements.poll()
    watch.store.away = False
    assert not one.look_again
    assert await watch.told(one) == [True]
