"""Mutation proof: break the code on purpose, one way at a time, and see the test that guards it go red.

A mutant that survives is a missing law. To add one, put a `Mutant` into the file of `areas/` that its subject belongs
to, or into a new one (all are read): what is wrong then, in a sentence; the source file; a text of it, and what it
becomes; the narrowest test that must turn red. `make mutants ARGS="a part of its name"` runs it.
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
