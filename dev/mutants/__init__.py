"""Mutation tests: break the code on purpose, one fault at a time, and expect the guarding test to fail.

A mutant that survives is a missing law. Add a `Mutant` to the file of `areas/` for its subject, or to a new one (all
are read). The fields are the fault in a sentence, the source file, a text of it, the replacement, and the narrowest
test that must fail. `make mutants ARGS="a part of its name"` runs it.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from dev.mutants import areas
from dev.mutants.mutant import Mutant

MUTANTS: list[Mutant] = [
    mutant
    for module in sorted(module.name for module in iter_modules(areas.__path__))
    for mutant in import_module(f"{areas.__name__}.{module}").MUTANTS
]
