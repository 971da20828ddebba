import asyncio
import threading

import pytest

from perdure.tools.threads import NotStarted, Returned, ThreadJob, ToolThreads


class Gate:
    """A job that waits in its thread until it is let go."""

    def __init__(self, threads: ToolThreads) -> None:
        self._loop = asyncio.get_running_loop()
        self._inside = asyncio.Event()
        self.release = threading.Event()
        self.job: ThreadJob = threads.submit(self._wait)

    def _wait(self) -> bool:
        self._loop.call_soon_threadsafe(self._inside.set)
        return self.release.wait(20)

    async def entered(self) -> ThreadJob:
        await self._inside.wait()
        return self.job


async def test_jobs_run_side_by_side_up_to_the_bound() -> None:
    threads = ToolThreads(3)
    meeting = threading.Barrier(3, timeout=5)
    ended = await asyncio.gather(*(threads.submit(meeting.wait).future for _ in range(3)))
    assert all(isinstance(one, Returned) for one in ended)
    assert threads.size == 3
    assert threads.close(5000) == 0
    assert threads.size == 0


async def test_no_more_threads_than_allowed_and_everything_still_runs() -> None:
    threads = ToolThreads(2)
    seen: set[str] = set()
    jobs = [threads.submit(lambda: seen.add(threading.current_thread().name)) for _ in range(50)]
    await asyncio.gather(*(job.future for job in jobs))
    assert 1 <= len(seen) <= 2
    assert threads.close(5000) == 0


async def test_an_idle_thread_is_used_again() -> None:
    threads = ToolThreads(8)
    for _ in range(10):
        await threads.submit(lambda: None).future
    assert threads.size == 1
    assert threads.close(5000) == 0


async def test_closing_drops_what_has_not_started_and_waits_for_what_has() -> None:
    threads = ToolThreads(1)
    gate = Gate(threads)
    waiting = threads.submit(lambda: None)
    running = await gate.entered()
    assert threads.close(1) == 1
    assert isinstance(await waiting.future, NotStarted)
    gate.release.set()
    assert await running.future == Returned(True)
    assert threads.close(5000) == 0
    assert isinstance(await threads.submit(lambda: None).future, NotStarted)


async def test_a_job_can_be_withdrawn_only_before_it_starts() -> None:
    threads = ToolThreads(1)
    gate = Gate(threads)
    waiting = threads.submit(lambda: None)
    running = await gate.entered()
    assert threads.withdraw(waiting, "no")
    assert not threads.withdraw(waiting, "no")
    assert await waiting.future == NotStarted("no")
    assert not threads.withdraw(running, "no")
    gate.release.set()
    await running.future
    assert not threads.abandon(running)
    assert threads.close(5000) == 0


async def test_a_queue_behind_an_abandoned_job_moves_on() -> None:
    threads = ToolThreads(1)
    gate = Gate(threads)
    waiting = threads.submit(lambda: 7)
    stuck = await gate.entered()
    assert threads.abandon(stuck)
    assert not threads.abandon(stuck)
    assert await waiting.future == Returned(7)
    assert (threads.abandoned, threads.size) == (1, 1)
    gate.release.set()
    await stuck.future
    assert threads.close(5000) == 0


async def test_an_abandoned_thread_ends_when_it_comes_back() -> None:
    threads = ToolThreads(1)
    gate = Gate(threads)
    stuck = await gate.entered()
    assert threads.abandon(stuck)
    gate.release.set()
    await stuck.future
    assert stuck.thread
    stuck.thread.join(5)
    assert not stuck.thread.is_alive()
    assert threads.size == 0
    assert await threads.submit(lambda: 7).future == Returned(7)
    assert threads.size == 1
    assert threads.close(5000) == 0


async def test_without_a_thread_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert await ToolThreads(1).submit(lambda: 1).future == NotStarted("no thread could be started")


def test_thread_returning_after_its_loop_closed_is_harmless() -> None:
    threads = ToolThreads(1)

    async def leave() -> threading.Event:
        gate = Gate(threads)
        await gate.entered()
        return gate.release

    asyncio.run(leave()).set()
    assert threads.close(5000) == 0
