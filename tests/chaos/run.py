"""One run: a store, four workers, two hundred sessions, the faults of a seed, and the verdict. It ends by itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from perdure import Runtime
from perdure.runtime.internals import core_of, ref_of
from perdure.store.postgres.driver import TROUBLE
from perdure.testing import World
from tests.chaos import judge
from tests.chaos.fleet import ROOT, Place, Worker, environment
from tests.chaos.load import Load
from tests.chaos.schedule import WORKERS, Fault, Schedule, schedule
from tests.postgres import Server

SETTLE_S = 120.0
"""How long the last answers may take once nothing goes wrong any more."""
DRAIN_S = 40.0
LATE_S = 30.0
STORE_AWAY = 7
"""How a worker ends that is started while the server is away; whoever keeps it up starts it again."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Order:
    """The kind of run."""

    seed: int
    seconds: float
    sessions: int
    lease_s: float
    store: Literal["postgres", "sqlite"]
    folder: Path
    keep: bool = False


@dataclass
class Report:
    """Counts and problems of a run."""

    seed: int
    counts: dict[str, int] = field(default_factory=dict[str, int])
    problems: list[str] = field(default_factory=list[str])


async def run(order: Order, *, tell: Tell = lambda _: None) -> Report:
    """Load, break, wait, judge."""
    plan = schedule(order.seed, order.seconds, lease_s=order.lease_s, server=order.store == "postgres")
    tell(
        f"seed {order.seed}: {order.sessions} sessions on {order.store}, {order.seconds:g} s, {len(plan.faults)} faults"
    )
    report = Report(order.seed)
    async with AsyncExitStack() as ending:
        server = Server(port=None) if order.store == "postgres" else None
        if server is not None:
            ending.callback(server.remove)
        url = server.url(schema="chaos") if server else f"sqlite:///{order.folder / 's.db'}"
        place = Place(order.folder, url, order.lease_s)
        fleet = [Worker(place, index) for index in range(WORKERS)]
        for worker in fleet:
            ending.callback(worker.remove)
        await _under_fire(Run(plan, place, fleet, server, order.sessions, report, tell))
        await _judge(place, report)
    for line in report.problems[:40]:
        tell(f"PROBLEM  {line}")
    tell(", ".join(f"{count} {what}" for what, count in report.counts.items()))
    tell(f"{'FAILED' if report.problems else 'ok'}: seed {order.seed}, {len(report.problems)} problems")
    return report


@dataclass
class Run:
    """Everything that takes part."""

    plan: Schedule
    place: Place
    fleet: list[Worker]
    server: Server | None
    sessions: int
    report: Report
    tell: Tell


async def _under_fire(run: Run) -> None:
    async with Runtime(run.place.url, worker=False) as rt:
        for worker in run.fleet:
            worker.start()
        begun = time.monotonic()
        until = begun + run.plan.seconds
        promised = World(run.place.folder / "promised", fsync=False)
        load = Load(rt, promised, run.plan.seed, run.sessions, until, until + SETTLE_S)
        asking = asyncio.create_task(load.run())
        await Trouble(run, begun).run()
        unanswered = await asking
        run.report.problems += await _because(rt, unanswered)
    run.report.problems += [f"{key} was never answered" for key in sorted(unanswered)]
    run.report.counts["s until all was answered"] = int(time.monotonic() - until)
    async with asyncio.timeout(DRAIN_S):
        while not all(worker.ready for worker in run.fleet):  # noqa: ASYNC110 - the worker killed last is still starting
            await asyncio.sleep(0.05)
    await _all_consumed(run.place.url)
    codes = await asyncio.gather(*(asyncio.to_thread(worker.end, DRAIN_S) for worker in run.fleet))
    run.report.problems += [f"worker {i} ended with {code}" for i, code in enumerate(codes) if code != 0]
    fell = [code for worker in run.fleet for code in worker.fell]
    may_fall = {STORE_AWAY} if run.server is not None else set[int]()
    run.report.problems += [f"a worker ended by itself with {code}" for code in fell if code not in may_fall]
    run.report.counts["kills"] = sum(worker.kills for worker in run.fleet)


async def _because(rt: Runtime, unanswered: Sequence[str]) -> list[str]:
    """What those sessions wait for, and who has them: asked while the workers are still there."""
    names = sorted({key.partition("-")[0] for key in unanswered})
    told = {
        name: (
            await rt.get_session(name).why(),
            await core_of(rt).store.stream(ref_of(rt.get_session(name)).stream),
        )
        for name in names[:10]
    }
    return [f"{name}: {why}, {row}" for name, (why, row) in told.items()]


async def _all_consumed(url: str) -> None:
    """An answer that comes as its turn ends is left for a worker to take off the inbox. The judge sees if none did."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            while (await judge.read_tables(url)).left[0]:  # noqa: ASYNC110 - other processes do it
                await asyncio.sleep(0.5)


class Trouble:
    """Carries out a schedule, and sees to it that four workers are there."""

    def __init__(self, run: Run, begun: float) -> None:
        self._run = run
        self._begun = begun
        self._seen_bytes = 0
        self._one_at_a_time = asyncio.Lock()
        self._dice = random.Random(run.plan.seed)

    async def run(self) -> None:
        """Everything that goes wrong; when this returns, nothing does any more."""
        keeping = asyncio.create_task(self._keep_up())
        side: list[asyncio.Task[None]] = []
        for fault in self._run.plan.faults:
            await asyncio.sleep(max(0.0, self._begun + fault.at_s - time.monotonic()))
            side.append(asyncio.create_task(self._strike(fault)))
        await asyncio.gather(*side)
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
        for worker in self._run.fleet:
            worker.start()

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            for worker in self._run.fleet:
                worker.start()

    async def _strike(self, fault: Fault) -> None:
        match fault.kind:
            case "kill":
                async with self._one_at_a_time:
                    if worker := await self._at_work(fault.worker):
                        worker.kill()
            case "freeze":
                async with self._one_at_a_time:
                    if worker := await self._at_work(fault.worker):
                        worker.signal(signal.SIGSTOP)
                if worker:
                    await asyncio.sleep(fault.for_s)
                    worker.signal(signal.SIGCONT)
            case "cut":
                await self._cut(fault.share)
            case "restart":
                await self._restart(fault.for_s)

    async def _at_work(self, index: int) -> Worker | None:
        """That worker, or the next that is not only starting, once the world has seen something since the last fault.

        On a quick machine it always has. On a slow one the fault waits: nobody learns anything from the death of those
        that have not begun. What is half a minute late does not happen: calm comes in the end.
        """
        world, others = self._run.place.world, [*self._run.fleet[index:], *self._run.fleet[:index]]
        calm = self._begun + self._run.plan.seconds + LATE_S
        while time.monotonic() < calm:
            ready = next((worker for worker in others if worker.ready), None)
            size = world.stat().st_size if world.exists() else 0
            if ready is not None and size > self._seen_bytes:
                self._seen_bytes = size
                return ready
            await asyncio.sleep(0.02)
        return None

    async def _cut(self, share: float) -> None:
        assert self._run.server is not None
        sql = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            f" AND backend_type = 'client backend' AND random() < {share}"
        )
        with contextlib.suppress(*TROUBLE):  # it may be away just now
            await self._run.server.execute(sql)

    async def _restart(self, for_s: float) -> None:
        assert self._run.server is not None
        await asyncio.to_thread(self._run.server.stop, "immediate")
        await asyncio.sleep(for_s)
        await asyncio.to_thread(self._run.server.start)


async def _judge(place: Place, report: Report) -> None:
    tables = await judge.read_tables(place.url)
    promised, world = judge.ledger(place.folder / "promised"), judge.ledger(place.world)
    report.problems += judge.unanswered(promised, tables)
    report.problems += judge.hasty(tables)
    report.problems += judge.repeated(world)
    report.problems += judge.unrecorded(world, tables)
    report.problems += judge.forked(tables)
    report.problems += judge.leftovers(tables)
    async with Runtime(place.url, worker=False) as rt:
        report.problems += await judge.contradictions(rt, sorted(tables.logs))
    ours = await judge.folds(place.url)
    theirs = json.loads(await _command(place, report, "-c", _FOLDS, place.url))
    report.problems += [f"{name}: two processes fold it differently" for name in ours if ours[name] != theirs.get(name)]
    await _command(place, report, "-m", "perdure", "db", "check", "--db", place.url)
    judge.write_down(tables, place.folder / "logs")
    report.counts |= judge.counts(promised, world, tables)


_FOLDS = (
    "import asyncio, json, sys; from tests.chaos.judge import folds; print(json.dumps(asyncio.run(folds(sys.argv[1]))))"
)


async def _command(place: Place, report: Report, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=ROOT,
        env=environment(place),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    if process.returncode != 0:
        report.problems.append(f"{' '.join(arguments[:4])} ended with {process.returncode}: {(out + err).decode()}")
    return out.decode()
