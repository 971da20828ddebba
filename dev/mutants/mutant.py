"""The definition of a mutant: one fault and the test that must fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """A replacement in a source file, and the test that must fail: a path, with `::name` or `-k 'words'`."""

    name: str
    file: str
    before: str
    after: str
    test: str
    also: Mutant | None = None
    """A second fault, for a guarantee that is enforced twice."""

    @property
    def parts(self) -> Iterator[Mutant]:
        """This fault and all `also` faults."""
        yield self
        if self.also is not None:
            yield from self.also.parts

    @property
    def arguments(self) -> list[str]:
        """The test as arguments of pytest."""
        path, _, expression = self.test.partition(" -k ")
        return [path, "-k", expression.strip("'")] if expression else [path]
