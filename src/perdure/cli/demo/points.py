"""Kill points of `demo --auto`, with the state expected at each.

The expectations are written by hand from the content of a boundary. The code under test does not compute them.
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
"""The e-mail, which needs an approval: the first call of the third reply."""

QUESTION = f"effect_started {EMAIL}.1.approval"


@dataclass(frozen=True, slots=True)
class Expected:
    """The charges and e-mails expected at the kill, and the probe answers allowed afterwards."""

    dispatches: int
    verdicts: tuple[str | None, ...]
    emails: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """One experiment: the environments of the workers that die, in order, and the expected state."""

    name: str
    what: str
    deaths: tuple[Mapping[str, str], ...]
    expected: Expected
    boundary: Boundary | None = None
    decided_in_between: bool = False
    """True if the approval is given while no worker runs, instead of as soon as it is requested."""


def expected_at(boundary: Boundary) -> Expected:
    """Return the state expected at a boundary, by the records it writes.

    An append is submitted before the previous one is durable. Right before a later append, the charge's outcome may or
    may not be saved, so both probe answers are right. Intents differ: the charge and the e-mail wait for their own
    intent. The approval request waits for all records before it.
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
    """Return all points of a traced run.

    First both sides of each write, then the places between writes. Then two crashes in a row, and an approval given
    while no worker runs.
    """
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
    """Return the point that the user named.

    Raises:
        Error: `invalid_argument`, with the list of names.
    """
    for point in all_points:
        if point.name == name:
            return point
    raise Error(
        Code.INVALID_ARGUMENT,
        f"unknown kill point {name!r}",
        because=f"the points are {', '.join(point.name for point in all_points)}",
        hint="--kill-at 5:after kills after the fifth write, --kill-at post-charge inside the tool",
    )
