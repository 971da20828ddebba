"""`ctx.programs`: what the session keeps between programs that its model writes, for whoever runs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from perdure.codec import Json
from perdure.vocab.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class PastProgram:
    """A call that was made before: its arguments, and the outcomes of the parts of its body by `kind:name`."""

    call_id: str
    args: Json
    parts: Mapping[str, Outcome]


class Programs(Protocol):
    """The execution environment of a session: variables, as the last program left them."""

    def environment(self) -> Json:
        """What the last program recorded of the environment that it left; None before the first."""
        ...

    async def history(self) -> Mapping[str, PastProgram]:
        """The calls of the session by their ids, as its log has them. Reads all of it: for when nothing that was kept
        can be used."""
        ...

    def keep(self, data: bytes) -> str:
        """Store bytes with the next append, and name them by their hash. They are a cache: no record keeps them."""
        ...

    def forget(self, hashes: Iterable[str]) -> None:
        """Let go of bytes that were kept, with the next append."""
        ...

    async def fetch(self, hash: str) -> bytes | None:
        """Bytes that a program of this session kept; None if they are gone, or not what was kept."""
        ...
