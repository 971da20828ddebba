"""The plugin that makes stores slow keeps what stores promise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import cast

import pytest

from dev import jitter
from perdure.commit.plan import Plan


@pytest.fixture(autouse=True)
def _slow(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = iter([0.03, 0.0] * 50)
    monkeypatch.setattr(jitter, "delay_s", lambda: next(delays))


class Store:
    """Keeps in mind what was done, and when."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def _put(self, what: str) -> str:
        self.done.append(what)
        return what

    def _append(self, plan: Plan) -> Awaitable[str]:
        self.done.append(f"append {plan.n}")
        return self._put(f"told {plan.n}")

    async def _close(self) -> None:
        self.done.append("close")

    put = jitter.slowed(_put)
    append = jitter.slowed_append(_append)  # pyright: ignore[reportArgumentType] - a receipt is a text here
    close = jitter.slowed_close(_close)


def plan(n: int) -> Plan:
    return cast(Plan, SimpleNamespace(stream="s", n=n))


async def test_cancelled_caller_cancels_no_write() -> None:
    store = Store()
    asking = asyncio.create_task(store.put("a"))
    await asyncio.sleep(0)
    asking.cancel()
    await store.close()
    assert store.done == ["a", "close"]


async def test_appends_are_submitted_at_the_call_and_told_in_their_order() -> None:
    store, told = Store(), list[object]()
    ending = [asyncio.ensure_future(store.append(plan(n))) for n in (1, 2)]
    for one in ending:
        one.add_done_callback(lambda done: told.append(done.result()))
    assert store.done == ["append 1", "append 2"]
    await asyncio.wait(ending)
    assert told == ["told 1", "told 2"]
