"""Several processes on one file: dense logs, instant takeover, and no surviving of a fork."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path

import pytest

from perdure.errors import Code, Error
from perdure.ids import WorkerId
from perdure.inbox.admit import delivery
from perdure.inbox.items import Wake
from perdure.store.shapes import AlreadyOwned, Claim
from perdure.store.sqlite import SqliteStore
from tests.unit.store.parties import RealClock, entry, fork, opened, owned, plan, stream_named

ANN, BOB = WorkerId("ann"), WorkerId("bob")


def party(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.unit.store.parties", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def bob_holds_three(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that owns bob-0 to bob-2, and has a forked child which outlives it."""
    with party("hold", path, "bob", 3) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        yield holder
        os.kill(child, signal.SIGKILL)
        holder.kill()


async def test_two_processes_hammer_twenty_streams_and_no_error_surfaces(path: Path) -> None:
    store = await opened(path, ANN)
    await store.admit(delivery(stream_named("shared"), "open", Wake(reason="x"), at=1, agent="a"))
    parties = [party("hammer", path, name, 10, 100) for name in ("left", "right")]
    for one in parties:
        _, complaints = await asyncio.to_thread(one.communicate, timeout=45)
        assert (one.returncode, complaints) == (0, "")
    for name in ("left", "right"):
        for i in range(10):
            rows = await store.read(stream_named(f"{name}-{i}"))
            assert [row.seq for row in rows] == list(range(1, 102))
    shared = await store.read(stream_named("shared"))
    assert [row.seq for row in shared] == list(range(1, 2 * 10 * 20 + 2))
    assert [worker.id for worker in await store.workers()] == [ANN]
    assert {line.status for line in await store.check() if line.what != "leases"} == {"ok"}
    await store.close()


async def test_the_streams_of_a_killed_process_are_free_at_once(
    path: Path, bob_holds_three: subprocess.Popen[str], store: SqliteStore
) -> None:
    streams = {stream_named(f"bob-{i}") for i in range(3)}
    assert await store.claimable(ANN, limit=10, now=0) == ()
    assert await store.claim(stream_named("bob-0"), ANN) == AlreadyOwned(BOB)
    assert not await store.is_dead(BOB)

    bob_holds_three.send_signal(signal.SIGKILL)
    await asyncio.to_thread(bob_holds_three.wait)
    (bob,) = [worker for worker in await store.workers() if worker.id == BOB]
    assert bob.lease_until - RealClock().monotonic_ms() > 0, "the lease had not lapsed"
    assert await store.is_dead(BOB)
    assert set(await store.claimable(ANN, limit=10, now=0)) == streams
    claim = await store.claim(stream_named("bob-0"), ANN)
    assert isinstance(claim, Claim)
    assert (claim.previous, claim.fence) == (BOB, 2)


async def test_a_stopped_process_is_not_certainly_dead(
    path: Path, bob_holds_three: subprocess.Popen[str], store: SqliteStore
) -> None:
    bob_holds_three.send_signal(signal.SIGSTOP)
    assert not await store.is_dead(BOB)
    assert await store.claim(stream_named("bob-0"), ANN) == AlreadyOwned(BOB)


async def test_dead_workers_without_streams_are_removed(path: Path) -> None:
    store = await opened(path, ANN)
    claim = await owned(store, "one", ANN)
    store.abandon(ANN)
    await store.register(BOB, pid=1, version="1", now=0)
    assert {worker.id for worker in await store.workers()} == {ANN, BOB}
    assert isinstance(await store.claim(claim.stream, BOB), Claim)
    await store.register(WorkerId("cid"), pid=1, version="1", now=0)
    assert {worker.id for worker in await store.workers()} == {BOB, WorkerId("cid")}
    await store.close()


async def test_a_worker_of_another_boot_is_dead(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.store.sqlite.store.boot_id", lambda: "yesterday")
    before = await opened(path, BOB)
    await owned(before, "one", BOB)
    monkeypatch.undo()
    store = await opened(path, ANN)
    assert await store.is_dead(BOB)
    assert isinstance(await store.claim(stream_named("one"), ANN), Claim)
    await before.close()
    await store.close()


async def test_one_worker_name_is_not_held_twice(path: Path) -> None:
    store = await opened(path, ANN)
    other = SqliteStore(path, RealClock())
    await other.open()
    with pytest.raises(Error) as caught:
        await other.register(ANN, pid=1, version="1", now=0)
    assert caught.value.code is Code.STORE_FAILED
    await other.close()
    await store.close()


async def test_a_worker_name_may_be_anything(path: Path) -> None:
    store = await opened(path, ANN)
    for name in ("../../escape", "host/4:7 %", ".hidden", "x" * 400, "ünï"):
        await store.register(WorkerId(name), pid=1, version="1", now=0)
        assert not await store.is_dead(WorkerId(name))
    assert not (path.parent.parent / "escape.lock").exists()
    await store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_forked_child_is_refused_and_the_parent_keeps_its_lock(path: Path) -> None:
    store = await opened(path, ANN)
    claim = await owned(store, "one", ANN)
    child = fork(lambda: _in_child(store, claim))
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    other = await opened(path, BOB)
    assert not await other.is_dead(ANN)
    assert (await store.append(plan(claim, ANN, 1, entry("parent")))).first_seq == 2
    await other.close()
    await store.close()


def _in_child(store: SqliteStore, claim: Claim) -> int:
    """Every call must be refused; the exit code says how many were not."""
    signal.alarm(3)  # a call that is not refused may wait for a thread that does not exist here

    async def calls() -> int:
        tries = [
            store.open(),
            store.register(BOB, pid=1, version="1", now=0),
            store.renew(ANN),
            store.deregister(ANN),
            store.workers(),
            store.is_dead(ANN),
            store.claim(claim.stream, ANN),
            store.claimable(ANN, limit=1, now=0),
            store.load(claim.stream, code="1"),
            store.read(claim.stream),
            store.stream(claim.stream),
            store.next_due(),
            store.version(),
            store.check(),
            _append(store, claim),
        ]
        codes = [r.code if isinstance(r, Error) else None for r in await _each(tries)]
        return sum(code is not Code.RUNTIME_FORKED for code in codes)

    asyncio.set_event_loop(None)
    asyncio.events._set_running_loop(None)
    return asyncio.new_event_loop().run_until_complete(calls())


async def _append(store: SqliteStore, claim: Claim) -> object:
    return await store.append(plan(claim, ANN, 1, entry("child")))


async def _each(tries: Sequence[Coroutine[object, object, object]]) -> list[object]:
    return list(await asyncio.gather(*tries, return_exceptions=True))
