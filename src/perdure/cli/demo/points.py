"""Where `demo --auto` kills, and what must be true there.

The expectations are written down by hand, from what a boundary contains. They are not computed by the code they judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perdure.cli.demo.worker import DIE_IN
from perdure.errors import Code, Error
from perdure.testing.crash import KILL_AT, Boundary

HAPPENED = "happened"
DID_NOT_HAPPEN = "did_not_happen"
NO_PROBE = None

CHARGE = "c2.0"
"""The charge: the first call of the second reply."""

EMAIL = "c3.0"
"""The e-mail, which a person must allow: the first call of the third reply."""

QUESTION = f"effect_started {EMAIL}.1.approval"


@dataclass(frozen=True, slots=True)
class Expected:
    """Charges and e-mails at the moment of the kill, and what a probe may be asked and answer afterwards."""

    dispatches: int
    verdicts: tuple[str | None, ...]
    emails: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """One experiment: the environments of the workers that die, one after the other, and what is expected."""

    name: str
    what: str
    deaths: tuple[Mapping[str, str], ...]
    expected: Expected
    boundary: Boundary | None = None
    decided_in_between: bool = False
    """Whether the person decides while no worker is there, and not as soon as they are asked."""


def expected_at(boundary: Boundary) -> Expected:
    """What must be true at a boundary, by what it writes.

    An append is handed over before the one before it is durable, so right before a later one the charge's outcome may
    or may not be saved: then both answers are right. The intents are different: the charge waits for its own, and so
    does the e-mail. Nobody is asked about it before everything that stands before the question is saved.
    """
    before = boundary.side == "before"
    if f"effect_settled {CHARGE}" in boundary.what:
        return Expected(1, (HAPPENED,) if before else (NO_PROBE,))
    if f"effect_settled {EMAIL}.1," in f"{boundary.what},":
        return Expected(1, (HAPPENED,) if before else (NO_PROBE,), emails=1)
    if "turn_ended" in boundary.what:
        return Expected(1, (NO_PROBE, HAPPENED) if before else (NO_PROBE,), emails=1)
    if f"effect_started {EMAIL}.1," in f"{boundary.what},":
        return Expected(1, (NO_PROBE,) if before else (DID_NOT_HAPPEN,))
    if QUESTION in boundary.what:
        return Expected(1, (NO_PROBE, HAPPENED) if before else (NO_PROBE,))
    if f"effect_started {CHARGE}" in boundary.what:
        return Expected(0, (NO_PROBE,) if before else (DID_NOT_HAPPEN,))
    return Expected(0, (NO_PROBE,))


INSIDE = (
    ("model-1", "in model call #1, mid-stream", Expected(0, (NO_PROBE,))),
    ("search", "in search_flights", Expected(0, (NO_PROBE,))),
    ("model-2", "in model call #2, mid-stream", Expected(0, (NO_PROBE,))),
    ("pre-charge", "in charge_card, not charged", Expected(0, (DID_NOT_HAPPEN,))),
    ("post-charge", "in charge_card, charged", Expected(1, (HAPPENED,))),
    ("model-3", "in model call #3, mid-stream", Expected(1, (NO_PROBE, HAPPENED))),
    ("pre-mail", "in send_email, not sent", Expected(1, (DID_NOT_HAPPEN,))),
    ("post-mail", "in send_email, sent", Expected(1, (HAPPENED,), emails=1)),
    ("model-4", "in model call #4, mid-stream", Expected(1, (NO_PROBE, HAPPENED), emails=1)),
)


def points(trace: Iterable[Boundary]) -> list[Point]:
    """Every point of a traced run: both sides of each write, then the places in between, then two crashes in a row, and
    a person who decides while nothing runs."""
    ordered = sorted(trace, key=lambda boundary: (boundary.n, boundary.side == "after"))
    found = [Point(f"{b.n}:{b.side}", b.what, ({KILL_AT: str(b)},), expected_at(b), boundary=b) for b in ordered]
    found += [Point(place, what, ({DIE_IN: place},), expected) for place, what, expected in INSIDE]
    twice = ({DIE_IN: "post-charge"}, {DIE_IN: "probe"})
    found.append(Point("twice", "in charge_card, then in probe", twice, Expected(1, (HAPPENED,))))
    for asked in (b for b in ordered if QUESTION in b.what and b.side == "after"):
        deaths = ({KILL_AT: str(asked)},)
        found.append(Point("asked", "approved while nothing runs", deaths, expected_at(asked), asked, True))
    return found


def chosen(all_points: list[Point], name: str) -> Point:
    """The point a user named.

    Raises:
        Error: `invalid_argument`, listing the names there are.
    """
    for point in all_points:
        if point.name == name:
            return point
    raise Error(
        Code.INVALID_ARGUMENT,
        f"there is no crash point {name!r}",
        because=f"the points are {', '.join(point.name for point in all_points)}",
        hint="--kill-at 5:after kills after the fifth write, --kill-at post-charge inside the tool",
    )
