"""What one version of this code can work with: the seam between two releases that share a store.

A schema version is a number of migrations. Each migration says from which schema on code can work with its result, so
that a store tells every worker, older and newer, whether it may go on. Records have a format; a worker claims no stream
that holds a newer one than it can read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perdure.vocab.records import FORMAT


@dataclass(frozen=True, slots=True)
class Migration:
    """One step forward. Code that knows schema `works_from` or later can work with its result."""

    number: int
    name: str
    sql: str
    works_from: int

    @staticmethod
    def of(file: str, sql: str) -> Migration:
        """A numbered file that says in its first comment which code can work with it."""
        found = re.search(r"^-- .*Works with code from schema (\d+) on\.", sql, re.MULTILINE)
        assert found is not None, f"{file} does not say which code can work with it"
        return Migration(int(file[:4]), file.removesuffix(".sql"), sql, int(found[1]))


@dataclass(frozen=True, slots=True)
class Release:
    """The records that a version reads, and the migrations it makes after those of this one.

    Stores are opened as `THIS`. Another is for those who try out, before they ship it, how the next release shares a
    store with this one: `later` are its migrations, in SQL that says `perdure.` before each name where the store has
    schemas.
    """

    format: int = FORMAT
    later: tuple[Migration, ...] = ()


THIS = Release()
