"""A write lane: repeated single appends take the single path, and every caller gets its reply in order."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Coroutine
from typing import Any

import pytest

from perdure.store.postgres.writer import SOLO, Lane, PgWrite

Jobs = deque[PgWrite[int, int]]


class Ways:
    """Both write paths, which record their calls; the single one waits until it is released."""

    def __init__(self) -> None:
        self.together: list[list[int]] = []
        self.alone: list[int] = []
        self.server: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.closed = False
        self.lane: Lane[int, int] = Lane(self._commit, abreast=2, shortcut=self._shortcut)

    async def _commit(self, queue: Jobs) -> bool:
        jobs = [queue.popleft() for _ in range(len(queue))]
        self.together.append([job.item for job in jobs])
        await asyncio.sleep(0)
        for job in jobs:
            job.result = -job.item
            job.settle()
        return True

    def _shortcut(self, job: PgWrite[int, int]) -> Coroutine[Any, Any, bool] | None:
        return None if self.closed else self._go(job)

    async def _go(self, job: PgWrite[int, int]) -> bool:
        self.alone.append(job.item)
        job.result = job.item
        return await self.server

    def answers(self, done: bool) -> None:
        self.server.set_result(done)
        self.server = asyncio.get_running_loop().create_future()

    async def warm(self) -> None:
        """So many have come one by one that the next is not expected to have company."""
        for item in range(SOLO):
            await self.lane.submit(100 + item)
        self.together.clear()


@pytest.fixture
async def ways() -> Ways:
    ways = Ways()
    await ways.warm()
    return ways


async def test_repeated_single_append_starts_at_once_without_task(ways: Ways) -> None:
    tasks = asyncio.all_tasks()
    answer = ways.lane.submit(1)
    assert ways.alone == [1]
    assert asyncio.all_tasks() == tasks
    ways.answers(True)
    assert await answer == 1
    assert ways.together == []


async def test_append_without_single_path_joins_the_batch(ways: Ways) -> None:
    ways.closed = True
    assert await ways.lane.submit(1) == -1
    assert (ways.alone, ways.together) == ([], [[1]])


async def test_failed_single_append_leads_the_next_batch(ways: Ways) -> None:
    first = ways.lane.submit(1)
    ways.answers(False)
    second = ways.lane.submit(2)
    assert [await first, await second] == [-1, -2]
    assert ways.together == [[1, 2]]
    third = ways.lane.submit(3)
    assert (await third, ways.alone) == (-3, [1]), "there was company: a few must come alone again"


async def test_concurrent_append_does_not_wait_for_a_single_one(ways: Ways) -> None:
    first = ways.lane.submit(1)
    assert await ways.lane.submit(2) == -2
    assert not first.done()
    ways.answers(True)
    assert await first == 1


async def test_cancelled_caller_cancels_no_append(ways: Ways) -> None:
    server, answer = ways.server, ways.lane.submit(1)
    answer.cancel()
    await asyncio.sleep(0)
    assert not server.cancelled()
    ways.answers(True)
    await ways.lane.finish()
    again = ways.lane.submit(2)
    ways.answers(True)
    assert await again == 2


async def test_callback_runs_outside_exception_handling(ways: Ways) -> None:
    answer = ways.lane.submit(1)
    handled: list[object] = []
    answer.then = lambda _: handled.append(sys.exc_info()[1])
    ways.answers(True)
    await answer
    assert handled == [None]


async def test_lane_end_waits_for_a_single_append(ways: Ways) -> None:
    answer = ways.lane.submit(1)
    end = asyncio.create_task(ways.lane.finish())
    await asyncio.sleep(0)
    assert not end.done()
    ways.answers(False)
    await end
    assert await answer == -1


async def test_any_number_may_wait_for_the_end_and_go_away(ways: Ways) -> None:
    answer = ways.lane.submit(1)
    gone, *ends = [asyncio.create_task(ways.lane.finish()) for _ in range(3)]
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait({gone})
    ways.answers(True)
    async with asyncio.timeout(5):
        await asyncio.gather(*ends)
    assert await answer == 1


async def test_lane_task_cancelled_before_its_start_is_replaced(ways: Ways) -> None:
    ways.closed = True
    answer = ways.lane.submit(1)
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "perdure:lane"]
    task.cancel()
    async with asyncio.timeout(5):
        await ways.lane.finish()
        assert await answer == -1


async def test_a_way_that_waits_more_than_once_comes_to_its_end(ways: Ways) -> None:
    async def twice(job: PgWrite[int, int]) -> bool:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        job.result = 7
        return True

    ways.lane._shortcut = twice  # pyright: ignore[reportPrivateUsage] - another way
    assert await ways.lane.submit(1) == 7
