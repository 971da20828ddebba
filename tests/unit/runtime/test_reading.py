"""A model is given up when it writes nothing for too long, and for nothing else. Time here passes at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Coroutine
from typing import TypeVar

import pytest

from perdure.models.protocol import (
    ComesWhole,
    HiddenDelta,
    JobBegun,
    ModelError,
    ModelEvent,
    ModelReply,
    ModelRequest,
    TextPiece,
    ThinkingDelta,
)
from perdure.runtime.calls.reading import SILENT, StallPolicy, stream_reply
from perdure.services.replies import StreamProgress
from perdure.testing.clock import ManualClock
from perdure.vocab.messages import Text
from perdure.vocab.usage import Usage

T = TypeVar("T")


class _Hasty(selectors.DefaultSelector):
    """A loop whose waits end at once."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.passed += timeout
        return ready


def in_no_time(work: Coroutine[None, None, T]) -> T:
    """Run it in a loop whose clock jumps to whatever is waited for next."""
    selector = _Hasty()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.passed
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


REPLY = ModelReply(parts=(Text(text="done"),), finish="stop", usage=Usage(), model="m")


class Slow:
    """Says one thing after each pause."""

    name = "slow"

    def __init__(self, *says: tuple[float, ModelEvent]) -> None:
        self._says = says
        self.closed = False

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        try:
            for pause_s, event in self._says:
                await asyncio.sleep(pause_s)
                yield event
        finally:
            self.closed = True


PATIENT = StallPolicy()


async def read(model: Slow, patience: StallPolicy = PATIENT) -> ModelReply:
    return await stream_reply(model, ModelRequest("m", "", (), ()), SILENT, patience)


@pytest.mark.parametrize("event", [TextPiece("x"), ThinkingDelta("x"), HiddenDelta(1)])
def test_every_model_event_resets_the_stall_timer(event: ModelEvent) -> None:
    model = Slow(*[(119.0, event)] * 4, (119.0, REPLY))
    assert in_no_time(read(model)) == REPLY


@pytest.mark.parametrize("event", [TextPiece(""), ThinkingDelta(""), HiddenDelta(0)])
def test_empty_pieces_do_not(event: ModelEvent) -> None:
    model = Slow((1.0, TextPiece("Hel")), *[(50.0, event)] * 9, (1.0, REPLY))
    with pytest.raises(ModelError) as caught:
        in_no_time(read(model))
    error = caught.value.error
    assert (error.kind, error.retryable) == ("stall", True)
    assert error.message == "provider stream stall: no tokens for 120s"
    assert model.closed


def test_a_model_that_never_begins_is_given_up_too() -> None:
    with pytest.raises(ModelError, match="no tokens for 120s"):
        in_no_time(read(Slow((121.0, REPLY))))


@pytest.mark.parametrize("first", [ComesWhole(), JobBegun({})])
def test_unstreamed_reply_is_awaited_beyond_the_stall_timeout(first: ModelEvent) -> None:
    assert in_no_time(read(Slow((0.0, first), (500.0, REPLY)))) == REPLY


def test_how_long_is_said_by_the_agent_and_may_be_for_ever() -> None:
    with pytest.raises(ModelError, match=r"no tokens for 0\.5s"):
        in_no_time(read(Slow((0.6, REPLY)), StallPolicy(500)))
    assert in_no_time(read(Slow((1e6, REPLY)), StallPolicy(None))) == REPLY


class Listener:
    """Takes as long as it likes to take notice, and fails at times."""

    def __init__(self, seconds: float = 0.0, *, fails: bool = False) -> None:
        self._seconds = seconds
        self._fails = fails
        self.told: list[StreamProgress] = []

    async def heartbeat(self, progress: StreamProgress) -> None:
        self.told.append(progress)
        await asyncio.sleep(self._seconds)
        if self._fails:
            raise RuntimeError("no line")


def test_heartbeats_tell_how_far_it_is() -> None:
    listener = Listener()
    pieces: list[tuple[float, ModelEvent]] = [(1.0, TextPiece("ab")), (1.0, HiddenDelta(7)), (1.0, ThinkingDelta("c"))]
    patience = StallPolicy(heartbeater=listener, clock=ManualClock(wall_ms=5_000))
    in_no_time(read(Slow(*pieces * 4, (30.0, REPLY)), patience))
    said = [progress.accumulated_len for progress in listener.told]
    assert said == [5, 11, 12, 12], "every 5 s while it writes, every 12 s while it does not"
    assert {progress.last_delta_at for progress in listener.told} == {5}


@pytest.mark.parametrize("listener", [Listener(1e6), Listener(fails=True)], ids=["slow", "failing"])
def test_failing_heartbeat_listener_has_no_effect(listener: Listener) -> None:
    model = Slow(*[(6.0, TextPiece("x"))] * 3, (1.0, REPLY))
    assert in_no_time(read(model, StallPolicy(heartbeater=listener, clock=ManualClock()))) == REPLY
    assert listener.told
