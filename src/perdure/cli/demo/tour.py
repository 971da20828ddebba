"""`perdure demo`: book a flight in front of the user, who is invited to kill the worker; then carry on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from perdure.cli.demo.ledger import Ledger
from perdure.cli.exits import FAILED, INTERRUPTED, NO_STORE, OK, exit_code
from perdure.cli.lines import Line, Reader
from perdure.cli.screen import ago, say, took
from perdure.errors import Code, Error
from perdure.ids import VERSION
from perdure.models.wording import plain as reworded
from perdure.observe.events import Fact
from perdure.runtime.runtime import Runtime
from perdure.runtime.session import Session
from perdure.store.protocol import StreamInfo
from perdure.vocab.effects import EffectKind
from perdure.vocab.messages import Reply
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import EffectSettled, EffectStarted, InputAdmitted, TurnEnded

PACE_S = 0.8
"""How long a model call and a search take, so that a person can follow."""


@dataclass(frozen=True, slots=True)
class Tour:
    """Where the demo keeps its things, and how slow its charge is."""

    folder: Path
    dawdle_s: float
    command: str = "perdure demo"

    @property
    def store(self) -> Path:
        """The store file."""
        return self.folder / "demo.db"

    @property
    def ledger(self) -> Ledger:
        """The outside world."""
        return Ledger(self.folder / "demo-ledger.csv")

    def forget(self) -> None:
        """Delete the store and the ledger."""
        for name in ("demo.db", "demo.db-wal", "demo.db-shm", "demo-ledger.csv"):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "demo.db-workers", ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Found:
    """The session this run works on: a new one, or one that a dead worker left unfinished."""

    session: Session
    interrupted: StreamInfo | None
    dead_pid: int | None
    bookings: int


async def run_tour(tour: Tour, *, fresh: bool) -> int:
    """Book one flight to its end, or until the worker dies. Returns the exit code."""
    if fresh:
        await _refuse_if_alive(tour)
        tour.forget()
    try:
        return await _run(tour)
    except Error as problem:
        if exit_code(problem) != NO_STORE or fresh:
            raise
        hint = f"start over, without what was there: {tour.command} --fresh"
        raise Error(problem.code, problem.message, because=problem.because, hint=hint) from problem


async def _run(tour: Tour) -> int:
    async with Runtime(f"sqlite:///{tour.store}", worker=False) as rt:
        found = await _find(rt)
        child = await _start(tour, found.session.id)
        try:
            _banner(tour, child.pid)
            return await _Show(tour, found, child).run()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()


async def _start(tour: Tour, session: str) -> asyncio.subprocess.Process:
    args = (str(tour.store), str(tour.ledger.path), session, "--dawdle", str(tour.dawdle_s), "--pace", str(PACE_S))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "perdure.cli.demo.worker", *args), start_new_session=True
    )


async def _find(rt: Runtime) -> Found:
    workers = {worker.id: worker for worker in await rt.store.workers()}
    infos = await rt.sessions(limit=1000)
    for info in infos:
        if not info.active and not info.waiting_inputs:
            continue
        owner = workers.get(info.owner) if info.owner else None
        if info.owner_alive:
            raise _busy(owner.pid if owner else None)
        return Found(rt.existing(info.name), info, owner.pid if owner else None, len(infos))
    new = await rt.session(f"trip-{len(infos) + 1}", agent="travel")
    return Found(new, None, None, len(infos) + 1)


async def _refuse_if_alive(tour: Tour) -> None:
    alive: list[int] = []
    with contextlib.suppress(Error):  # a store that cannot be opened may be deleted
        async with Runtime(f"sqlite:///{tour.store}", worker=False) as rt:
            alive = [worker.pid for worker in await rt.store.workers() if worker.alive]
    if alive:
        raise _busy(alive[0])


def _busy(pid: int | None) -> Error:
    return Error(
        Code.SESSION_BUSY,
        "a demo is already running here",
        because=f"its worker, pid {pid}, is alive",
        hint=f"wait for it, kill it ({kill_command(pid or 0)}), or use another folder: perdure demo --dir elsewhere",
    )


def kill_command(pid: int) -> str:
    """What to type to kill a process at once, here."""
    return f"taskkill /F /PID {pid}" if sys.platform == "win32" else f"kill -9 {pid}"


def shown(path: Path) -> str:
    """A path as one would type it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _banner(tour: Tour, pid: int) -> None:
    say(f"perdure {VERSION}  demo  model=sim:travel (simulated, no key, no network)")
    say(f"  Store    {shown(tour.store):<28} sqlite, survives restarts")
    say(f'  Ledger   {shown(tour.ledger.path):<28} the "outside world" of this demo')
    say(f"  Worker   pid {pid}")
    say()


class _Show:
    """Prints what becomes durable, as it does."""

    def __init__(self, tour: Tour, found: Found, child: asyncio.subprocess.Process) -> None:
        self._tour = tour
        self._found = found
        self._child = child
        self._reader = Reader()
        self._old = found.interrupted.last_seq if found.interrupted else 0
        self._saved = 0
        self._broken_off: set[str] = set()
        self._ended: TurnEnded | None = None
        self._answer = ""

    async def run(self) -> int:
        """Until the turn ends, the worker dies, or the user has had enough."""
        stop = asyncio.Event()
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
        show = asyncio.create_task(self._follow())
        died = asyncio.create_task(self._child.wait())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({show, died, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if died.done():  # the last things it saved are still to be shown
            await asyncio.wait({show}, timeout=1.0)
        for task in (show, stopped):
            task.cancel()
        await asyncio.gather(show, stopped, return_exceptions=True)
        if self._ended:
            await died
            return self._finish(self._ended)
        return self._stopped() if stop.is_set() else self._died(await died)

    async def _follow(self) -> None:
        if self._found.interrupted:
            await self._taken_over(self._found.interrupted)
        async for event in self._found.session.events():
            if isinstance(event, Fact):
                self._saved = event.cursor.seq
                self._show(event)
            if self._ended:
                return

    async def _taken_over(self, left: StreamInfo) -> None:
        """Say that the turn was recovered once it is true: another worker holds the session."""
        session = self._found.session
        store = session.runtime.store
        while (now := await store.stream(session.stream)) is None or now.fence == left.fence:  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.02)
        worker = f"worker {self._found.dead_pid}" if self._found.dead_pid else "its worker"
        last = ago(left.updated_at, session.runtime.clock.wall_ms())
        say(f"Recovered 1 interrupted turn ({worker} is gone; last step saved {last})", "ok")

    # --- rows

    def _show(self, fact: Fact) -> None:
        line = self._reader.line(fact)
        if line.begun and line.seq <= self._old:
            self._broken_off.add(line.effect)
        match fact.record:
            case InputAdmitted():
                say(f"session {self._found.session.id}  {line.result}")
            case EffectStarted(kind=EffectKind.TOOL_CALL) if line.seq > self._old:
                self._running(line)
            case EffectStarted(kind=EffectKind.TOOL_CALL):
                _row(line, "", "intent saved, no outcome")
            case EffectSettled(outcome=LlmCallOutcome(reply=Reply() as reply)):
                self._answer = reply.text
                self._settled(line)
            case EffectSettled():
                self._settled(line)
            case TurnEnded() as ended:
                self._ended = ended
            case _:
                pass

    def _settled(self, line: Line) -> None:
        if line.seq <= self._old:
            _row(line, "", "replayed", took_ms=0, tokens=0)
        elif line.kind == "probe":
            _row(line, line.tone, _VERDICTS.get(line.result, line.result))
        elif line.tone == "doubt":
            _row(line, line.tone, "in doubt: the worker died, no outcome was saved")
        elif line.effect in self._broken_off:
            _row(line, line.tone, "broken off by the crash, re-run, saved")
        else:
            _row(line, line.tone, "saved", took_ms=line.ms, tokens=line.tokens)

    def _running(self, line: Line) -> None:
        slow = f"  <- {self._tour.dawdle_s:g} s slow on purpose" if self._tour.dawdle_s >= 1 else ""
        _row(line, "", f"running, attempt {line.attempt}{slow}")
        say()
        say(f"  Break it now, in another terminal:   {kill_command(self._child.pid)}", "warn")
        say()

    # --- endings

    def _finish(self, ended: TurnEnded) -> int:
        charges, expected = len(self._tour.ledger.charges()), self._found.bookings
        good = charges == expected and ended.status == "finished"
        say()
        say(f"  Answer   {reworded(self._answer)}")
        each = "" if expected == 1 else ", one per session"
        counted = f"ledger has {charges} {'charge' if charges == 1 else 'charges'} (expected {expected}{each})"
        say(f"  Check the outside world:  {counted}  {'OK' if good else 'FAIL'}", "ok" if good else "fail")
        db = shown(self._tour.store)
        say()
        say(f"  Look inside   perdure journal list {self._found.session.id} --db {db}")
        say(f"  Once more     {self._tour.command}")
        say("  Unattended    perdure demo --auto     (kills its worker at every step)")
        return OK if good else FAILED

    def _died(self, code: int) -> int:
        say()
        how = "was killed" if code == -signal.SIGKILL else f"ended with code {code}"
        say(f"  Worker {self._child.pid} {how}. Nothing is lost: {self._saved} records are in the store.", "warn")
        say(f"  Carry on with the same command:   {self._tour.command}")
        return FAILED

    def _stopped(self) -> int:
        say()
        say("  Stopped: the worker was killed, like in any crash. Nothing is lost.", "warn")
        say(f"  Carry on with the same command:   {self._tour.command}")
        return INTERRUPTED


_VERDICTS = {
    "happened": "it happened: receipt kept, not charged again",
    "did not happen": "it did not happen: safe to run now",
}


def _row(line: Line, tone: str, state: str, *, took_ms: int | None = None, tokens: int | None = None) -> None:
    spent = f"{took(took_ms) if took_ms is not None else '':>8}  {f'{tokens} tok' if tokens is not None else '':>7}"
    numbers = f"{spent}  " if took_ms is not None else ""
    say(f"  #{line.seq:<3} {line.kind:<6} {line.name:<15} {numbers}{state}", "" if tone == "ok" else tone)
