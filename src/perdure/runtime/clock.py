"""The system clock, and ids that sort by creation time."""

from __future__ import annotations

import asyncio
import os
import time
from base64 import b32encode, b32hexencode
from datetime import UTC, datetime

_MAX_SLEEP_S = 3600.0


class SystemClock:
    """The clocks of this machine."""

    def wall_ms(self) -> int:
        """Return the milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return the milliseconds of the monotonic clock that all processes of this boot share."""
        return time.monotonic_ns() // 1_000_000

    async def sleep_until(self, wall_ms: int) -> None:
        """Sleep at most an hour at a time, so that a jump of the wall clock is noticed."""
        while (left := wall_ms - self.wall_ms()) > 0:  # noqa: ASYNC110 - only the clock can end this wait
            await asyncio.sleep(min(left / 1000, _MAX_SLEEP_S))


def uuid7(wall_ms: int) -> str:
    """Return a UUID of version 7 (RFC 9562), 48 bits of time and then randomness, in base32hex, which sorts like its
    bits.
    """
    random = int.from_bytes(os.urandom(10), "big")
    value = (
        (wall_ms & (1 << 48) - 1) << 80 | 0x7 << 76 | (random >> 68 & 0xFFF) << 64 | 0b10 << 62 | random & (1 << 62) - 1
    )
    return b32hexencode(value.to_bytes(16, "big")).decode().rstrip("=").lower()


def moment_of(ms: int) -> datetime:
    """Convert milliseconds since the epoch to a time in UTC."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC)


def short_id(prefix: str, wall_ms: int) -> str:
    """Return a readable id: the prefix, then time and randomness in base32."""
    raw = (wall_ms & (1 << 40) - 1).to_bytes(5, "big") + os.urandom(5)
    return f"{prefix}_{b32encode(raw).decode()}"
