"""The outside world of the demo: a file that notes every charge and never forgives a second one.

Nothing here deduplicates. Were the same charge dispatched twice, there would be two lines: that is how the demo can
fail.
"""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Charge:
    """One line: a charge that really left this process."""

    at_ms: int
    session: str
    cents: int
    description: str
    key: str

    @property
    def receipt(self) -> str:
        """What the bank answers."""
        return f"rcpt-{self.at_ms}"


class Ledger:
    """The file. Appends are atomic and on disk when `charge` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def charge(self, charge: Charge) -> None:
        """Note one dispatch."""
        line = io.StringIO()
        fields = (charge.at_ms, charge.session, charge.cents, charge.description, charge.key)
        csv.writer(line, lineterminator="\n").writerow(fields)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.getvalue().encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def charges(self) -> list[Charge]:
        """Every line, in order."""
        if not self.path.exists():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            return [
                Charge(int(at), session, int(cents), what, key) for at, session, cents, what, key in csv.reader(file)
            ]

    def find(self, key: str) -> Charge | None:
        """The charge made under this idempotency key, if there was one."""
        return next((charge for charge in self.charges() if charge.key == key), None)
