"""External systems of the demo: files with one line per charge and per e-mail.

Nothing deduplicates here. A charge that is dispatched twice appears twice, and the demo fails.
"""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Charge:
    """One line of the ledger: a charge that left this process."""

    at_ms: int
    session: str
    cents: int
    description: str
    key: str

    @property
    def receipt(self) -> str:
        """The bank's receipt."""
        return f"rcpt-{self.at_ms}"


class DemoLedger:
    """The file of charges. An append is atomic and durable when `charge` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def charge(self, charge: Charge) -> None:
        """Append one charge."""
        _append(self.path, (charge.at_ms, charge.session, charge.cents, charge.description, charge.key))

    def charges(self) -> list[Charge]:
        """Return all charges in order."""
        return [Charge(int(at), session, int(cents), what, key) for at, session, cents, what, key in _lines(self.path)]

    def find(self, key: str) -> Charge | None:
        """Return the charge with this idempotency key, or None."""
        return next((charge for charge in self.charges() if charge.key == key), None)


@dataclass(frozen=True, slots=True)
class Email:
    """One line of the outbox: an e-mail that left this process."""

    session: str
    to: str
    subject: str
    key: str


class Mailbox:
    """The file of sent e-mails. Atomic and durable, without deduplication, like the ledger."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def send(self, email: Email) -> None:
        """Append one e-mail."""
        _append(self.path, (email.session, email.to, email.subject, email.key))

    def emails(self) -> list[Email]:
        """Return all e-mails in order."""
        return [Email(*fields) for fields in _lines(self.path)]

    def has(self, key: str) -> bool:
        """Return True if an e-mail was sent under this idempotency key."""
        return any(email.key == key for email in self.emails())


def _append(path: Path, fields: tuple[object, ...]) -> None:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
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
