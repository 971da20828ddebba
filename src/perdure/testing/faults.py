"""A store that fails on command: before a write (refused), or after it (only the reply is lost)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Literal, cast

from perdure.commit.plan import Plan, Receipt
from perdure.errors import Code, Error
from perdure.store.protocol import Store

Side = Literal["before", "after"]


def faulty_store(store: Store, *, at: int, side: Side, code: Code, times: int = 1) -> Store:
    """Wrap a store so that its appends from the `at`-th on fail, `times` times."""
    return cast(Store, _Faulty(store, at, side, code, times))


class _Faulty:
    def __init__(self, store: Store, at: int, side: Side, code: Code, times: int) -> None:
        self._store = store
        self._at = at
        self._side = side
        self._code = code
        self._times = times
        self._appends = 0

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    def append(self, plan: Plan) -> Awaitable[Receipt]:
        """Append, or fail if this append is one of those chosen."""
        self._appends += 1
        if self._appends < self._at or self._times == 0:
            return self._store.append(plan)
        self._times -= 1
        return asyncio.ensure_future(self._fail(plan))

    async def _fail(self, plan: Plan) -> Receipt:
        if self._side == "after":
            await self._store.append(plan)
        raise Error(self._code, "injected store failure")
