"""Reading of a model's stream: pieces are passed on as they arrive, and too long a silence ends it.

Laws: only output of the model resets the stall timer (text, thoughts, calls, files), not pings, empty pieces and
signatures. No observer of the output is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace

from perdure.clock import Clock
from perdure.codec import Json
from perdure.models.protocol import (
    MAX_REPLY_BYTES,
    ComesWhole,
    HiddenDelta,
    JobBegun,
    Model,
    ModelError,
    ModelReply,
    ModelRequest,
    TextPiece,
    ThinkingDelta,
    UsageSoFar,
    clean,
)
from perdure.services.replies import StreamHeartbeater, StreamProgress
from perdure.services.secrets import speaker
from perdure.vocab.outcomes import LlmError
from perdure.vocab.usage import Usage

log = logging.getLogger("perdure.runtime")

MAX_HIDDEN_CHARS = 64 * 1024 * 1024
"""Most characters of calls and bytes of files in one reply, as they arrive."""
TICK_S = 12.0
"""Interval of heartbeats while a stream is silent, in seconds."""
BEAT_S = 5.0
"""Shortest interval of heartbeats while a stream delivers, in seconds."""


@dataclass(frozen=True, slots=True)
class ReplySink:
    """Callbacks for the output of a model before its reply.

    `said` gets each text and whether it is a thought; an empty text stands for output that is not shown. `job` gets the
    provider's background job, and is awaited before the stream is read further. `usage` gets the usage reported so far.
    """

    said: Callable[[str, bool], None]
    job: Callable[[Json], Awaitable[None]] | None = None
    usage: Callable[[Usage], None] | None = None


SILENT = ReplySink(lambda _text, _thinking: None)


@dataclass(frozen=True, slots=True)
class StallPolicy:
    """How long a model may be silent (None: without limit), and the heartbeater that is told of its progress."""

    stall_ms: int | None = 120_000
    heartbeater: StreamHeartbeater | None = None
    clock: Clock | None = None


async def without_secrets(request: ModelRequest) -> ModelRequest:
    """Return the request without the values of the session that the current task works for."""
    redactor = speaker()
    if not redactor.is_needed:
        return request
    return replace(  # threat: S10, T-SEC-01
        request,
        instructions=redactor.text(request.instructions),
        messages=redactor.values(request.messages),
        attachments={hash: await redactor.data_of_any_size(data) for hash, data in request.attachments.items()},
    )


async def stream_reply(model: Model, request: ModelRequest, hearing: ReplySink, patience: StallPolicy) -> ModelReply:
    """Return the reply that ends a model's stream.

    Raises:
        ModelError: the stream had no reply; `stall` if the model was silent for too long.
    """
    events = model.stream(await without_secrets(request))
    size = _Size()
    silence, pulse, halves = _Silence(patience.stall_ms), _Pulse(patience), (_Halves(), _Halves())
    try:
        async with silence:
            async for item in events:
                match item:
                    case TextPiece(text=text) | ThinkingDelta(text=text):
                        thinking = isinstance(item, ThinkingDelta)
                        size.shown(len(text))
                        if text := halves[thinking].joined(text):
                            silence.broken()
                            pulse.wrote(len(text))
                            hearing.said(text, thinking)
                    case HiddenDelta(chars=chars):
                        size.hidden(chars)
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
                            hearing.usage(usage.bounded())
                    case ModelReply():
                        return item
    finally:
        pulse.stop()
        if isinstance(events, AsyncGenerator):
            await events.aclose()
    raise ModelError(LlmError(kind="stream_cut", message="the stream ended without a reply", retryable=True))


class _Size:
    """The size of a reply as it arrives, to stop a reply that could not be kept."""

    def __init__(self) -> None:
        self._shown = self._hidden = 0

    def shown(self, chars: int) -> None:
        self._shown += chars
        if self._shown > MAX_REPLY_BYTES:  # threat: S24
            raise _too_large(MAX_REPLY_BYTES)

    def hidden(self, chars: int) -> None:
        self._hidden += chars
        if self._hidden > MAX_HIDDEN_CHARS:
            raise _too_large(MAX_HIDDEN_CHARS)


def _too_large(limit: int) -> ModelError:
    message = f"the reply was stopped at more than the limit of {limit} bytes"
    return ModelError(LlmError(kind="too_large", message=message))


class _Halves:
    """Joiner of a character that arrives in two pieces: some servers cut texts anywhere."""

    def __init__(self) -> None:
        self._half = ""

    def joined(self, text: str) -> str:
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return clean(text)


class _Silence:
    """Stall timer: ends its block when no output arrives for too long."""

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
    """Sender of heartbeats: regular ones while the stream is silent, and at a limited rate while it delivers."""

    def __init__(self, patience: StallPolicy) -> None:
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
            self._telling = asyncio.create_task(_send_heartbeat(self._to, progress), name="perdure:heartbeat")

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._telling is not None:
            self._telling.cancel()


async def _send_heartbeat(heartbeater: StreamHeartbeater, progress: StreamProgress) -> None:
    try:
        await heartbeater.heartbeat(progress)
    except Exception:
        log.exception("stream heartbeat failed")
