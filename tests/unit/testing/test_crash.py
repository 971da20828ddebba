"""Crash points: by number, or by the fact that is written there."""

from __future__ import annotations

import pytest

from perdure.testing.crash import Boundary, Gate

OPENED, PAUSED = "append input_admitted, turn_opened", "intervene session_paused"


@pytest.mark.parametrize(
    ("named", "met"),
    [
        ("2:after:", True),
        ("1:after:", False),
        ("2:before:", False),
        ("tool.2:after:", False),
        ("0:after:turn_opened", True),
        ("0:after:turn_ended", False),
        ("0:before:turn_opened", False),
    ],
)
def test_a_place_to_die_at_is_a_number_or_a_fact(named: str, met: bool) -> None:
    assert Boundary(2, "after", OPENED).is_at(Boundary.parse(named)) is met


@pytest.mark.parametrize("named", ["2:after:", "0:after:session_paused"])
def test_nothing_is_written_after_the_write_it_dies_after(named: str) -> None:
    gate = Gate.at(Boundary.parse(named), lambda boundary: None)
    gate.before("write", OPENED)
    assert not gate.shuts("write")
    gate.before("write", PAUSED)
    assert gate.shuts("write")
    assert not gate.shuts("tool")
