"""Kill a turn with tools of a provider at every durable boundary: every attempt gets what was sealed first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.harness import assert_valid_for_a_provider, at, final_history, inside, kill_and_recover, room, trace
from tests.crash.scenarios import URL, Ledger

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

WRITES = [
    "admit input",
    "append input_admitted, turn_opened, effect_started m1.1",
    "append effect_settled m1.1",  # the reply comes first: the hook is async
    "append effect_started c1.0.1",
    "append effect_settled c1.0.1",
    "append effect_started c1.1.1",
    "append effect_settled c1.1.1, effect_started m2.1",
    "append effect_settled m2.1, turn_ended",
]
CHARGED_IN_THE_END = {"6:after": 0}  # its intent is durable: the call may have been sent


def check(folder: Path, charges: int) -> None:
    lines = Ledger(folder / "ledger").lines()
    put = [key for name, key in lines if name == "put"]
    assert len({*put}) == 1, "another payload, or another key, than the one that was dispatched first"
    assert len(put) <= 2
    assert sum(name == "charge" for name, _ in lines) == charges


@pytest.mark.slow
async def test_every_attempt_gets_what_was_sealed_first_wherever_the_process_dies(folder: Path) -> None:
    undisturbed = trace("provided", room(folder, "undisturbed"))
    assert [boundary.what for boundary in undisturbed if boundary.side == "before"] == WRITES
    if (folder / URL).exists():  # on a database server, where something is sealed or sent
        undisturbed = [boundary for boundary in undisturbed if boundary.n in (4, 6)]
    for boundary in undisturbed:
        here = room(folder, f"{boundary.n}_{boundary.side}")
        killed = kill_and_recover("provided", here, at(boundary))
        assert killed.answer.startswith("finished all done"), boundary
        check(here, CHARGED_IN_THE_END.get(f"{boundary.n}:{boundary.side}", 1))
        assert_valid_for_a_provider(await final_history(here))


@pytest.mark.parametrize(("place", "puts"), [("put", 2), ("charge", 1)])
def test_a_kill_inside_a_call_runs_again_only_what_may_run_again(folder: Path, place: str, puts: int) -> None:
    killed = kill_and_recover("provided", folder, inside(place))
    assert killed.at_end == {"put": puts, "charge": 1}
    check(folder, 1)
