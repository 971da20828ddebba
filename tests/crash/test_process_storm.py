"""Whatever is said to processes in whatever order, while their workers are killed and stopped: every accepted signal is
received once and in order, nothing is done twice, nothing ends that nobody ended, and nothing is stuck."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from perdure import Agent, Error, OutcomeUnknown, ProcessContext, Runtime, RuntimeOptions, process
from perdure.compat.seeds import SeedProcesses
from perdure.models.scripted import ScriptedModel, say
from perdure.processes.record import ProcessRecord
from perdure.tools.step_outcomes import EventTimedOut
from perdure.vocab.outcomes import DurableStepOutcome
from perdure.vocab.records import EffectSettled, EffectStarted, ProcessEvent, Record
from perdure.vocab.registrations import ProcessFailure, ProcessSucceeded, ProcessWasAbandoned, ProcessWasCancelled
from tests.crash.harness import processes
from tests.crash.scenarios import Ledger, store_url
from tests.scenarios.conftest import until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

SESSIONS = ("s0", "s1", "s2")
VERBS = int(os.environ.get("STORM_VERBS", "50"))
SEED = int(os.environ.get("STORM_SEED", "7"))
"""Both can be given for a longer storm, or another one."""
LATE = {"process_already_terminal", "process_not_visible", "process_unknown", "session_unknown", "result_timeout"}
"""What somebody is told who comes too late."""


@process
async def courier(ctx: ProcessContext, folder: str) -> list[int]:
    """Carries out each signal, once, until it is told to stop; cleans up if it is asked to end."""
    carried: list[int] = []
    ledger = Ledger(Path(folder) / "ledger")
    try:
        while (number := int(await ctx.wait_for_signal("go"))) >= 0:
            carried.append(number)
            try:
                await ctx.step(f"carry:{number}", ledger.write, "carry", f"{ctx.process_id}:{number}")
            except OutcomeUnknown:
                await ctx.step(f"note:{number}", ledger.write, "note", f"{ctx.process_id}:{number}", effect="pure")
            if number % 3 == 0:
                await ctx.sleep(f"rest:{number}", 0.02)
    except asyncio.CancelledError:
        await ctx.step("clean", ledger.write, "clean", ctx.process_id, effect="idempotent")
        raise
    return carried


@process
async def family(ctx: ProcessContext, folder: str) -> str:
    """Has a courier of its own, which it may grow tired of waiting for."""
    child = await ctx.start(courier, folder)
    await ctx.gather(ctx.sleep("a", 0.01), ctx.step("b", lambda: 1, effect="pure"))
    try:
        carried = await ctx.wait_for_process(child, timeout="3s")
    except EventTimedOut:
        return "tired"
    except Error as problem:
        return f"child {problem.details['reason']}"
    return f"carried {len(carried)}"


CODE = [courier, family]


def runtime(folder: Path, *, worker: bool) -> Runtime:
    agent = Agent("a", model=ScriptedModel(*(say("yes") for _ in range(500))))
    tuning = RuntimeOptions(lease_s=1.0, idle_timeout_s=0.02, drain_s=1)
    return Runtime(store_url(folder), agents=[agent], processes=CODE, worker=worker, options=tuning)


async def _work(folder: Path) -> None:
    async with runtime(folder, worker=True):
        await asyncio.Event().wait()


def work(folder: str) -> None:
    asyncio.run(_work(Path(folder)))


def hire(folder: Path) -> ForkServerProcess:
    started = processes.Process(target=work, args=(str(folder),))
    started.start()
    return started


@dataclass
class Storm:
    """Says what comes to mind, and remembers what it was told."""

    rt: Runtime
    folder: Path
    chance: random.Random
    started: list[str] = field(default_factory=list[str])
    signals: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    cancelled: set[str] = field(default_factory=set[str])
    numbers: int = 0

    async def speak(self, verb: str) -> None:
        try:
            await getattr(self, f"_{verb}")()
        except Error as problem:
            if problem.code.value not in LATE:
                raise

    def _some(self) -> str:
        return self.chance.choice(self.started)

    async def _start(self) -> None:
        id, code = f"p{len(self.started)}", self.chance.choice([courier, courier, family])
        await self.rt.start(code, str(self.folder), id=id)
        await self.rt.start(code, str(self.folder), id=id)  # the same again is the same one
        self.started.append(id)
        self.started += [f"{id}/courier:1"] if code is family else []
        await self.rt.processes.share(id, session=self.chance.choice(SESSIONS))

    async def _signal(self, number: int | None = None) -> None:
        id = self._some()
        self.numbers += 1
        said = self.numbers if number is None else number
        await self.rt.get_process(id).signal("go", said, id=str(self.numbers))
        self.signals.setdefault(id, []).append(said)
        await self.rt.get_process(id).signal("go", said, id=str(self.numbers))

    async def _burst(self) -> None:
        for _ in range(5):
            await self._signal()

    async def _stop(self) -> None:
        await self._signal(-1)

    async def _cancel(self) -> None:
        id = self._some()
        if await self.rt.get_process(id).cancel("enough"):
            self.cancelled.add(id)

    async def _wait(self) -> None:
        await self.rt.get_process(self._some()).wait("20ms")

    async def _transfer(self) -> None:
        one, other = self.chance.sample(SESSIONS, 2)
        await SeedProcesses(self.rt).transfer(self._some(), session=one, to=other)

    async def _delete_session(self) -> None:
        await self.rt.get_session(self.chance.choice(SESSIONS)).delete()

    async def _open_session(self) -> None:
        await (await self.rt.session(self.chance.choice(SESSIONS), agent="a")).send("hello")

    async def _list(self) -> None:
        await self.rt.processes.list(ended=True, session=self.chance.choice(SESSIONS))

    async def calm(self) -> None:
        """Tell all processes to stop, and wait for their ends."""
        for id in list(self.started):
            handle = self.rt.get_process(id)

            async def over(handle=handle) -> bool:  # type: ignore[no-untyped-def]
                try:
                    await handle.signal("go", -1)
                    await handle.wait("200ms")
                except Error as problem:
                    if problem.code.value == "process_unknown":
                        return id not in known  # noqa: B023 - a family that never came to start its courier
                    return problem.code.value == "process_already_terminal"
                return True

            known = {one.handle.id for one in await self.rt.processes.list(ended=True, limit=1000)}
            await until(over, seconds=60, every=0.05)


OFTEN = ("start", "signal", "signal", "burst", "wait", "open_session")
SELDOM = ("stop", "cancel", "transfer", "delete_session", "list")


async def weather(workers: list[ForkServerProcess], folder: Path, chance: random.Random, over: asyncio.Event) -> None:
    """Workers die, or stand still for longer than their lease."""
    while not over.is_set():
        await asyncio.sleep(chance.uniform(0.3, 0.9))
        victim = chance.randrange(len(workers))
        pid = workers[victim].pid
        assert pid is not None
        if chance.random() < 0.6:
            os.kill(pid, signal.SIGKILL)
            workers[victim] = hire(folder)
        else:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(1.4)
            os.kill(pid, signal.SIGCONT)


async def test_nothing_is_lost_doubled_or_stuck_whatever_is_said_while_workers_die(folder: Path) -> None:
    workers = [hire(folder), hire(folder)]
    chance, over = random.Random(SEED), asyncio.Event()
    try:
        async with runtime(folder, worker=False) as rt:
            for name in SESSIONS:
                await (await rt.session(name, agent="a")).send("hello")
            storm = Storm(rt, folder, chance)
            await storm.speak("start")
            bad = asyncio.create_task(weather(workers, folder, random.Random(SEED), over))
            for _ in range(VERBS):
                await storm.speak(chance.choice(OFTEN * 2 + SELDOM))
                await asyncio.sleep(0.02)
            over.set()
            await bad
            await storm.calm()
            await judge(storm)
    finally:
        for one in workers:
            one.kill()
            one.join()


async def judge(storm: Storm) -> None:
    """Compare the logs and the ledger with the replies that the callers got."""
    rt, ledger = storm.rt, Counter(Ledger(storm.folder / "ledger").lines())
    seen: dict[str, set[str]] = {}
    for name in SESSIONS:
        listed = await rt.processes.list(ended=True, session=name, limit=1000)
        seen[name] = {one.handle.id for one in listed}
    there = {one.handle.id for one in await rt.processes.list(ended=True, limit=1000)}
    assert {id for id in storm.started if "/" not in id} <= there, "accepted, and not there"
    assert await rt.processes.list() == ()
    for line, count in ledger.items():
        assert count == 1 or line[0] in ("note", "clean"), f"{line} was done {count} times"
    assert ledger, "nothing was carried at all"
    for id in sorted(there):
        await _judge_one(storm, id, ledger)


async def _judge_one(storm: Storm, id: str, ledger: Counter[tuple[str, str]]) -> None:
    handle = storm.rt.get_process(id)
    record, rows = await handle.info(), [row.record for row in await handle.journal()]
    events = [one for one in rows if isinstance(one, ProcessEvent)]
    assert sum(one.output is not None for one in events) == 1, id
    came = [one.payload for one in events if one.event == "signal.go"]
    said = storm.signals.get(id, [])
    assert [number for number in came if number >= 0] == [number for number in said if number >= 0], id
    _judge_end(storm, id, record)
    if record.known.definition != "python:courier":
        return
    received = _received(rows)
    assert received == came[: len(received)], f"{id} received others than came, or in another order"
    if isinstance(record.output, ProcessSucceeded):
        assert record.output.value == [number for number in received if number >= 0], id
    for number in [number for number in received if number >= 0]:
        done = ledger["carry", f"{id}:{number}"]
        assert done == 1 or not _succeeded(rows, f"p/step:carry:{number}"), f"{id} lost {number}"


def _judge_end(storm: Storm, id: str, record: ProcessRecord) -> None:
    """Fail if a process ends as cancelled without a cancel, or as abandoned or failed."""
    assert not isinstance(record.output, ProcessWasAbandoned | ProcessFailure), (id, record.output)
    if isinstance(record.output, ProcessWasCancelled):
        assert id in storm.cancelled, f"no request cancelled {id}"


def _succeeded(rows: Sequence[Record], step: str) -> bool:
    """Whether a step is told as done; one that is in doubt, or was never settled, may or may not be."""
    outcomes = [one.outcome for one in rows if isinstance(one, EffectSettled) and one.id == step]
    assert len(outcomes) <= 1
    return any(isinstance(one, DurableStepOutcome) and one.in_doubt is None and one.error is None for one in outcomes)


def _received(rows: Sequence[Record]) -> list[int]:
    """The signals that the function was given, in the order of its waits."""
    waits = [one.id for one in rows if isinstance(one, EffectStarted) and "signal" in one.id]
    ended = {one.id: one.outcome for one in rows if isinstance(one, EffectSettled)}
    answers = [getattr(ended.get(id), "resolution", None) for id in waits]
    return [answer.value for answer in answers if answer is not None and hasattr(answer, "value")]
