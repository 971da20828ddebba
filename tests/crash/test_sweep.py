"""Kill a real process at every durable boundary and inside every outside effect, start it again, count.

The tables are written by hand from the promise: a `once` call whose intent is durable is never dispatched again by a
crash; whatever had not been recorded and may run twice runs again, under the same key; nothing accepted is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perdure.testing.crash import Boundary
from tests.crash.harness import (
    assert_valid_for_a_provider,
    at,
    child,
    final_history,
    inside,
    kill_and_recover,
    trace,
)
from tests.crash.scenarios import SILENT, Ledger

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

Count = int | tuple[int, ...]


@dataclass(frozen=True)
class Expected:
    """Dispatches by tool: when the process dies there, and when its successor is done. A tuple lists what may be."""

    at_kill: dict[str, Count]
    at_end: dict[str, Count]


def charge(at_kill: int, at_end: int) -> Expected:
    return Expected({"charge": at_kill}, {"charge": at_end})


def three(kill: tuple[Count, Count, Count], end: tuple[Count, Count, Count], names: tuple[str, str, str]) -> Expected:
    return Expected(dict(zip(names, kill, strict=True)), dict(zip(names, end, strict=True)))


def classes(kill: tuple[Count, Count, Count], end: tuple[Count, Count, Count]) -> Expected:
    return three(kill, end, ("look", "put", "charge"))


def queue(kill: tuple[int, int, int], end: tuple[int, int, int]) -> Expected:
    return three(kill, end, ("first", "second", "third"))


@dataclass(frozen=True)
class Sweep:
    """One scenario: what it writes, and what must be true of a kill at each point."""

    writes: list[str]
    points: dict[str, Expected]
    inside: dict[str, Expected] = field(default_factory=dict[str, Expected])


ADMIT = "admit input"
OPEN = "append input_admitted, turn_opened, effect_started m1.1"
CHARGED = "append effect_settled m1.1, effect_started c1.0.1"
LAST = "append effect_settled m2.1, turn_ended"

ONE_ONCE_WRITES = [ADMIT, OPEN, CHARGED, "append effect_settled c1.0.1, effect_started m2.1", LAST]
TOLD = {
    "1:before": charge(0, 1),
    "1:after": charge(0, 1),
    "2:before": charge(0, 1),
    "2:after": charge(0, 1),
    "3:before": charge(0, 1),
    "3:after": charge(0, 0),  # the intent is durable: the call may have been sent
    "4:before": charge(1, 1),
    "4:after": charge(1, 1),
    "5:before": charge(1, 1),
    "5:after": charge(1, 1),
}
INSIDE_ONCE = {"charge": charge(1, 1), "model 2": charge(1, 1)}

SWEEPS: dict[str, Sweep] = {
    "one_once": Sweep(ONE_ONCE_WRITES, TOLD, INSIDE_ONCE),
    "failing": Sweep(ONE_ONCE_WRITES, TOLD, INSIDE_ONCE),
    "timing_out": Sweep(ONE_ONCE_WRITES, TOLD, INSIDE_ONCE),
    "probe_unknown": Sweep(ONE_ONCE_WRITES, TOLD, INSIDE_ONCE),
    "probed": Sweep(
        ONE_ONCE_WRITES,
        {**TOLD, "3:after": charge(0, 1)},  # the bank says it did not happen, and the former worker is dead
        INSIDE_ONCE,
    ),
    "retried": Sweep(
        [
            ADMIT,
            OPEN,
            CHARGED,
            "append effect_settled c1.0.1, effect_started c1.0.1.sleep",
            "append effect_settled c1.0.1.sleep, effect_started c1.0.2",
            "append effect_settled c1.0.2, effect_started m2.1",
            LAST,
        ],
        {
            "1:before": charge(0, 2),
            "1:after": charge(0, 2),
            "2:before": charge(0, 2),
            "2:after": charge(0, 2),
            "3:before": charge(0, 2),
            "3:after": charge(0, 0),
            "4:before": charge(1, 1),  # the call failed safely, but no record says so
            "4:after": charge(1, 2),
            "5:before": charge(1, 2),
            "5:after": charge(1, 1),
            "6:before": charge(2, 2),
            "6:after": charge(2, 2),
            "7:before": charge(2, 2),
            "7:after": charge(2, 2),
        },
        {"charge": charge(1, 1), "model 2": charge(2, 2)},
    ),
    "stream_cut": Sweep(
        [
            ADMIT,
            OPEN,
            CHARGED,
            "append effect_settled c1.0.1, effect_started m2.1",
            "append effect_settled m2.1, effect_started m2.1.sleep",
            "append effect_settled m2.1.sleep, effect_started m2.2",
            "append effect_settled m2.2, turn_ended",
        ],
        {
            **TOLD,
            "6:before": charge(1, 1),
            "6:after": charge(1, 1),
            "7:before": charge(1, 1),
            "7:after": charge(1, 1),
        },
        {"charge": charge(1, 1), "model 2": charge(1, 1), "model 3": charge(1, 1)},
    ),
    "three_classes": Sweep(
        [
            ADMIT,
            OPEN,
            "append effect_settled m1.1, effect_started c1.2.1",
            "append effect_settled c1.0.1",
            "append effect_settled c1.1.1",
            "append effect_settled c1.2.1, effect_started m2.1",
            LAST,
        ],
        {
            "1:before": classes((0, 0, 0), (1, 1, 1)),
            "1:after": classes((0, 0, 0), (1, 1, 1)),
            "2:before": classes((0, 0, 0), (1, 1, 1)),
            "2:after": classes(((0, 1), 0, 0), ((1, 2), 1, 1)),  # a pure call waits for nothing
            "3:before": classes((0, 0, 0), (1, 1, 1)),
            "3:after": classes(((0, 1), 0, 0), ((1, 2), 1, 0)),
            "4:before": classes((1, 1, 1), (2, 2, 1)),
            "4:after": classes((1, 1, 1), (1, 2, 1)),
            "5:before": classes((1, 1, 1), (1, 2, 1)),
            "5:after": classes((1, 1, 1), (1, 1, 1)),
            "6:before": classes((1, 1, 1), (1, 1, 1)),
            "6:after": classes((1, 1, 1), (1, 1, 1)),
            "7:before": classes((1, 1, 1), (1, 1, 1)),
            "7:after": classes((1, 1, 1), (1, 1, 1)),
        },
        {
            "look": classes((1, 0, 0), (2, 1, (0, 1))),  # whether the intent was durable by then is a matter of luck
            "put": classes((1, 1, 0), (2, 2, 0)),
            "charge": classes((1, 1, 1), (2, 2, 1)),
            "model 2": classes((1, 1, 1), (1, 1, 1)),
        },
    ),
    "queued": Sweep(
        [
            ADMIT,
            OPEN,
            "append effect_settled m1.1, effect_started c1.1.1",
            "append effect_settled c1.1.1, effect_started c1.2.1",
            "append effect_settled c1.2.1, effect_started c1.0.1",
            "append effect_settled c1.0.1, effect_started m2.1",
            LAST,
        ],
        {
            "1:before": queue((0, 0, 0), (1, 1, 1)),
            "1:after": queue((0, 0, 0), (1, 1, 1)),
            "2:before": queue((0, 0, 0), (1, 1, 1)),
            "2:after": queue((0, 0, 0), (1, 1, 1)),
            "3:before": queue((0, 0, 0), (1, 1, 1)),
            "3:after": queue((0, 0, 0), (0, 1, 1)),  # only the dispatched call has an intent: the others are free
            "4:before": queue((1, 0, 0), (1, 1, 1)),
            "4:after": queue((1, 0, 0), (1, 0, 1)),
            "5:before": queue((1, 1, 0), (1, 1, 1)),
            "5:after": queue((1, 1, 0), (1, 1, 0)),
            "6:before": queue((1, 1, 1), (1, 1, 1)),
            "6:after": queue((1, 1, 1), (1, 1, 1)),
            "7:before": queue((1, 1, 1), (1, 1, 1)),
            "7:after": queue((1, 1, 1), (1, 1, 1)),
        },
        {
            "first": queue((1, 0, 0), (1, 1, 1)),
            "second": queue((1, 1, 0), (1, 1, 1)),
            "third": queue((1, 1, 1), (1, 1, 1)),
            "model 2": queue((1, 1, 1), (1, 1, 1)),
        },
    ),
}


@pytest.mark.parametrize("scenario", SWEEPS)
def test_the_scenario_writes_what_the_table_says(scenario: str, tmp_path: Path) -> None:
    boundaries = trace(scenario, tmp_path)
    sweep = SWEEPS[scenario]
    assert [b.what for b in boundaries if b.side == "before"] == sweep.writes
    assert {f"{b.n}:{b.side}" for b in boundaries} == set(sweep.points)


@pytest.mark.parametrize(("scenario", "point"), [(name, point) for name in SWEEPS for point in SWEEPS[name].points])
async def test_killed_at_a_durable_boundary(scenario: str, point: str, tmp_path: Path) -> None:
    n, side = point.split(":")
    await check(scenario, tmp_path, at(Boundary(int(n), side, "")), SWEEPS[scenario].points[point])


@pytest.mark.parametrize(("scenario", "place"), [(name, place) for name in SWEEPS for place in SWEEPS[name].inside])
async def test_killed_inside(scenario: str, place: str, tmp_path: Path) -> None:
    await check(scenario, tmp_path, inside(place), SWEEPS[scenario].inside[place])


async def check(scenario: str, folder: Path, kill: dict[str, str], expected: Expected) -> None:
    killed = kill_and_recover(scenario, folder, kill)
    _assert_counts(killed.at_kill, expected.at_kill, "when it died")
    _assert_counts(killed.at_end, expected.at_end, "in the end")
    assert killed.answer.startswith("finished all done")
    lines = Ledger(folder / "ledger").lines()
    for name in expected.at_end:
        assert len({key for tool, key in lines if tool == name}) <= 1, f"{name} was dispatched under two keys"
    history = await final_history(folder)
    assert_valid_for_a_provider(history)
    assert [message.role for message in history] == ["user", "assistant", "tool", "assistant"]


def _assert_counts(counts: dict[str, int], expected: dict[str, Count], when: str) -> None:
    for name, count in expected.items():
        allowed = count if isinstance(count, tuple) else (count,)
        assert counts.get(name, 0) in allowed, f"{name} {when}: {counts}"


# --- double faults: the recovery is killed too


@pytest.mark.parametrize("first", ["3:after", "4:before"])
@pytest.mark.parametrize("second", range(1, 5))
@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_killed_recovery_is_recovered(first: str, second: int, side: str, tmp_path: Path) -> None:
    """With any result of the probe, the charge is made once in the end."""
    n, first_side = first.split(":")
    kill_first = at(Boundary(int(n), first_side, ""))
    assert child("probed", tmp_path, kill_first) == -9
    ended = child("probed", tmp_path, at(Boundary(second, side, "")))
    assert ended in (-9, 0), "the recovery writes fewer records than that"
    assert child("probed", tmp_path) == 0
    count = Ledger(tmp_path / "ledger").count("charge")
    allowed = (1,) if first == "4:before" else (1, 0)
    assert count in allowed
    assert_valid_for_a_provider(await final_history(tmp_path))


@pytest.mark.parametrize("second", ["1:after", "2:before", "2:after", "3:before"])
async def test_turn_resumes_on_a_fresh_worker_after_two_crashes(second: str, tmp_path: Path) -> None:
    """No caller sends the input again: an unfinished turn is ready work."""
    assert child("probed", tmp_path, at(Boundary(4, "before", ""))) == -9
    n, side = second.split(":")
    assert child("probed", tmp_path, {**at(Boundary(int(n), side, "")), SILENT: "1"}) == -9
    assert child("probed", tmp_path, {SILENT: "1"}) == 0
    assert Ledger(tmp_path / "ledger").count("charge") == 1
    assert_valid_for_a_provider(await final_history(tmp_path))
