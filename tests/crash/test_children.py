"""Kill a resumable tool that calls other tools at every durable boundary, and inside each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.codec import Json
from perdure.vocab.messages import ToolResultPart
from tests.crash.harness import assert_valid_for_a_provider, at, final_history, inside, kill_and_recover, room, trace
from tests.crash.scenarios import Ledger

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

WRITES = [
    "admit input",
    "append input_admitted, turn_opened, effect_started m1.1",
    "append effect_settled m1.1, effect_started c1.0.1",
    "append effect_started c1.0/step:batch:1:child:0:0",
    "append effect_settled c1.0/step:batch:1:child:0:0",
    "append effect_settled c1.0/step:batch:2:child:0:0",
    "append effect_settled c1.0.1, effect_started m2.1",
    "append effect_settled m2.1, turn_ended",
]
DOUBTFUL = {"4:after", "5:before"}  # its intent is durable and its outcome is not


async def told(folder: Path) -> Json:
    history = await final_history(folder)
    assert_valid_for_a_provider(history)
    [output] = [part.output for message in history for part in message.parts if isinstance(part, ToolResultPart)]
    return output


@pytest.mark.slow
async def test_a_once_child_is_never_dispatched_twice_wherever_the_process_dies(folder: Path) -> None:
    undisturbed = trace("nesting", room(folder, "undisturbed"))
    assert [boundary.what for boundary in undisturbed if boundary.side == "before"] == WRITES
    for boundary in undisturbed:
        point = f"{boundary.n}:{boundary.side}"
        here = room(folder, point.replace(":", "_"))
        killed = kill_and_recover("nesting", here, at(boundary))
        assert killed.answer.startswith("finished all done"), point
        assert killed.at_end.get("charge", 0) == (0 if point == "4:after" else 1), point
        assert await told(here) == ["outcome_unknown" if point in DOUBTFUL else None, None], point
        assert len({key for name, key in Ledger(here / "ledger").lines() if name == "put"}) == 1, point


@pytest.mark.parametrize(
    ("place", "ends", "codes"),
    [
        ("charge", {"charge": 1, "put": 1}, ["outcome_unknown", None]),
        ("put", {"charge": 1, "put": 2}, [None, None]),
    ],
)
async def test_a_kill_inside_a_child(folder: Path, place: str, ends: dict[str, int], codes: list[str | None]) -> None:
    killed = kill_and_recover("nesting", folder, inside(place))
    assert killed.at_end == ends
    assert await told(folder) == codes
