"""Work on large values in a thread, so that a step of the event loop stays short whatever comes from outside (law 21).

A thread competes for the interpreter, but the loop runs between its slices. Small work stays on the loop, because a
thread costs more than the work.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import cache, partial
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES = 256 * 1024
"""Above this size, work goes to a thread. Even ten passes over as many bytes take a few milliseconds."""
THREADS = 2
_PART_BYTES = 64
"""Weight of one part of a value: a dict entry costs more than its characters."""


async def offload(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that handles `size` bytes: in a thread if they are many, else at once.

    A cancellation of the caller does not lose the result: it takes effect at the caller's next wait, as if the function
    had run on the loop.
    """
    if size <= LARGE_BYTES:
        return function(*args, **kwargs)
    here = copy_context()
    work = asyncio.get_running_loop().run_in_executor(_threads(), partial(here.run, function, *args, **kwargs))
    task, cancelled = asyncio.current_task(), False
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled and task is not None:
        task.uncancel()
        task.cancel()
    return work.result()


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the threads of this process. The loop's own may all be waiting for commands."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="perdure:large")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a forked process has none of its parent's threads


def weight_of(value: object) -> int:
    """Return the approximate size of a value, or any number above `LARGE_BYTES` for a large one.

    The walk ends at that size, so its own cost is bounded. Fields of objects count; code of the objects is not run.
    """
    weight, layer = 0, [value]
    while layer:
        following: list[object] = []
        for one in layer:
            weight += _PART_BYTES
            if isinstance(one, str | bytes | bytearray):
                weight += len(one)
            else:
                weight += _PART_BYTES * _add_parts(one, following, LARGE_BYTES // _PART_BYTES)
            if weight > LARGE_BYTES:
                return weight
        layer = following
    return weight


def _add_parts(value: object, to: list[object], most: int) -> int:
    """Add the parts of a value to a list, unless they are more than `most`. Return their number."""
    parts: Iterable[object]
    match value:
        case dict():
            known = cast("dict[object, object]", value)
            count, parts = len(known), (part for pair in known.items() for part in pair)
        case list() | tuple() | set() | frozenset():
            known = cast("list[object]", value)
            count, parts = len(known), known
        case _:
            known = _fields(value)
            count, parts = len(known), known
    if count <= most:
        to.extend(parts)
    return count


def _fields(value: object) -> list[object]:
    """Return the values of an object's fields, without calling its `__getattr__`."""
    kind = type(value)
    names = (*getattr(kind, "__struct_fields__", ()), *getattr(kind, "__slots__", ()), "__dict__")
    found = list[object]()
    for name in names:
        with suppress(AttributeError):
            found.append(object.__getattribute__(value, name))
    return found
