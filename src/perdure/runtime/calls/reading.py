"""Reading what a model says: passed on as it comes, and given up when it is silent for too long.

Laws: only what the model writes breaks its silence (text, thoughts, calls, files), not pings, empty pieces
and signatures. Whoever is told of it is never waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from perdure.clock import Clock
from perdure.codec import Json
from perdure.models.protocol import (
    ComesWhole,
    HiddenDelta,
    JobBegun,
    Model,
    ModelError,
    ModelReply,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    UsageSoFar,
    clean,
)
from perdure.services.replies import StreamHeartbeater, StreamProgress
from perdure.vocab.outcomes import LlmError
from perdure.vocab.usage import Usage

log = logging.getLogger("perdure.runtime")

TICK_S = 12.0
"""How often a heartbeat tells of a stream that says nothing."""
BEAT_S = 5.0
"""How often at most one tells of a stream that does."""


@dataclass(frozen=True, slots=True)
class Hearing:
    """Who is told what a model says before its reply: texts (and whether they are thoughts; an empty one is something
    that is not shown), and, before it is gone on, that the provider works on a job by itself; and what the
    provider tells of the cost meanwhile."""

    said: Callable[[str, bool], None]
    job: Callable[[Json], Awaitable[None]] | None = None
    usage: Callable[[Usage], None] | None = None


NOBODY = Hearing(lambda _text, _thinking: None)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a model may be silent (None: for ever), and who is told that it still writes."""

    stall_ms: int | None = 120_000
    heartbeater: StreamHeartbeater | None = None
    clock: Clock | None = None


async def stream_reply(model: Model, request: ModelRequest, hearing: Hearing, patience: Patience) -> ModelReply:
    """The reply a model's stream ends with.

    Raises:
        ModelError: why there is none; `stall` if the model was silent for too long.
    """
    events = model.stream(request)
    silence, pulse, halves = _Silence(patience.stall_ms), _Pulse(patience), (_Halves(), _Halves())
    try:
        async with silence:
            async for item in events:
                match item:
                    case TextDelta(text=text) | ThinkingDelta(text=text):
                        thinking = isinstance(item, ThinkingDelta)
                        if text := halves[thinking].joined(text):
                            silence.broken()
                            pulse.wrote(len(text))
                            hearing.said(text, thinking)
                    case HiddenDelta(chars=chars):
                        if chars:
                            silence.broken()
                            pulse.wrote(0)
                            hearing.said("", True)
                    case ComesWhole():
                        silence.means_nothing()
                    case JobBegun(job=job):
                        silence.means_nothing()
                        if hearing.job is not None:
                            await hearing.job(job)
                    case UsageSoFar(usage=usage):
                        if hearing.usage is not None:
                            hearing.usage(usage)
                    case ModelReply():
                        return item
    finally:
        pulse.stop()
        if isinstance(events, AsyncGenerator):
            await events.aclose()
    raise ModelError(LlmError(kind="stream_cut", message="the stream ended without a reply", retryable=True))


class _Halves:
    """Joins a character that came in two halves, in two pieces: some servers cut texts anywhere."""

    def __init__(self) -> None:
        self._half = ""

    def joined(self, text: str) -> str:
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return clean(text)


class _Silence:
    """Ends its block when nothing is written in it for too long."""

    def __init__(self, stall_ms: int | None) -> None:
        self._limit_s = None if stall_ms is None else stall_ms / 1000
        self._timeout = asyncio.timeout(self._limit_s)

    def broken(self) -> None:
        if self._limit_s is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._limit_s)

    def means_nothing(self) -> None:
        self._limit_s = None
        self._timeout.reschedule(None)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *given: object) -> None:
        try:
            await self._timeout.__aexit__(*given)  # pyright: ignore[reportArgumentType] - passed on as they came
        except TimeoutError:
            message = f"provider stream stall: no tokens for {self._limit_s:g}s"
            raise ModelError(LlmError(kind="stall", message=message, retryable=True)) from None


class _Pulse:
    """Tells a heartbeater how far the stream is: now and then while it is silent, not too often while it is not."""

    def __init__(self, patience: Patience) -> None:
        self._to = patience.heartbeater
        self._clock = patience.clock
        self._chars = 0
        self._last_delta_at = self._now_s()
        self._telling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_at = 0.0
        if self._to is not None:
            self._again()

    def _now_s(self) -> int:
        return self._clock.wall_ms() // 1000 if self._clock is not None else 0

    def _again(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(TICK_S, self._beat)
        self._next_at = loop.time() + BEAT_S

    def wrote(self, chars: int) -> None:
        if self._to is None:
            return
        self._chars += chars
        self._last_delta_at = self._now_s()
        if asyncio.get_running_loop().time() >= self._next_at:
            self._beat()

    def _beat(self) -> None:
        self._again()
        if self._to is not None and (self._telling is None or self._telling.done()):
            progress = StreamProgress(self._chars, self._last_delta_at)
            self._telling = asyncio.create_task(_told(self._to, progress), name="perdure:heartbeat")

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._telling is not None:
            self._telling.cancel()


async def _told(heartbeater: StreamHeartbeater, progress: StreamProgress) -> None:
    try:
        await heartbeater.heartbeat(progress)
    except Exception:
        log.exception("a heartbeat of a model's stream failed")
