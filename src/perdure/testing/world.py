"""The outside world of a test: a ledger file that notes every effect, from any process, and never deduplicates.

Were the same charge made twice, there would be two lines. That is how a test can fail.
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


class Line(Struct, frozen=True, omit_defaults=True):
    """One effect that really happened."""

    what: str
    key: str = ""
    details: dict[str, Json] = {}
    pid: int = 0

    def __str__(self) -> str:
        details = f"  {encode(self.details).decode()}" if self.details else ""
        return f"{self.what}  key={self.key or '-'}{details}"


@dataclass(frozen=True, slots=True)
class Ledger:
    """The lines as they stood at one moment, in order."""

    lines: tuple[Line, ...] = ()

    def __iter__(self) -> Iterator[Line]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    def count(self, what: str | None = None, *, key: str | None = None) -> int:
        """How often something happened: this, under this key, or anything at all."""
        return sum(what in (None, line.what) and key in (None, line.key) for line in self.lines)

    def by_key(self, what: str | None = None) -> Counter[str]:
        """How often it happened under each idempotency key."""
        return Counter(line.key for line in self.lines if what in (None, line.what))

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines)) or "nothing"


class World:
    """What a test's tools act on instead of a bank, a mailbox or a warehouse.

    A tool calls `note` where it would act. Appends are atomic, so any number of processes may share the file, and on
    disk when `note` returns, unless `fsync` is off.
    """

    def __init__(self, path: str | Path, *, fsync: bool = True, gate: Gate | None = None) -> None:
        self.path = Path(path)
        self._fsync = fsync
        self._gate = gate

    def note(self, what: str, *, key: str = "", **details: Json) -> None:
        """Something happens, outside and for good. Twice is twice.

        Raises:
            Error: `invalid_argument` for an effect without a name; `invalid_json` for details that are not JSON.
        """
        if not what.strip():
            raise Error(Code.INVALID_ARGUMENT, "an effect on the world needs a name")
        to_json(details, where=what)
        line = encode(Line(what=what, key=key, details=details, pid=os.getpid())) + b"\n"
        if self._gate is None:
            self._append(line)
            return
        passing = self._gate.before("world", what)
        self._append(line)
        self._gate.after(passing)

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
            if self._fsync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @property
    def ledger(self) -> Ledger:
        """Everything that happened so far."""
        if not self.path.exists():
            return Ledger()
        return Ledger(tuple(decode(line, Line) for line in self.path.read_bytes().splitlines()))

    def count(self, what: str | None = None, *, key: str | None = None) -> int:
        """How often something happened: this, under this key, or anything at all."""
        return self.ledger.count(what, key=key)

    def by_key(self, what: str | None = None) -> Counter[str]:
        """How often it happened under each idempotency key."""
        return self.ledger.by_key(what)

    def has(self, key: str) -> bool:
        """Whether anything happened under this key: what a probe asks."""
        return self.count(key=key) > 0

    def assert_once(self, what: str, *, key: str | None = None) -> None:
        """Insist that something happened exactly once: at all, or under this key.

        Raises:
            AssertionError: it did not happen, or more than once; with the whole ledger.
        """
        ledger = self.ledger
        if (times := ledger.count(what, key=key)) != 1:
            under = "" if key is None else f" under the key {key}"
            raise AssertionError(f"{what!r} happened {times} times{under}, not once\nthe ledger:\n{ledger}")

    def __repr__(self) -> str:
        return f"World({str(self.path)!r})"
