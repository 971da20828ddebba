"""Concurrent branches of a process: all of them, or the first to end.

Laws: a branch that is stopped because of another takes no more input and makes no progress, on this entry and every
later one. An exception in a branch reaches only the caller that awaits it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar, cast

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.tools.body import Body
from perdure.tools.branches import Branch, along, branch
from perdure.tools.contained import drive
from perdure.tools.step_outcomes import Parked
from perdure.tools.threads import Ended, Raised, Returned

T = TypeVar("T")


async def gather(body: Body, branches: Sequence[Awaitable[T]]) -> list[T]:
    """Return the results of all branches. A failure is recorded, stops the other branches where they wait, and is
    raised."""
    name = str(body.count("gather"))
    known = body.recorded("gather", name)
    failed: int | None = known["failed"] if known is not None and known["of"] == len(branches) else None
    places = [branch() for _ in branches]
    if failed is not None:
        for place in _others(places, places[failed]):
            place.held = asyncio.Event()

    def came_back(place: Branch, ended: Ended) -> None:
        if _failed(ended) and not any(one.lost for one in places):
            for other in _others(places, place):
                other.lost = True
            if failed is None:
                body.record("gather", name, {"failed": places.index(place), "of": len(places)})

    tasks = [_begin(body, place, work, came_back) for place, work in zip(places, branches, strict=True)]
    try:
        if failed is not None:
            _value_of(await tasks[failed])
            for place in places:  # the recorded failure did not happen again
                if place.held is not None:
                    place.held.set()
        for ended in asyncio.as_completed(tasks):
            _value_of(await ended)
        return [cast("T", _value_of(task.result())) for task in tasks]
    finally:
        for place, task in zip(places, tasks, strict=True):
            _stop(place, task)


async def first(body: Body, name: str, branches: Mapping[str, Awaitable[Json]], *, stops: bool) -> tuple[str, Json]:
    """Return the name and value of the first branch to end. With `stops`, the others are stopped where they wait."""
    if not branches:
        raise Error(Code.INVALID_ARGUMENT, f"ctx.race({name!r}) has no branches")
    known = body.recorded("first", name)
    winner: str | None = known["winner"] if known is not None and known["winner"] in branches else None
    places = {key: branch() for key in branches}

    def lose() -> None:
        for place in _others(places.values(), places[winner] if winner else None):
            place.lost = stops

    def came_back(place: Branch, ended: Ended) -> None:
        nonlocal winner
        if winner is None and (isinstance(ended, Returned) or _failed(ended)):
            winner = next(key for key in places if places[key] is place)
            lose()

    if winner is not None:
        lose()
    tasks = {key: _begin(body, places[key], work, came_back) for key, work in branches.items()}
    try:
        waiting = tasks.values() if winner is None else (tasks[winner],)
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if winner is None:  # cancelled
            return "", _value_of(done.pop().result())
        fates: Json = {key: _fate(task, stops) for key, task in tasks.items() if key != winner}
        body.record("first", name, {"winner": winner, "losers": fates})
        return winner, _value_of(tasks[winner].result())
    finally:
        for key, task in tasks.items():
            if stops:
                _stop(places[key], task)


def _begin(
    body: Body, place: Branch, work: Awaitable[T], came_back: Callable[[Branch, Ended], None]
) -> asyncio.Task[Ended]:
    async def run() -> Ended:
        ended = await drive(lambda: along(place, work))
        if not body.life.parked:
            came_back(place, ended)
        return ended

    return asyncio.create_task(run())


def _stop(place: Branch, task: asyncio.Task[Ended]) -> None:
    if not place.stopped:  # a stopped branch may be cleaning up
        place.stopped = True
        task.cancel()


def _fate(task: asyncio.Task[Ended], stops: bool) -> str:
    if task.done() and (isinstance(task.result(), Returned) or _failed(task.result())):
        return "ended"
    return "stopped" if stops else "left"


def _others(places: Iterable[Branch], mine: Branch | None) -> list[Branch]:
    return [place for place in places if place is not mine]


def _failed(ended: Ended) -> bool:
    """Return whether a branch raised an error of its own, instead of being cancelled or parked."""
    return isinstance(ended, Raised) and not isinstance(ended.error, asyncio.CancelledError | Parked)


def _value_of(ended: Ended) -> object:
    match ended:
        case Returned(value=value):
            return value
        case Raised(error=error):
            raise error
        case _:
            raise asyncio.CancelledError
