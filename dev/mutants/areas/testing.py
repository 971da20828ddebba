"""Mutants of the testing kit."""

from __future__ import annotations

from dev.mutants.mutant import Mutant

KIT = "tests/scenarios/test_kit_sweep.py"

MUTANTS = [
    Mutant(
        "the kit ignores the ledger",
        "testing/recovery_report.py",
        "*_ledger(usual, end), ",
        "",
        f"{KIT}::test_a_broken_application_is_found_out -k not_idempotent-memory",
    ),
    Mutant(
        "the kit does not count dispatches",
        "testing/recovery_report.py",
        "        if times > 1:\n",
        "        if False:\n",
        f"{KIT}::test_a_broken_application_is_found_out -k forgetful",
    ),
    Mutant(
        "the kit's children are not killed",
        "testing/crash.py",
        "        if kill_at and boundary.is_at(kill_at):\n            die()",
        "        if kill_at and boundary.is_at(kill_at):\n            pass",
        f"{KIT} -k killed_for_real",
    ),
    Mutant(
        "an unreached crash point is ignored",
        "testing/sweep.py",
        'missed = () if crash.reached else ("the run did not come to this crash point",)',
        "missed = ()",
        f"{KIT}::test_a_crash_point_that_is_not_there_is_told",
    ),
    Mutant(
        "a write after a named crash point survives",
        "testing/crash.py",
        "                self._held = True\n",
        "                self._held = boundary.n > 0 and self._last.n > 0\n",
        "tests/unit/testing/test_crash.py",
    ),
    Mutant(
        "a sweep omits facts whose write number varies",
        "testing/sweep.py",
        "for fact in _missed(boundaries, met):",
        "for fact in ():",
        f"{KIT} -k moved_by_a_race",
    ),
]
