"""How far a store's schema is, and the steps that are left: what `perdure db` shows before anything is changed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """A migration that has not been made."""

    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class SchemaState:
    """`version` is what the store says, 0 where there is none yet; `known` what this version of perdure leads to."""

    place: str
    version: int
    known: int
    pending: tuple[Step, ...] = ()
