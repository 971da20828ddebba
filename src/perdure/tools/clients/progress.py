"""Live messages of a running call as values. Best effort, never awaited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class SandboxMessage:
    """A line about a running call. With kind `stdout` or `stderr` it is a piece of the call's output."""

    text: str
    kind: str = "progress"


ProgressSender: TypeAlias = Callable[[SandboxMessage], None]
"""Function that accepts a message and returns at once, from any thread, with or without observers."""
