"""`perdure demo`: books a flight while the user watches, invites a kill of the worker, and asks for an approval."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from perdure.cli.demo.ledger import DemoLedger, Mailbox
from perdure.cli.demo.travel import charge_card
from perdure.cli.exits import AT_APPROVAL, FAILED, INTERRUPTED, NO_STORE, OK, exit_code
from perdure.cli.lines import JournalLine, Reader
from perdure.cli.program import own_command, program
from perdure.cli.screen import ago, count, say, took
from perdure.errors import Code, Error
from perdure.ids import VERSION
from perdure.models.wording import plain as reworded
from perdure.observe.events import RecordEvent
from perdure.observe.pending import PendingDecision, ask_id
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.runtime import Runtime
from perdure.runtime.sessions.session import Session
from perdure.store.shapes import StreamInfo
from perdure.vocab.effects import AwaitEvent, EffectKind
from perdure.vocab.messages import Reply
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.promises import EventKey, ToolApproval
from perdure.vocab.records import EffectSettled, EffectStarted, InputAdmitted, TurnEnded

PACE_S = 0.8
"""Duration of a model call and of a search, slow enough to follow."""


@dataclass(frozen=True, slots=True)
class Tour:
    """The folder and command line of the demo, and the delay of its charge."""

    folder: Path
    delay_s: float
    command: str
    model: str = ""

    @property
    def store(self) -> Path:
        """The store file."""
        return self.folder / "demo.db"

    @property
    def ledger(self) -> DemoLedger:
        """The ledger of charges."""
        return DemoLedger(self.folder / "demo-ledger.csv")

    @property
    def outbox(self) -> Mailbox:
        """The file of sent e-mails."""
        return Mailbox(self.folder / "demo-outbox.csv")

    def forget(self) -> None:
        """Delete the store, the ledger and the outbox."""
        for name in ("demo.db", "demo.db-wal", "demo.db-shm", "demo-ledger.csv", "demo-outbox.csv"):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "demo.db-workers", ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Found:
    """The session of this run: a new one, or one that a dead worker left unfinished."""

    session: Session
    interrupted: StreamInfo | None
    dead_pid: int | None
    bookings: int


async def run_tour(tour: Tour, *, reset: bool) -> int:
    """Book one flight until the booking ends or the worker dies. Returns the exit code."""
    if reset:
        await _refuse_if_alive(tour)
        tour.forget()
    try:
        return await _run(tour)
    except Error as problem:
        if exit_code(problem) != NO_STORE or reset:
            raise
        hint = f"{tour.command} --reset starts over and deletes the old store"
        raise Error(problem.code, problem.message, because=problem.because, hint=hint) from problem


async def _run(tour: Tour) -> int:
    async with Runtime(f"sqlite:///{tour.store}", worker=False) as rt:
        found = await find_unfinished(rt)
        child = await _start(tour, found.session.id)
        try:
            _banner(tour, child.pid)
            return await _Show(tour, found, child).run()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()


async def _start(tour: Tour, session: str) -> asyncio.subprocess.Process:
    places = (str(tour.store), str(tour.ledger.path), str(tour.outbox.path), session)
    slowly = ("--delay", str(tour.delay_s), "--pace", str(PACE_S), "--model", tour.model)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "perdure.cli.demo.worker", *places, *slowly), start_new_session=True
    )


async def find_unfinished(rt: Runtime) -> Found:
    """Return the session whose trip has not ended, or a new session.

    Raises:
        Error: `session_busy` if a live worker owns it.
    """
    workers = {worker.id: worker for worker in await core_of(rt).store.workers()}
    infos = await core_of(rt).session_streams(limit=1000)
    for info in infos:
        if not (info.active or info.parked or info.waiting_inputs):
            continue
        owner = workers.get(info.owner) if info.owner else None
        if info.owner_alive:
            raise _busy(owner.pid if owner else None)
        return Found(rt.get_session(info.name), info, owner.pid if owner else None, len(infos))
    new = await rt.session(f"trip-{len(infos) + 1}", agent="travel")
    return Found(new, None, None, len(infos) + 1)


async def _refuse_if_alive(tour: Tour) -> None:
    alive: list[int] = []
    with contextlib.suppress(Error):  # a store that cannot be opened may be deleted
        async with Runtime(f"sqlite:///{tour.store}", worker=False) as rt:
            alive = [worker.pid for worker in await core_of(rt).store.workers() if worker.alive]
    if alive:
        raise _busy(alive[0])


def _busy(pid: int | None) -> Error:
    return Error(
        Code.SESSION_BUSY,
        "a demo is already running here",
        because=f"the worker, pid {pid}, is alive",
        hint=f"wait, kill the worker ({kill_command(pid or 0)}), or use another folder: perdure demo --dir elsewhere",
    )


def kill_command(pid: int) -> str:
    """Return the shell command that kills a process at once."""
    return f"taskkill /F /PID {pid}" if sys.platform == "win32" else f"kill -9 {pid}"


def shown(path: Path) -> str:
    """Return a path relative to the current folder where that is shorter."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _banner(tour: Tour, pid: int) -> None:
    model = tour.model or "sim:travel (simulated, no key, no network)"
    say(f"perdure {VERSION}  demo  model={model}")
    say(f"  Store    {shown(tour.store):<28} sqlite, survives restarts")
    say(f'  Ledger   {shown(tour.ledger.path):<28} the "outside world" of this demo')
    say(f"  Worker   pid {pid}")
    say()


class _Show:
    """Printer of durable events."""

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
        self._asked: PendingDecision | None = None
        self._answers: set[asyncio.Future[None]] = set()

    async def run(self) -> int:
        """Print until the turn ends, the worker dies, or the user stops."""
        stop = asyncio.Event()
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
        show = asyncio.create_task(self._follow())
        died = asyncio.create_task(self._child.wait())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({show, died, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if self._asked and show.done() and not self._ended:
            return self._left(self._asked)
        if died.done():  # its last records are still to be printed
            await asyncio.wait({show}, timeout=1.0)
        for task in (show, stopped):
            task.cancel()
        await asyncio.gather(show, stopped, return_exceptions=True)
        if self._ended:
            await died
            return self._finish(self._ended)
        return self._stopped() if stop.is_set() else self._died(await died)

    async def _follow(self) -> None:
        if self._found.interrupted and not self._found.interrupted.parked:
            await self._taken_over(self._found.interrupted)
        async for event in self._found.session.events():
            if isinstance(event, RecordEvent):
                self._saved = event.cursor.seq
                self._show(event)
                self._asked = await self._question(event)
            if self._asked and sys.stdin.isatty():
                _on_enter(lambda asked=self._asked: self._answers.add(asyncio.ensure_future(self._allow(asked))))
            if self._ended or (self._asked and not sys.stdin.isatty()):
                return

    async def _question(self, fact: RecordEvent) -> PendingDecision | None:
        """Return the approval that this record requests, unless it is decided."""
        match fact.record:
            case EffectStarted(command=AwaitEvent(key=EventKey(wait=ToolApproval(), key_id=promise))):
                found = await ref_of(self._found.session).runtime.approvals.get(ask_id("approval", promise))
            case _:
                return None
        if found.status != "waiting":
            return None
        self._waiting(found.question)
        return found.question

    async def _allow(self, asked: PendingDecision) -> None:
        with contextlib.suppress(Error):  # decided elsewhere first
            await ref_of(self._found.session).runtime.approvals.approve(asked.id, by="you", via="demo")

    async def _taken_over(self, left: StreamInfo) -> None:
        """Report the recovery once another worker owns the session."""
        session = self._found.session
        store = ref_of(session).runtime.store
        while (now := await store.stream(ref_of(session).stream)) is None or now.fence == left.fence:  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.02)
        worker = f"worker {self._found.dead_pid}" if self._found.dead_pid else "its worker"
        last = ago(left.updated_at, ref_of(session).runtime.clock.wall_ms())
        say(f"Recovered 1 interrupted turn ({worker} is gone; last step saved {last})", "ok")

    # --- rows

    def _show(self, fact: RecordEvent) -> None:
        line = self._reader.line(fact)
        if line.begun and line.seq <= self._old:
            self._broken_off.add(line.effect)
        match fact.record:
            case InputAdmitted():
                say(f"session {self._found.session.id}  {line.result}")
            case EffectStarted(kind=EffectKind.TOOL_CALL) if line.seq <= self._old:
                _row(line, "", "intent saved")
            case EffectStarted(kind=EffectKind.TOOL_CALL) if line.name == charge_card.name:
                self._running(line)
            case EffectSettled(outcome=LlmCallOutcome(reply=Reply() as reply)):
                self._answer = reply.text
                self._settled(line)
            case EffectSettled():
                self._settled(line)
            case TurnEnded() as ended:
                self._ended = ended
            case _:
                pass

    def _settled(self, line: JournalLine) -> None:
        if line.seq <= self._old:
            _row(line, "", "replayed", took_ms=0, tokens=0)
        elif line.kind == "probe":
            _row(line, line.tone, _VERDICTS.get(line.result, line.result))
        elif line.kind == "approval":
            _row(line, line.tone, line.result)
        elif line.tone == "doubt":
            _row(line, line.tone, "in doubt: the worker died, no outcome was saved")
        elif line.effect in self._broken_off:
            _row(line, line.tone, "cut off by the crash, re-run, saved")
        else:
            _row(line, line.tone, "saved", took_ms=line.ms, tokens=line.tokens)

    def _running(self, line: JournalLine) -> None:
        slow = f"  <- {self._tour.delay_s:g} s slow on purpose" if self._tour.delay_s >= 1 else ""
        _row(line, "", f"running, attempt {line.attempt}{slow}")
        say()
        say(f"  Break it now, in another terminal:   {kill_command(self._child.pid)}", "warn")
        say()

    def _waiting(self, asked: PendingDecision) -> None:
        _columns(self._saved, "approval", asked.tool, "waiting for you", "warn")
        say()
        if sys.stdin.isatty():
            say("  Approve: press Enter here, or in another terminal", "warn")
            say(f"      {self._approve(asked)}", "warn")
            say(f"  Or break it once more:   {kill_command(self._child.pid)}", "warn")
            say()

    def _approve(self, asked: PendingDecision) -> str:
        return own_command("approvals approve", asked.id, flags=self._db)

    @property
    def _db(self) -> str:
        return f" --db {shlex.quote(shown(self._tour.store))}"

    # --- endings

    def _left(self, asked: PendingDecision) -> int:
        """End without a terminal: the request stays in the store, the worker may stop."""
        self._outside()
        say()
        say("  The approval request is in the store. Nothing runs meanwhile; nothing is lost.", "warn")
        say(f"  Approve                           {self._approve(asked)}")
        say(f"  Carry on with the same command:   {self._tour.command}")
        return AT_APPROVAL

    def _outside(self) -> bool:
        """Report whether the number of charges is as expected."""
        charges, expected = len(self._tour.ledger.charges()), self._found.bookings
        each = "" if expected == 1 else ", one per session"
        good = charges == expected
        counted = f"ledger has {count(charges, 'charge')} (expected {expected}{each})"
        say(f"  Check the ledger:   {counted}  {'OK' if good else 'FAIL'}", "ok" if good else "fail")
        return good

    def _finish(self, ended: TurnEnded) -> int:
        say()
        say(f"  Answer   {reworded(self._answer)}")
        good = self._outside() and ended.status == "finished"
        emails = len(self._tour.outbox.emails())
        if emails > self._found.bookings:
            say(f"  The outbox has {count(emails, 'e-mail')}, at most {self._found.bookings} expected  FAIL", "fail")
            good = False
        say()
        say(f"  Look inside   {own_command('journal show', self._found.session.id, flags=self._db)}")
        say(f"  Once more     {self._tour.command}")
        say(f"  Unattended    {program()} demo --auto     (kills its worker at every step)")
        return OK if good else FAILED

    def _died(self, code: int) -> int:
        say()
        how = "was killed" if code == -signal.SIGKILL else f"ended with code {code}"
        say(f"  Worker {self._child.pid} {how}. Nothing is lost: {self._saved} records are in the store.", "warn")
        say(f"  Carry on with the same command:   {self._tour.command}")
        return FAILED

    def _stopped(self) -> int:
        say()
        say("  Stopped: the worker was killed, as in a crash. Nothing is lost.", "warn")
        say(f"  Carry on with the same command:   {self._tour.command}")
        return INTERRUPTED


_VERDICTS = {
    "happened": "it happened: receipt kept, not charged again",
    "did not happen": "it did not happen: safe to run now",
}


def _row(line: JournalLine, tone: str, state: str, *, took_ms: int | None = None, tokens: int | None = None) -> None:
    spent = f"{took(took_ms) if took_ms is not None else '':>8}  {f'{tokens} tok' if tokens is not None else '':>7}"
    numbers = f"{spent}  " if took_ms is not None else ""
    _columns(line.seq, line.kind, line.name, f"{numbers}{state}", "" if tone == "ok" else tone)


def _columns(seq: int, kind: str, name: str, rest: str, tone: str) -> None:
    say(f"  #{seq:<3} {kind:<8} {name:<15} {rest}", tone)


def _on_enter(then: Callable[[], object]) -> None:
    """Call `then` when the user presses Enter. The waiting thread ends with the process."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        if sys.stdin.readline():
            with contextlib.suppress(RuntimeError):  # the demo is over
                loop.call_soon_threadsafe(then)

    threading.Thread(target=read, daemon=True).start()
