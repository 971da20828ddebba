"""`ctx.progress`: what a running call says before it ends. Live only; nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class SandboxMessage:
    """A line about a running call. Of kind `stdout` or `stderr` it is a piece of what the call prints."""

    text: str
    kind: str = "progress"


ProgressSender: TypeAlias = Callable[[SandboxMessage], None]
"""Takes a message and returns at once, from any thread, whether or not anybody listens."""
