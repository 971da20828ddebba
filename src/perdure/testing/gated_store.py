"""A store that holds appends back until a test releases them, to observe a process before anything is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from perdure.commit.plan import Plan, Receipt
from perdure.store.protocol import Store
from perdure.testing.crash import describe


class AppendGate:
    """A gate that holds the first append for which `holds` is true, and all later ones, until `release`."""

    def __init__(self, holds: Callable[[str], bool]) -> None:
        self._holds = holds
        self._open = False
        self._held: list[Callable[[], None]] = []
        self.reached = asyncio.Event()

    def guard(self, store: Store) -> Store:
        """Wrap a store in this gate."""
        return cast(Store, _Held(store, self))

    def release(self) -> None:
        """Submit all held appends, in order."""
        self._open = True
        held, self._held = self._held, []
        for submit in held:
            submit()

    def stops(self, plan: Plan) -> bool:
        """Return True if this append must wait."""
        return not self._open and (bool(self._held) or self._holds(describe(plan)))

    def hold(self, submit: Callable[[], None]) -> None:
        """Keep an append for later."""
        self._held.append(submit)
        self.reached.set()


class _Held:
    def __init__(self, store: Store, gate: AppendGate) -> None:
        self._store = store
        self._gate = gate

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    def append(self, plan: Plan) -> Awaitable[Receipt]:
        """Append at once, or when the gate opens."""
        if not self._gate.stops(plan):
            return self._store.append(plan)
        promised: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

        def submit() -> None:
            asyncio.ensure_future(self._store.append(plan)).add_done_callback(lambda done: _copy(done, promised))

        self._gate.hold(submit)
        return promised


def _copy(done: asyncio.Future[Receipt], promised: asyncio.Future[Receipt]) -> None:
    if promised.done():
        return
    if problem := done.exception():
        promised.set_exception(problem)
    else:
        promised.set_result(done.result())
