"""`perdure demo --auto`: kills a real worker at every durable boundary of a booking and checks the ledger each time."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path

from perdure.cli.demo.check import BookingReport, Remains, aftermath, remains
from perdure.cli.demo.ledger import DemoLedger, Mailbox
from perdure.cli.demo.points import Point, chosen, points
from perdure.cli.demo.worker import live
from perdure.cli.screen import count, emit, note, one_line, say
from perdure.errors import Code, Error
from perdure.runtime.runtime import Runtime
from perdure.testing.crash import KILL_AT, TRACE, Boundary

SESSION = "trip-1"
AT_ONCE = 2
WORKER_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ExperimentOutcome:
    """The result of one experiment."""

    point: Point
    at_kill: int
    at_end: int
    recovery: str
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if nothing was lost or repeated and the worker died at the intended point."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class Experiment:
    """The folder of one experiment, with a separate store and ledger."""

    folder: Path
    timeout_s: float = WORKER_TIMEOUT_S
    model: str = ""

    @property
    def store(self) -> Path:
        """The store file."""
        return self.folder / "demo.db"

    @property
    def ledger(self) -> DemoLedger:
        """The ledger of charges."""
        return DemoLedger(self.folder / "ledger.csv")

    @property
    def mailbox(self) -> Mailbox:
        """The file of sent e-mails."""
        return Mailbox(self.folder / "outbox.csv")

    @property
    def trace(self) -> Path:
        """The file of the boundaries that a worker passed."""
        return self.folder / "trace"

    async def worker(self, environment: Mapping[str, str]) -> tuple[int, str]:
        """Run one worker process until it exits or times out. Returns its exit code and the last line of its stderr."""
        errors = self.folder / "errors"
        arguments = (str(self.store), str(self.ledger.path), str(self.mailbox.path), SESSION, "--model", self.model)
        child = _processes().Process(target=live, args=(arguments, dict(environment), str(errors)), daemon=True)
        child.start()
        await asyncio.to_thread(child.join, self.timeout_s)
        if child.exitcode is None:
            child.kill()
            await asyncio.to_thread(child.join)
            return 1, f"timed out after {self.timeout_s:.0f} s"
        lines = errors.read_text(errors="replace").strip().splitlines() if errors.exists() else []
        return child.exitcode, lines[-1] if lines else ""


@cache
def _processes() -> SpawnContext | ForkServerContext:
    """Return the start method of workers: fork from a preloaded process, or spawn on Windows."""
    if sys.platform == "win32":
        return get_context("spawn")
    forking = get_context("forkserver")
    forking.set_forkserver_preload([live.__module__, "pydantic", "perdure.cli.app"])
    return forking


@asynccontextmanager
async def person(place: Experiment) -> AsyncGenerator[list[str]]:
    """Approve every request at once, from this process. Yields the ids of the approved requests."""
    decided: list[str] = []

    async def decide() -> None:
        async with Runtime(f"sqlite:///{place.store}", worker=False) as rt:
            async for asked in rt.approvals.watch():
                await rt.approvals.approve(asked.id, by="you", via="demo")
                decided.append(asked.id)

    deciding = asyncio.create_task(decide())
    try:
        yield decided
    finally:
        deciding.cancel()
        await asyncio.wait({deciding})
        if not deciding.cancelled():
            deciding.result()


async def list_points(folder: Path) -> list[Point]:
    """Run one undisturbed booking and return its kill points.

    Raises:
        Error: `turn_failed` if the booking fails.
    """
    place = Experiment(folder / "trace")
    place.folder.mkdir()
    async with person(place):
        code, complaint = await place.worker({TRACE: str(place.trace)})
    if code != 0 or len(place.ledger.charges()) != 1:
        raise Error(Code.TURN_FAILED, "the demo fails without a kill", because=complaint)
    return points(Boundary.parse(line) for line in place.trace.read_text().splitlines())


async def experiment(folder: Path, point: Point) -> ExperimentOutcome:
    """Kill workers at one point, start another worker and judge the result."""
    place = Experiment(folder / point.name.replace(":", "-"))
    place.folder.mkdir()
    if point.decided_in_between:
        problems = await _deaths(place, point)
        left = await remains(place.store, SESSION)
        async with person(place) as decided:
            while not decided:  # noqa: ASYNC110 - another task decides
                await asyncio.sleep(0.01)
        return await _second_life(place, point, left, problems)
    async with person(place):
        problems = await _deaths(place, point)
        left = await remains(place.store, SESSION)
        return await _second_life(place, point, left, problems)


async def _deaths(place: Experiment, point: Point) -> list[str]:
    problems = [problem for death in point.deaths for problem in await _kill(place, point, death)]
    charges, emails = len(place.ledger.charges()), len(place.mailbox.emails())
    if charges != point.expected.dispatches:
        problems.append(f"{charges} charges at the kill, expected {point.expected.dispatches}")
    if emails != point.expected.emails:
        problems.append(f"{emails} e-mails at the kill, expected {point.expected.emails}")
    return problems


async def _second_life(place: Experiment, point: Point, left: Remains, problems: list[str]) -> ExperimentOutcome:
    at_kill = len(place.ledger.charges())
    code, complaint = await place.worker({})
    at_end = len(place.ledger.charges())
    if code != 0:
        problems.append(f"the second worker exited with {code}: {complaint}")
        return ExperimentOutcome(point, at_kill, at_end, "none", tuple(problems))
    after = await aftermath(place.store, place.ledger, place.mailbox, SESSION, left)
    problems += [*after.problems, *_unexpected(point, after)]
    return ExperimentOutcome(point, at_kill, at_end, after.recovery, tuple(problems))


async def _kill(place: Experiment, point: Point, death: Mapping[str, str]) -> list[str]:
    place.trace.unlink(missing_ok=True)
    code, complaint = await place.worker({**death, TRACE: str(place.trace)})
    if code != -signal.SIGKILL:
        return [f"expected a kill, but the worker exited with {code} {complaint}".rstrip()]
    passed = place.trace.read_text().splitlines() if place.trace.exists() else []
    if KILL_AT in death and passed[-1:] != [str(point.boundary)]:
        return [f"the worker died at {passed[-1] if passed else 'no boundary'}, expected {point.boundary}"]
    return []


def _unexpected(point: Point, after: BookingReport) -> list[str]:
    if after.verdict in point.expected.verdicts:
        return []
    wanted = " or ".join(f"probe: {v}" if v else "no probe" for v in point.expected.verdicts)
    return [f"recovered with {f'probe: {after.verdict}' if after.verdict else 'no probe'}, expected {wanted}"]


# --- the table ----------------------------------------------------------------------------------------------------


async def run_auto(*, kill_at: str | None, json: bool) -> bool:
    """Run all experiments, two at a time, and print each result. Returns True if all succeeded."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    outcomes: list[ExperimentOutcome] = []
    try:
        await _run_all(folder, outcomes, kill_at=kill_at, json=json)
    finally:
        good = all(outcome.ok for outcome in outcomes)
        if good:
            shutil.rmtree(folder)
        else:
            note(f"Stores, ledgers and traces are kept in {folder}")
    return good


async def _run_all(folder: Path, outcomes: list[ExperimentOutcome], *, kill_at: str | None, json: bool) -> None:
    began = time.monotonic()
    found = await list_points(folder)
    todo = [chosen(found, kill_at)] if kill_at else found
    if not json:
        _announce(todo)
    gate = asyncio.Semaphore(AT_ONCE)

    async def guarded(point: Point) -> ExperimentOutcome:
        async with gate:
            return await experiment(folder, point)

    async with asyncio.TaskGroup() as tasks:
        for running in [tasks.create_task(guarded(point)) for point in todo]:
            outcomes.append(await running)
            _report(outcomes[-1], json=json)
    if not json:
        _conclude(outcomes, time.monotonic() - began)


_LAYOUT = "{:<11}  {:<29}  {:<7}  {:<21}  {}"


def _announce(todo: list[Point]) -> None:
    where = count(len(todo), "point")
    say(f"Kills a worker (SIGKILL) at {where} of one booking; a second one resumes.")
    say("Charges: lines in a ledger without deduplication, at the kill -> at the end.")
    say("Replayed: outcomes saved before the kill. Counts vary: no model or pure call waits for the disk.")
    say()
    say(_LAYOUT.format("POINT", "WHAT", "CHARGES", "RECOVERY", "").rstrip(), "dim")


def _report(outcome: ExperimentOutcome, *, json: bool) -> None:
    point = outcome.point
    if json:
        emit(
            type="demo_point",
            v=1,
            point=point.name,
            what=point.what,
            at_kill=outcome.at_kill,
            expected_at_kill=point.expected.dispatches,
            at_end=outcome.at_end,
            recovery=outcome.recovery,
            ok=outcome.ok,
            problems=outcome.problems,
        )
        return
    charges = f"{outcome.at_kill} -> {outcome.at_end}"
    verdict = "OK" if outcome.ok else "FAIL"
    line = _LAYOUT.format(point.name, one_line(short(point.what), 29), charges, outcome.recovery, verdict)
    say(line, "" if outcome.ok else "fail")
    for problem in outcome.problems:
        say(f"{'':<11}  {problem}", "fail")


_WORDS = (
    ("append ", ""),
    ("input_admitted, turn_opened", "open turn"),
    ("turn_ended", "end turn"),
    ("effect_started m", "call model #"),
    ("effect_settled m", "save reply #"),
    ("effect_started c1.0", "begin search"),
    ("effect_settled c1.0", "save search"),
    ("effect_started c2.0", "intend charge"),
    ("effect_settled c2.0", "save charge"),
    ("effect_started c3.0.1.approval", "ask approval"),
    ("effect_settled c3.0.1.approval", "approved"),
    ("effect_started c3.0", "intend e-mail"),
    ("effect_settled c3.0", "save e-mail"),
    (".1", ""),
    ("admit input", "accept input"),
)


def short(what: str) -> str:
    """Return a boundary's content in the words of this booking."""
    for ours, theirs in _WORDS:
        what = what.replace(ours, theirs)
    return what


def _conclude(outcomes: list[ExperimentOutcome], seconds: float) -> None:
    bad = sum(not outcome.ok for outcome in outcomes)
    charges = sum(outcome.at_end for outcome in outcomes)
    say()
    counts = f"{count(len(outcomes), 'experiment')}, {count(charges, 'charge')}, {bad} failed"
    say(f"{counts}, in {seconds:.0f} s", "fail" if bad else "ok")
