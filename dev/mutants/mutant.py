"""One way to break a promise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """What is replaced where, and the test that must notice: a path, and as with pytest `::name` or `-k 'words'`."""

    name: str
    file: str
    before: str
    after: str
    test: str
    also: Mutant | None = None
    """A promise that is kept twice must be broken twice."""

    @property
    def parts(self) -> Iterator[Mutant]:
        """Everything that is replaced."""
        yield self
        if self.also is not None:
            yield from self.also.parts

    @property
    def arguments(self) -> list[str]:
        """The test, as pytest is told it."""
        path, _, expression = self.test.partition(" -k ")
        return [path, "-k", expression.strip("'")] if expression else [path]
