"""The outside world of the demo: files that note every charge and every e-mail, and never forgive a second one.

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
        _append(self.path, (charge.at_ms, charge.session, charge.cents, charge.description, charge.key))

    def charges(self) -> list[Charge]:
        """Every line, in order."""
        return [Charge(int(at), session, int(cents), what, key) for at, session, cents, what, key in _lines(self.path)]

    def find(self, key: str) -> Charge | None:
        """The charge made under this idempotency key, if there was one."""
        return next((charge for charge in self.charges() if charge.key == key), None)


@dataclass(frozen=True, slots=True)
class Email:
    """One line: an e-mail that really left this process."""

    session: str
    to: str
    subject: str
    key: str


class Outbox:
    """The file of e-mails that were sent, as careful and as unforgiving as the ledger."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def send(self, email: Email) -> None:
        """Note one dispatch."""
        _append(self.path, (email.session, email.to, email.subject, email.key))

    def emails(self) -> list[Email]:
        """Every line, in order."""
        return [Email(*fields) for fields in _lines(self.path)]

    def has(self, key: str) -> bool:
        """Whether an e-mail was sent under this idempotency key."""
        return any(email.key == key for email in self.emails())


def _append(path: Path, fields: tuple[object, ...]) -> None:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.getvalue().encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lines(path: Path) -> list[list[str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))
