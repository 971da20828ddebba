"""The client of code mode: state shared by the code-mode programs of a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from perdure.codec import Json
from perdure.vocab.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class PastProgram:
    """An earlier call: its arguments, and the outcomes of its body's parts by `kind:name`."""

    call_id: str
    args: Json
    parts: Mapping[str, Outcome]


class Programs(Protocol):
    """The execution environment of a session: the variables left by its last program."""

    def environment(self) -> Json:
        """Return the recorded environment of the last program, or None before the first."""
        ...

    async def history(self) -> Mapping[str, PastProgram]:
        """Return the session's calls by id. Reads the whole log: a fallback for unusable stored state."""
        ...

    def keep(self, data: bytes) -> str:
        """Store bytes with the next append and return their hash. The bytes are a cache without a record."""
        ...

    def forget(self, hashes: Iterable[str]) -> None:
        """Release stored bytes with the next append."""
        ...

    async def fetch(self, hash: str) -> bytes | None:
        """Return bytes stored by a program of this session, or None if lost or damaged."""
        ...
