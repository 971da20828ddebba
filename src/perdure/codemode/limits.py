"""Limits of a program. An exceeded limit ends the program with an error that the model reads."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.errors import Code, Error

MAX_PACKED_BYTES = 262_144
"""Maximum bytes of a stored program state. A larger program runs again from an earlier state."""

MAX_PACKED_IN_ALL = 8_388_608
"""Maximum bytes of stored states for one program, over all of its calls."""


MAX_TOLD_BYTES = 262_144
"""Maximum recorded bytes of a program's last value, and of its printed output."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """The limits of one program. Time counts only execution, not waits for tools and people."""

    seconds: float = 10.0
    memory_bytes: int = 67_108_864
    output_bytes: int = 65_536
    calls: int = 500
    variables_bytes: int = 1_048_576

    def __post_init__(self) -> None:
        for name in ("seconds", "memory_bytes", "output_bytes", "calls", "variables_bytes"):
            if not getattr(self, name) > 0:
                raise Error(Code.INVALID_ARGUMENT, f"{name} must be > 0, not {getattr(self, name)!r}")
        if self.output_bytes > MAX_TOLD_BYTES:
            raise Error(
                Code.INVALID_ARGUMENT, f"output_bytes={self.output_bytes} exceeds the maximum of {MAX_TOLD_BYTES}"
            )
