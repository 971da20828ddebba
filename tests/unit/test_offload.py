"""Work on large values: where it runs, what a cancellation does, and which values are large."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar

import msgspec
import pytest

from perdure.codec import Json
from perdure.offload import LARGE_BYTES, offload, weight_of

HERE: ContextVar[str] = ContextVar("HERE")


async def test_small_work_runs_on_the_loop_and_large_work_in_a_thread() -> None:
    HERE.set("the caller")
    where: Callable[[str], tuple[str, str, int]] = lambda name: (name, HERE.get(), threading.get_ident())  # noqa: E731
    assert await offload(LARGE_BYTES, where, "small") == ("small", "the caller", threading.get_ident())
    name, context, thread = await offload(LARGE_BYTES + 1, where, name="large")
    assert (name, context) == ("large", "the caller")
    assert thread != threading.get_ident()


async def test_error_of_large_work_is_raised() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await offload(LARGE_BYTES + 1, int, "x")


async def test_t_tool_03_cancellation_takes_effect_after_the_result_is_kept() -> None:
    begun, goes_on, kept = threading.Event(), threading.Event(), list[str]()

    def work() -> str:
        begun.set()
        assert goes_on.wait(10)
        return "the result"

    async def call() -> None:
        kept.append(await offload(LARGE_BYTES + 1, work))
        await asyncio.sleep(0)
        kept.append("went on")

    task = asyncio.create_task(call())
    assert await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    goes_on.set()
    await asyncio.wait([task])
    assert (kept, task.cancelled()) == (["the result"], True)


async def test_deadline_during_large_work_is_a_timeout() -> None:
    released = threading.Event()

    async def work() -> None:
        asyncio.get_running_loop().call_later(0.05, released.set)
        await offload(LARGE_BYTES + 1, released.wait, 10)
        await asyncio.sleep(10)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work(), 0.01)


class Point(msgspec.Struct):
    text: str


class Plain:
    def __init__(self, text: str) -> None:
        self.text = text

    def __getattr__(self, name: str) -> object:
        raise AssertionError("code of the value was run")


class Slotted:
    __slots__ = ("missing", "text")

    def __init__(self, text: str) -> None:
        self.text = text

    def __getattr__(self, name: str) -> object:
        raise AssertionError("code of the value was run")


TEXT = "x" * (LARGE_BYTES + 1)
CYCLE: list[Json] = []
CYCLE.append(CYCLE)


LARGE: dict[str, Callable[[], object]] = {
    "text": lambda: TEXT,
    "bytes": TEXT.encode,
    "key": lambda: {TEXT: 1},
    "deep": lambda: [[{"a": (TEXT,)}]],
    "many parts": lambda: [0] * LARGE_BYTES,
    "set": lambda: {TEXT},
    "struct": lambda: Point(TEXT),
    "object": lambda: Plain(TEXT),
    "slots": lambda: Slotted(TEXT),
    "many objects": lambda: [Point("x" * 1000)] * 1000,
    "cycle": lambda: CYCLE,
}
SMALL: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "text": lambda: "x" * 1000,
    "parts": lambda: {"a": [1, 2]},
    "struct": lambda: Point("x"),
    "object": lambda: Plain("x"),
    "slots": lambda: Slotted("x"),
    "iterator, which is not consumed": lambda: iter([TEXT]),
}


@pytest.mark.parametrize("name", LARGE)
def test_t_tool_03_large_values_are_found(name: str) -> None:
    assert weight_of(LARGE[name]()) > LARGE_BYTES


@pytest.mark.parametrize("name", SMALL)
def test_small_values_are_not_large(name: str) -> None:
    assert weight_of(SMALL[name]()) < LARGE_BYTES // 10
