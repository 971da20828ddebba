"""Several processes on one file: all of them work, each stream has one owner, a dead owner is replaced at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from perdure import Agent, Runtime, RuntimeOptions
from perdure.models.scripted import ScriptedModel, call, say
from perdure.vocab.records import InputAdmitted, TurnEnded
from tests.crash.harness import processes, start, wait_until
from tests.crash.scenarios import LEASE_S, Ledger, one_once, store_url, zombie

pytestmark = [pytest.mark.crash, pytest.mark.timeout(90)]

SESSIONS, ROUNDS = 8, 5


async def _talk(folder: Path, name: str) -> None:
    model, tools = one_once(Ledger(folder / f"ledger-{name}"))
    async with Runtime(store_url(folder), agents=[Agent("a", model=model, tools=tools)]) as rt:

        async def chat(number: int) -> None:
            session = await rt.session(f"s{number}", agent="a")
            for turn in range(ROUNDS):
                sent = await session.send("go", key=f"{name}-{turn}")
                assert (await sent.result(timeout=60)).status == "finished"

        await asyncio.gather(*(chat(number) for number in range(SESSIONS)))
        # Stay until the other one is done too: sessions this worker owns are served by it alone.
        (folder / f"done-{name}").touch()
        other = folder / f"done-{'one' if name == 'two' else 'two'}"
        while not other.exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.02)


def talk(folder: str, name: str) -> None:
    asyncio.run(_talk(Path(folder), name))


async def test_two_processes_share_a_file_and_every_input_is_answered_once(folder: Path) -> None:
    both = [processes.Process(target=talk, args=(str(folder), name)) for name in ("one", "two")]
    for process in both:
        process.start()
    for process in both:
        process.join(80)
    assert [process.exitcode for process in both] == [0, 0]
    dispatches = Ledger(folder / "ledger-one").count("charge") + Ledger(folder / "ledger-two").count("charge")
    assert dispatches == 2 * SESSIONS * ROUNDS
    async with Runtime(store_url(folder), worker=False) as rt:
        for number in range(SESSIONS):
            rows = await rt.get_session(f"s{number}").journal()
            assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
            keys = Counter(row.record.key for row in rows if isinstance(row.record, InputAdmitted))
            assert keys == {f"{name}-{turn}": 1 for name in ("one", "two") for turn in range(ROUNDS)}
            assert sum(isinstance(row.record, TurnEnded) for row in rows) == 2 * ROUNDS


async def test_a_killed_owner_is_replaced_at_once_and_not_after_its_lease(folder: Path) -> None:
    """The lease would take an hour to lapse; the free lock says that its holder is dead now."""
    owner = start("zombie", folder, {LEASE_S: "3600"})
    ledger = Ledger(folder / "ledger")
    wait_until(lambda: ledger.count("charge") == 1)
    assert owner.pid is not None
    _, tools = zombie(ledger)
    agent = Agent("a", model=ScriptedModel(call("charge"), say("all done")), tools=tools)
    async with Runtime(store_url(folder), agents=[agent], options=RuntimeOptions(lease_s=3600)) as rt:
        session = rt.get_session("s")
        sent = await session.send("go", key="the-only-input")
        assert (await session.why()).status == "running", "the owner lives: no takeover"
        os.kill(owner.pid, signal.SIGKILL)
        assert (await sent.result(timeout=20)).status == "finished"
    owner.join()
    assert ledger.count("charge") == 1


async def _open_and_close(path: Path) -> None:
    async with Runtime(f"sqlite:///{path}", agents=[Agent("a", model="sim:echo")]):
        pass


def open_and_close(path: str) -> None:
    asyncio.run(_open_and_close(Path(path)))


def test_many_processes_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    """One of them turns it into a store; the others wait for that, and none sees a lock error."""
    for n in range(6):
        crowd = [processes.Process(target=open_and_close, args=(str(tmp_path / f"{n}.db"),)) for _ in range(4)]
        for process in crowd:
            process.start()
        for process in crowd:
            process.join(30)
        assert [process.exitcode for process in crowd] == [0, 0, 0, 0]
