"""Streams with many, slow and absent observers, attempts that break off, and limits that are reached meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from perdure import Agent, Session, UsageLimits
from perdure.events import Event, RecordEvent, TextDelta
from perdure.models.protocol import ModelError, ModelEvent, ModelRequest, TextPiece
from perdure.observe.hub import QUEUE_LIMIT
from perdure.runtime.internals import core_of, ref_of
from perdure.vocab.outcomes import LlmError
from perdure.vocab.records import TurnEnded
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import App
from tests.scenarios.test_streaming import Reader, Typist

OBSERVERS, SLOW = 50, 9


class Slow:
    """Reads one event each time it is let."""

    def __init__(self, session: Session) -> None:
        self.may = asyncio.Semaphore(1)
        self.events: list[Event] = []
        self.task = asyncio.create_task(self._read(session))

    async def _read(self, session: Session) -> None:
        async for event in session.events():
            self.events.append(event)
            if isinstance(event, RecordEvent) and isinstance(event.record, TurnEnded):
                return
            await self.may.acquire()


async def test_slow_and_absent_observers_delay_no_other_observer(app: App) -> None:
    pieces = [f"{n} " for n in range(3_000)]
    model = Typist(pieces)
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    absent = session.events()
    await anext(absent)  # and looks no more
    slow = [Slow(session) for _ in range(SLOW)]
    quick = [Reader(session) for _ in range(OBSERVERS - SLOW - 1)]
    model.go_on(len(pieces) + 1)
    assert (await sent.result(timeout=60)).text == "".join(pieces)
    assert all(len(one.events) <= 2 for one in slow), "the whole reply was written before they read on"
    queued = [len(one.items) for one in core_of(rt).hub._watching[ref_of(session).stream]]  # pyright: ignore[reportPrivateUsage]
    assert len(queued) == OBSERVERS
    assert max(queued) <= QUEUE_LIMIT < len(pieces)
    for reader in quick:
        await reader.has_replies("".join(pieces))
        await reader.leave()
    for one in slow:
        for _ in range(QUEUE_LIMIT * 2):
            one.may.release()
        await asyncio.wait_for(one.task, 30)
        said = "".join(event.text for event in one.events if isinstance(event, TextDelta))
        assert "".join(pieces).startswith(said), "the shown text has no gap and no repetition"


class Cut:
    """Writes three thousand characters and breaks off, every time."""

    name = "cut"

    def __init__(self, cost_nano: int = 0) -> None:
        self.asked = 0
        self._cost_nano = cost_nano

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.asked += 1
        yield TextPiece("abc" * 1_000)
        raise ModelError(LlmError(kind="stream_cut", message="cut", retryable=True))

    async def priced(self, usage: Usage) -> Usage:
        return Usage(input=usage.input, output=usage.output, calls=1, cost_nano=self._cost_nano, priced=1, estimated=1)


async def test_limit_reached_in_a_cut_stream_ends_the_turn(app: App) -> None:
    tokens, money = Cut(), Cut(cost_nano=2_000_000_000)
    agents = [
        Agent("t", model=tokens, limits=UsageLimits(turn_tokens=500)),
        Agent("m", model=money, limits=UsageLimits(turn_usd="1")),
    ]
    rt = await app.add(agents)
    for name, model in (("t", tokens), ("m", money)):
        result = await (await (await rt.session(f"s-{name}", agent=name)).send("go")).result(30)
        assert (result.status, result.reason) == ("stopped", "limit_reached"), name
        assert (model.asked, result.usage.output) == (1, 1_000), "bought once, and not asked again"


async def test_reconnected_observer_sees_a_superseded_attempt_struck_out(app: App) -> None:
    model = Typist(("Hello, ", "dear ", None), ("Good ", "morning"))
    rt, looking = await app.open(model), await app.open(Typist(("x",)), worker=False)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    reader = Reader(looking.get_session("s"))
    model.go_on(1)
    await reader.shows("Hello, ")
    cursor = reader.cursor
    await reader.leave()
    model.go_on(3)  # the rest of the first attempt, its end, and the beginning of the next
    watching = Reader(looking.get_session("s"), cursor, has="Hello, ")
    await watching.shows("Good ")
    late = Reader(looking.get_session("s"), cursor, has="Hello, ")
    await late.shows("Good ")
    model.go_on()
    assert (await sent.result(timeout=30)).text == "Good morning"
    for one in (watching, late):
        await one.has_replies("Good morning")
        await one.leave()
