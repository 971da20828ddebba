"""Crash points: stop the process, for real, at a chosen durable boundary.

A boundary is the moment just before a write is handed to the store, or just after it became durable. A run with a
`trace` lists them; a run with a `kill_at` ends there by SIGKILL, as a power cut would: no `finally`, no flush.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from perdure.commit.plan import Plan, Receipt
from perdure.ids import StreamId, WorkerId
from perdure.inbox.admit import Admission, Delivery
from perdure.store.protocol import Claim, Held, Store
from perdure.vocab.records import EffectSettled, EffectStarted, read

KILL_AT = "PERDURE_KILL_AT"
TRACE = "PERDURE_TRACE"


@dataclass(frozen=True, slots=True)
class Boundary:
    """One crash point: the n-th write of a run, before or after it, and what it writes."""

    n: int
    side: str
    what: str

    def __str__(self) -> str:
        return f"{self.n}:{self.side}:{self.what}"

    @staticmethod
    def parse(text: str) -> Boundary:
        """The inverse of `str`."""
        n, side, what = text.split(":", 2)
        return Boundary(int(n), side, what)


def die() -> None:
    """End this process now, as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def tripwire(store: Store, on_boundary: Callable[[Boundary], None], *, hold_after: int | None = None) -> Store:
    """The same store, telling `on_boundary` before and after each write of a session.

    Writes after the `hold_after`-th never reach the store: a group commit would otherwise make them durable together
    with it, and "right after that write" would not be a point in time.
    """
    return cast(Store, _Tripwire(store, on_boundary, hold_after))


def tripwire_from_environment(store: Store) -> Store:
    """The same store, with the crash point or the trace file that the environment names; for child processes."""
    named, trace = os.environ.get(KILL_AT), os.environ.get(TRACE)
    if not named and not trace:
        return store
    kill_at = Boundary.parse(named) if named else None

    def on_boundary(boundary: Boundary) -> None:
        if trace:
            with Path(trace).open("a") as file:
                file.write(f"{boundary}\n")
        if kill_at and (boundary.n, boundary.side) == (kill_at.n, kill_at.side):
            die()

    hold_after = kill_at.n if kill_at and kill_at.side == "after" else None
    return tripwire(store, on_boundary, hold_after=hold_after)


class _Tripwire:
    def __init__(self, store: Store, on_boundary: Callable[[Boundary], None], hold_after: int | None) -> None:
        self._store = store
        self._on_boundary = on_boundary
        self._hold_after = hold_after
        self._writes = 0

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    @property
    def _held(self) -> bool:
        return self._hold_after is not None and self._writes >= self._hold_after

    def _next(self, what: str) -> Callable[[], None]:
        self._writes += 1
        n = self._writes
        self._on_boundary(Boundary(n, "before", what))
        return lambda: self._on_boundary(Boundary(n, "after", what))

    def append(self, plan: Plan) -> Awaitable[Receipt]:
        """Append, with a boundary on each side."""
        if self._held:
            return asyncio.get_running_loop().create_future()
        after = self._next(f"append {describe(plan)}")
        future = asyncio.ensure_future(self._store.append(plan))
        if future.done():
            after()
        else:
            future.add_done_callback(lambda _: after())
        return future

    async def admit(self, delivery: Delivery, *, claim_for: WorkerId | None = None) -> Admission:
        """Admit, with a boundary on each side."""
        if self._held:
            await asyncio.get_running_loop().create_future()
        after = self._next(f"admit {type(delivery.item).__name__.lower()}")
        admission = await self._store.admit(delivery, claim_for=claim_for)
        after()
        return admission

    async def claim(self, stream: StreamId, worker: WorkerId) -> Claim | Held | None:
        """Claim, with a boundary on each side."""
        if self._held:
            await asyncio.get_running_loop().create_future()
        after = self._next("claim")
        claim = await self._store.claim(stream, worker)
        after()
        return claim


def describe(plan: Plan) -> str:
    """What a plan writes, in a few words."""
    words: list[str] = []
    for entry in plan.entries:
        record = read(entry.kind, entry.data)
        named = f" {record.id}" if isinstance(record, EffectStarted | EffectSettled) else ""
        words.append(f"{entry.kind}{named}")
    return ", ".join(words) or "nothing"
