"""A run with a simulated end: its event loop stops at a boundary and never runs again.

Submitted writes are durable. Nothing else of the run reaches the store, a tool or the world. Only the rest of the
current loop round and the threads of sync tools still run, and the kit stops those at the gate.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import TypeVar

from perdure.store.protocol import Store
from perdure.testing.crash import Boundary, Gate
from perdure.testing.life import Home, Lived, Played, live

T = TypeVar("T")


def simulate(played: Played, home: Home, kill_at: Boundary | None) -> Lived:
    """Run the application on a separate event loop, which stops at the boundary and never runs again."""
    loop = asyncio.new_event_loop()
    passed: list[Boundary] = []

    def on_boundary(boundary: Boundary) -> None:
        passed.append(boundary)
        if kill_at and boundary.is_at(kill_at):
            gate.dead = True
            loop.call_soon_threadsafe(loop.stop)  # called from any thread: sync tools run on threads

    gate = Gate.at(kill_at, on_boundary)
    store = home.store()
    life = loop.create_task(live(played, home, gate, store))

    def stop(_: object) -> None:
        loop.stop()

    life.add_done_callback(stop)
    apart(loop.run_forever)
    life.remove_done_callback(stop)
    if gate.dead:
        _bury(home, store)
        return Lived(tuple(passed), died=True, unwind=lambda: apart(lambda: _unwind(loop, gate)))
    failure = _why(life)
    apart(lambda: _unwind(loop, gate))
    return Lived(tuple(passed), failure=failure)


def _bury(home: Home, store: Store) -> None:
    """Do what the end of a process does: free its locks and write what it had submitted."""

    async def close() -> None:
        if home.memory:
            for worker in await home.memory.workers():
                home.memory.kill(worker.id)
        await store.close()

    run_apart(close)


def _why(life: asyncio.Task[None]) -> str:
    problem = None if life.cancelled() else life.exception()
    if problem is None:
        return "the run was cancelled" if life.cancelled() else ""
    return "".join(traceback.format_exception(problem))


def _unwind(loop: asyncio.AbstractEventLoop, gate: Gate) -> None:
    """Close a dead loop. Cleanup takes several rounds, because each `finally` may wait again."""
    gate.dead = gate.unwinding = True
    loop.set_exception_handler(_ignore)
    for _ in range(50):
        left = asyncio.all_tasks(loop)
        if not left:
            break
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left, timeout=0.02))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Ignore the errors of a dead process's tasks."""


def apart(work: Callable[[], T]) -> T:
    """Run `work` where no event loop runs: on a new thread if this thread has one."""
    if not _in_a_loop():
        return work()
    done: list[T] = []
    problems: list[BaseException] = []

    def attempt() -> None:
        try:
            done.append(work())
        except BaseException as problem:  # noqa: BLE001 - re-raised in the calling thread
            problems.append(problem)

    thread = threading.Thread(target=attempt, name="perdure-testing")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return done[0]


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_apart(main: Callable[[], Coroutine[None, None, T]]) -> T:
    """Run a coroutine on a separate event loop."""
    return apart(lambda: asyncio.run(main()))
