"""Crash points: stop a process, really or as good as that, at a chosen boundary.

A boundary is the moment just before something leaves the process, or just after it is done: a write to the store, a
tool call, an effect on the test's world. A run with a `trace` lists them; a run with a `kill_at` ends there by
SIGKILL, as a power cut would: no `finally`, no flush.
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
    """One crash point: the n-th write (tool call, effect on the world) of a run, before or after it, and what it is.

    As a place to die at, `n` = 0 is the first of which `what` is a part: where appends are grouped, as on a database
    server, the n-th write is another one in every run, and a fact is not.
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
        """The inverse of `str`."""
        where, side, what = text.split(":", 2)
        place, _, n = where.rpartition(".")
        return Boundary(int(n), side, what, cast(Place, place or "write"))

    def is_at(self, other: Boundary) -> bool:
        """Whether this is the same moment; what happens there may differ between two runs, unless it is named so."""
        same = other.what in self.what if other.n == 0 else self.n == other.n
        return same and (self.place, self.side) == (other.place, other.side)


class Crashed(BaseException):
    """Raised in a process that counts as dead, where it would have gone on: nobody may catch it and carry on."""


def die() -> None:
    """End this process now, as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


class Gate:
    """Where everything passes that leaves one process. `on_boundary` is told, and may end the process there.

    Writes after the one it is to die after never reach the store: a group commit would otherwise make them durable
    together with it, and "right after that write" would not be a point in time.
    """

    def __init__(self, on_boundary: Callable[[Boundary], None], *, last: Boundary | None = None) -> None:
        self._on_boundary = on_boundary
        self._last = last
        self._held = False
        self._counts: Counter[Place] = Counter()
        self._lock = threading.Lock()  # sync tools pass on threads of their own
        self.dead = False
        self.unwinding = False
        self._watching = True

    @staticmethod
    def at(boundary: Boundary | None, on_boundary: Callable[[Boundary], None]) -> Gate:
        """A gate for a run that is to end at this boundary, or nowhere."""
        held = boundary is not None and (boundary.place, boundary.side) == ("write", "after")
        return Gate(on_boundary, last=boundary if held else None)

    def before(self, place: Place, what: str) -> Boundary:
        """Something is about to leave.

        Raises:
            Crashed: the process is dead: it must not.
        """
        with self._lock:
            self._counts[place] += 1
            boundary = Boundary(self._counts[place], "before", " ".join(what.split()), place)
            if self._last and replace(boundary, side="after").is_at(self._last):
                self._held = True
        self._pass(boundary)
        return boundary

    def after(self, boundary: Boundary) -> None:
        """It is done.

        Raises:
            Crashed: the process is dead: nobody in it learns of this.
        """
        self._pass(replace(boundary, side="after"))

    def _pass(self, boundary: Boundary) -> None:
        if self._watching and not self.dead:
            self._on_boundary(boundary)
        if self.dead:
            raise Crashed

    def shuts(self, place: Place) -> bool:
        """Whether nothing of this kind may leave any more."""
        return self.dead or (place == "write" and self._held and self._watching)

    def look_away(self) -> None:
        """What comes now is of no interest: the run is over and its process ends in order."""
        self._watching = False

    async def forever(self) -> NoReturn:
        """What a dead process gets for an answer."""
        if self.unwinding:
            raise asyncio.CancelledError
        await asyncio.get_running_loop().create_future()
        raise Crashed


def tripwire(store: Store, on_boundary: Callable[[Boundary], None]) -> Store:
    """The same store, telling `on_boundary` before and after each append, admission and claim."""
    return gated(store, Gate(on_boundary), quiet=_ALL_BUT_THE_HOT)


def tripwire_from_environment(store: Store) -> Store:
    """The same store, with the crash point or the trace file that the environment names; for child processes."""
    named, trace = os.environ.get(KILL_AT), os.environ.get(TRACE)
    if not named and not trace:
        return store
    kill_at = Boundary.parse(named) if named else None
    gate = Gate.at(kill_at, fatal(kill_at, Path(trace) if trace else None))
    return gated(store, gate, quiet=_ALL_BUT_THE_HOT)


def fatal(kill_at: Boundary | None, trace: Path | None) -> Callable[[Boundary], None]:
    """What to do at a boundary in a process that is to be killed: write it down, and die if it is the one."""

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
    {"open", "close", "register", "renew", "retire", "workers", "is_dead"}
    | {"claimable", "next_due", "load", "inbox", "read", "find", "stream", "streams", "peek", "blob"}
    | {"count", "newest", "marks", "heads", "asked", "asked_as", "now"}
    | {"version", "check", "permits", "claim_ready", "exchange"}
)
"""What is no crash point: reads, what a worker writes about itself, and what it takes up when it happens to look (who
dies with a stream that it has only claimed dies at the claims that are one). Whatever else a store can do is one."""


def gated(store: Store, gate: Gate, *, quiet: Container[str] = QUIET) -> Store:
    """The same store, behind a gate. Once the gate's process is dead, it answers nobody."""
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
        """Whether the lease holds; the dead have none."""
        return not self._gate.dead and self._store.lease_live(worker)

    async def close(self) -> None:
        """Close; for the dead somebody else does."""
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
            promised.exception()  # nobody has to await an append
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
    """What a plan writes, in a few words."""
    words: list[str] = []
    for entry in plan.entries:
        words.append(f"{entry.kind}{_effect_of(entry)}")
    return ", ".join(words) or "nothing"


def _effect_of(entry: Entry) -> str:
    try:
        record = read(entry.kind, entry.data)
    except Error:  # sealed by a codec: its kind is all there is to see
        return ""
    match record:
        case EffectStarted(id=name) | EffectSettled(id=name) | ProcessEvent(event=name):
            return f" {name}"
        case _:
            return ""
