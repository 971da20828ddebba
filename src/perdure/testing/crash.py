"""Crash points: end a process, or simulate its end, at a chosen boundary.

A boundary is the time just before or after something leaves the process: a write to the store, a tool call, an
effect on the test's world. A run with a `trace` lists its boundaries. A run with a `kill_at` ends there by SIGKILL,
like a power cut: no `finally`, no flush.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, cast

from perdure.commit.changes import Intervention
from perdure.commit.plan import Entry, Plan, Receipt
from perdure.errors import Error
from perdure.ids import WorkerId
from perdure.inbox.admit import Delivery
from perdure.inbox.items import Input
from perdure.store.protocol import Store
from perdure.vocab.records import EffectSettled, EffectStarted, ProcessEvent, read

KILL_AT = "PERDURE_KILL_AT"
TRACE = "PERDURE_TRACE"

Place = Literal["write", "tool", "world"]


@dataclass(frozen=True, slots=True)
class Boundary:
    """One crash point: before or after the n-th write, tool call or effect on the world of a run, and its content.

    As a place to die at, `n` = 0 is the first boundary whose content includes `what`. Where appends are grouped, as on
    a database server, the n-th write differs between runs, but a fact does not.
    """

    n: int
    side: str
    what: str
    place: Place = "write"

    def __str__(self) -> str:
        place = "" if self.place == "write" else f"{self.place}."
        return f"{place}{self.n}:{self.side}:{self.what}"

    @staticmethod
    def parse(text: str) -> Boundary:
        """Parse the text form of a boundary."""
        where, side, what = text.split(":", 2)
        place, _, n = where.rpartition(".")
        return Boundary(int(n), side, what, cast(Place, place or "write"))

    def is_at(self, other: Boundary) -> bool:
        """Return True if both are the same boundary.

        Numbered boundaries may differ in content between two runs; named ones may not.
        """
        same = other.what in self.what if other.n == 0 else self.n == other.n
        return same and (self.place, self.side) == (other.place, other.side)


class Crashed(BaseException):
    """Raised in a simulated dead process where its code would continue. Must not be caught."""


def die() -> None:
    """End this process now, as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


class Gate:
    """The passage of everything that leaves one process. `on_boundary` is called, and may end the process there.

    Writes after the fatal one never reach the store. A group commit would otherwise make them durable with it, and
    "right after that write" would not be a point in time.
    """

    def __init__(self, on_boundary: Callable[[Boundary], None], *, last: Boundary | None = None) -> None:
        self._on_boundary = on_boundary
        self._last = last
        self._held = False
        self._counts: Counter[Place] = Counter()
        self._lock = threading.Lock()  # sync tools pass on separate threads
        self.dead = False
        self.unwinding = False
        self._watching = True

    @staticmethod
    def at(boundary: Boundary | None, on_boundary: Callable[[Boundary], None]) -> Gate:
        """Return a gate for a run that ends at this boundary, or at none."""
        held = boundary is not None and (boundary.place, boundary.side) == ("write", "after")
        return Gate(on_boundary, last=boundary if held else None)

    def before(self, place: Place, what: str) -> Boundary:
        """Report that something is about to leave the process.

        Raises:
            Crashed: the process is dead, so nothing may leave.
        """
        with self._lock:
            self._counts[place] += 1
            boundary = Boundary(self._counts[place], "before", " ".join(what.split()), place)
            if self._last and replace(boundary, side="after").is_at(self._last):
                self._held = True
        self._pass(boundary)
        return boundary

    def after(self, boundary: Boundary) -> None:
        """Report that it is done.

        Raises:
            Crashed: the process is dead, so its code must not learn of this.
        """
        self._pass(replace(boundary, side="after"))

    def _pass(self, boundary: Boundary) -> None:
        if self._watching and not self.dead:
            self._on_boundary(boundary)
        if self.dead:
            raise Crashed

    def shuts(self, place: Place) -> bool:
        """Return True if nothing of this kind may leave any more."""
        return self.dead or (place == "write" and self._held and self._watching)

    def look_away(self) -> None:
        """Stop reporting boundaries: the run is over and its process ends in order."""
        self._watching = False

    async def forever(self) -> NoReturn:
        """Wait forever, like a call in a dead process."""
        if self.unwinding:
            raise asyncio.CancelledError
        await asyncio.get_running_loop().create_future()
        raise Crashed


def tripwire(store: Store, on_boundary: Callable[[Boundary], None]) -> Store:
    """Wrap a store so that `on_boundary` is called before and after each append, admission and claim."""
    return gated(store, Gate(on_boundary), quiet=_ALL_BUT_THE_HOT)


def tripwire_from_environment(store: Store) -> Store:
    """Wrap a store with the crash point or trace file that the environment names; for child processes."""
    named, trace = os.environ.get(KILL_AT), os.environ.get(TRACE)
    if not named and not trace:
        return store
    kill_at = Boundary.parse(named) if named else None
    gate = Gate.at(kill_at, fatal(kill_at, Path(trace) if trace else None))
    return gated(store, gate, quiet=_ALL_BUT_THE_HOT)


def fatal(kill_at: Boundary | None, trace: Path | None) -> Callable[[Boundary], None]:
    """Return the boundary callback of a process to be killed: trace the boundary, and die if it is the fatal one."""

    def on_boundary(boundary: Boundary) -> None:
        if trace:
            with trace.open("a") as file:
                file.write(f"{boundary}\n")
        if kill_at and boundary.is_at(kill_at):
            die()

    return on_boundary


class _AllBut:
    def __init__(self, *names: str) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name not in self._names


_ALL_BUT_THE_HOT = _AllBut("append", "admit", "claim")

QUIET = frozenset(
    {"open", "close", "register", "renew", "deregister", "workers", "is_dead"}
    | {"claimable", "next_due", "load", "inbox", "read", "find", "stream", "streams", "peek", "blob"}
    | {"count", "newest", "marks", "heads", "asked", "asked_as", "now"}
    | {"version", "check", "permits", "claim_ready", "exchange"}
)
"""Store calls without a crash point: reads, a worker's writes about itself, and the work scan.

Death after a scanned claim equals death at an explicit claim. All other store calls have crash points.
"""


def gated(store: Store, gate: Gate, *, quiet: Container[str] = QUIET) -> Store:
    """Wrap a store in a gate. A dead process gets no reply from it."""
    return cast(Store, _Gated(store, gate, quiet))


class _Gated:
    def __init__(self, store: Store, gate: Gate, quiet: Container[str]) -> None:
        self._store = store
        self._gate = gate
        self._quiet = quiet

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            found = getattr(self._store, name)
            return partial(self._call, name, found) if inspect.iscoroutinefunction(found) else found

    def lease_live(self, worker: WorkerId) -> bool:
        """Return True if the lease holds. A dead process has none."""
        return not self._gate.dead and self._store.lease_live(worker)

    async def stop_renewing(self) -> None:
        """Close the connection of a heartbeat. The end of a process does that, too."""
        await self._store.stop_renewing()

    async def close(self) -> None:
        """Close the store, unless the process is dead; then the kit closes it."""
        if not self._gate.dead:
            await self._store.close()

    def append(self, plan: Plan) -> Awaitable[Receipt]:
        """Append, with a boundary on each side."""
        promised: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        if self._gate.unwinding:
            promised.cancel()
        if self._gate.shuts("write"):
            return promised
        try:
            boundary = self._gate.before("write", f"append {describe(plan)}")
            future = asyncio.ensure_future(self._store.append(plan))
            if future.done():
                self._gate.after(boundary)
                return future
        except Crashed:
            return promised
        future.add_done_callback(partial(self._appended, boundary, promised))
        return promised

    def _appended(self, boundary: Boundary, promised: asyncio.Future[Receipt], future: asyncio.Future[Receipt]) -> None:
        try:
            self._gate.after(boundary)
        except Crashed:
            return
        if promised.cancelled() or future.cancelled():
            promised.cancel()
        elif problem := future.exception():
            promised.set_exception(problem)
            promised.exception()  # an append need not be awaited
        else:
            promised.set_result(future.result())

    async def _call(
        self, name: str, method: Callable[..., Awaitable[object]], *args: object, **named: object
    ) -> object:
        gate = self._gate
        if name in self._quiet:
            return await method(*args, **named) if not gate.dead else await gate.forever()
        if gate.shuts("write"):
            await gate.forever()
        try:
            boundary = gate.before("write", _label(name, args))
            done = await method(*args, **named)
            gate.after(boundary)
        except Crashed:
            await gate.forever()
        return done


def _label(name: str, args: tuple[object, ...]) -> str:
    match args:
        case (Delivery(item=Input(mode="steer" | "interrupt" as mode)), *_):
            return f"{name} input {mode}"
        case (Delivery(item=item), *_):
            return f"{name} {type(item).__name__.lower()}"
        case (Intervention(notes=notes), *_):
            return " ".join((name, *(note.kind for note in notes)))
        case _:
            return name


def describe(plan: Plan) -> str:
    """Return the content of a plan in a few words."""
    words: list[str] = []
    for entry in plan.entries:
        words.append(f"{entry.kind}{_effect_of(entry)}")
    return ", ".join(words) or "nothing"


def _effect_of(entry: Entry) -> str:
    try:
        record = read(entry.kind, entry.data)
    except Error:  # encrypted by a codec: only the kind is readable
        return ""
    match record:
        case EffectStarted(id=name) | EffectSettled(id=name) | ProcessEvent(event=name):
            return f" {name}"
        case _:
            return ""
