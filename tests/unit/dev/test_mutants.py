"""The list of mutants follows the code: what each replaces is there, and so is the test that must notice."""

from __future__ import annotations

import re

import pytest

from dev.mutants import MUTANTS
from dev.mutants.mutant import ROOT, Mutant

LAWS = "\n".join(path.read_text() for path in (ROOT / "src" / "perdure" / "testing" / "laws").glob("*.py"))
"""What a test of every store inherits."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "_"))
def test_a_mutant_follows_the_code(mutant: Mutant) -> None:
    for part in mutant.parts:
        assert part.before in (ROOT / "src" / "perdure" / part.file).read_text()
    path, _, name = mutant.test.partition(" -k ")[0].partition("::")
    source = (ROOT / path).read_text() + LAWS
    for part in filter(None, name.partition("[")[0].split("::")):
        assert re.search(rf"(def|class) {part}\b", source), f"{path} has no {part}"
