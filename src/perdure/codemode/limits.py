"""What a program may use up. Whatever it exceeds ends it, as an error that the model reads."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.errors import Code, Error

MAX_PACKED_BYTES = 262_144
"""A program that stands at a call is kept up to this size. A larger one is run again from an earlier place."""

MAX_PACKED_IN_ALL = 8_388_608
"""So much one program keeps of itself, over all of its calls."""


MAX_TOLD_BYTES = 262_144
"""What a program tells is recorded: its last value up to this size, and as much that it printed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one program. Time is that of its own execution: waiting for tools and people costs none."""

    seconds: float = 10.0
    memory_bytes: int = 67_108_864
    output_bytes: int = 65_536
    calls: int = 500
    variables_bytes: int = 1_048_576

    def __post_init__(self) -> None:
        for name in ("seconds", "memory_bytes", "output_bytes", "calls", "variables_bytes"):
            if not getattr(self, name) > 0:
                raise Error(Code.INVALID_ARGUMENT, f"a program with {name}={getattr(self, name)!r} could do nothing")
        if self.output_bytes > MAX_TOLD_BYTES:
            raise Error(Code.INVALID_ARGUMENT, f"output_bytes={self.output_bytes} is more than {MAX_TOLD_BYTES}")
