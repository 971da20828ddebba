"""External systems of a test: a ledger file with one line per effect, from any process, without deduplication.

A charge that is made twice appears twice, and the test fails.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from perdure.codec import Json, decode, encode, to_json
from perdure.errors import Code, Error

if TYPE_CHECKING:
    from perdure.testing.crash import Gate


class LedgerEntry(Struct, frozen=True, omit_defaults=True):
    """One effect that happened."""

    what: str
    key: str = ""
    details: dict[str, Json] = {}
    pid: int = 0

    def __str__(self) -> str:
        details = f"  {encode(self.details).decode()}" if self.details else ""
        return f"{self.what}  key={self.key or '-'}{details}"


@dataclass(frozen=True, slots=True)
class Ledger:
    """The lines of a ledger at one time, in order."""

    lines: tuple[LedgerEntry, ...] = ()

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    def count(self, what: str | None = None, *, key: str | None = None) -> int:
        """Return how often an effect happened: this one, under this key, or any."""
        return sum(what in (None, line.what) and key in (None, line.key) for line in self.lines)

    def by_key(self, what: str | None = None) -> Counter[str]:
        """Return the number of effects under each idempotency key."""
        return Counter(line.key for line in self.lines if what in (None, line.what))

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines)) or "nothing"


class World:
    """The external system of a test's tools, in place of a bank, a mailbox or a warehouse.

    A tool calls `note` where it would act. Appends are atomic, so any number of processes may share the file. They are
    on disk when `note` returns, unless `fsync` is off.
    """

    def __init__(self, path: str | Path, *, fsync: bool = True, gate: Gate | None = None) -> None:
        self.path = Path(path)
        self._fsync = fsync
        self._gate = gate

    def note(self, what: str, *, key: str = "", **details: Json) -> None:
        """Record an effect. A repeated effect is a second line.

        Raises:
            Error: `invalid_argument` for an effect without a name; `invalid_json` for details that are not JSON.
        """
        if not what.strip():
            raise Error(Code.INVALID_ARGUMENT, "an effect on the world needs a name")
        to_json(details, where=what)
        line = encode(LedgerEntry(what=what, key=key, details=details, pid=os.getpid())) + b"\n"
        if self._gate is None:
            self._append(line)
            return
        passing = self._gate.before("world", what)
        self._append(line)
        self._gate.after(passing)

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
            if self._fsync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @property
    def ledger(self) -> Ledger:
        """All effects so far."""
        if not self.path.exists():
            return Ledger()
        return Ledger(tuple(decode(line, LedgerEntry) for line in self.path.read_bytes().splitlines()))

    def count(self, what: str | None = None, *, key: str | None = None) -> int:
        """Return how often an effect happened: this one, under this key, or any."""
        return self.ledger.count(what, key=key)

    def by_key(self, what: str | None = None) -> Counter[str]:
        """Return the number of effects under each idempotency key."""
        return self.ledger.by_key(what)

    def has(self, key: str) -> bool:
        """Return True if any effect happened under this key, as a probe needs."""
        return self.count(key=key) > 0

    def assert_once(self, what: str, *, key: str | None = None) -> None:
        """Assert that an effect happened exactly once, in all or under this key.

        Raises:
            AssertionError: the effect happened never or more than once; includes the whole ledger.
        """
        ledger = self.ledger
        if (times := ledger.count(what, key=key)) != 1:
            under = "" if key is None else f" under the key {key}"
            raise AssertionError(f"{what!r} happened {times} times{under}, not once\nthe ledger:\n{ledger}")

    def __repr__(self) -> str:
        return f"World({str(self.path)!r})"
