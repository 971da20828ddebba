"""Compatibility between releases of the code that share a store.

A schema version is the number of applied migrations. Each migration names the lowest schema version that compatible
code must know, so a store can refuse workers that are too old. Records have a format: a worker claims no stream that
contains a newer format than it can read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perdure.vocab.records import FORMAT


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration. Code that knows schema `min_code_schema` or later can use its result."""

    number: int
    name: str
    sql: str
    min_code_schema: int

    @staticmethod
    def of(file: str, sql: str) -> Migration:
        """Parse a numbered migration file; the first comment names the oldest schema whose code can use the result."""
        found = re.search(r"^-- .*Works with code from schema (\d+) on\.", sql, re.MULTILINE)
        assert found is not None, f"{file} does not name the code that can work with it"
        return Migration(int(file[:4]), file.removesuffix(".sql"), sql, int(found[1]))


@dataclass(frozen=True, slots=True)
class Release:
    """The record format that a release reads, and its migrations after those of this release.

    Stores are opened as `THIS`. Another value tests how a future release shares a store with this one: `later` lists
    its migrations. On a store with schemas, their SQL qualifies each name with `perdure.`.
    """

    format: int = FORMAT
    later: tuple[Migration, ...] = ()


THIS = Release()
