"""Laws of a store of interrupted replies, as tests to inherit:

class TestMyStreams(PartialStreamLaws):
    @pytest.fixture
    async def scribe(self) -> AsyncIterator[Scribe]:
        yield MyScribe()
"""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

from typing import Protocol

from perdure.ids import SessionId, TurnId
from perdure.services.replies import PartialStreamState, PartialStreamStore

ONE, TWO = SessionId("one"), SessionId("two")
FIRST, SECOND = TurnId("t1"), TurnId("t2")


class Scribe(Protocol):
    """A writer of replies, like a model, into the store under test. Both sessions exist."""

    @property
    def streams(self) -> PartialStreamStore:
        """The store under test."""
        ...

    async def write(self, session: SessionId, turn: TurnId, attempt: int, text: str) -> None:
        """Append text to an attempt at this turn's reply."""
        ...

    async def end(self, session: SessionId, turn: TurnId, attempt: int) -> None:
        """End an attempt. Its outcome is in the log."""
        ...


class PartialStreamLaws:
    """Laws of partial streams. A subclass provides the fixture `scribe`."""

    async def test_partial_stream_is_none_before_any_write(self, scribe: Scribe) -> None:
        assert await scribe.streams.get_partial_stream(ONE, FIRST) is None
        assert await scribe.streams.get_partial_stream(SessionId("nobody"), FIRST) is None

    async def test_partial_stream_contains_all_text_so_far(self, scribe: Scribe) -> None:
        for text in ("Hel", "lo, \u00e4 \U0001f600 ", "w"):
            await scribe.write(ONE, FIRST, 1, text)
        assert await scribe.streams.get_partial_stream(ONE, FIRST) == PartialStreamState("Hello, \u00e4 \U0001f600 w")

    async def test_looking_changes_nothing(self, scribe: Scribe) -> None:
        await scribe.write(ONE, FIRST, 1, "Hel")
        first = await scribe.streams.get_partial_stream(ONE, FIRST)
        assert first == await scribe.streams.get_partial_stream(ONE, FIRST)
        await scribe.write(ONE, FIRST, 1, "lo")
        assert await scribe.streams.get_partial_stream(ONE, FIRST) == PartialStreamState("Hello")

    async def test_sessions_and_turns_are_told_apart(self, scribe: Scribe) -> None:
        await scribe.write(ONE, FIRST, 1, "mine")
        await scribe.write(TWO, SECOND, 1, "yours")
        assert await scribe.streams.get_partial_stream(TWO, FIRST) is None
        assert await scribe.streams.get_partial_stream(ONE, SECOND) is None
        assert await scribe.streams.get_partial_stream(TWO, SECOND) == PartialStreamState("yours")

    async def test_a_reply_that_has_ended_did_not_break_off(self, scribe: Scribe) -> None:
        await scribe.write(ONE, FIRST, 1, "all of it")
        await scribe.end(ONE, FIRST, 1)
        assert await scribe.streams.get_partial_stream(ONE, FIRST) is None

    async def test_only_the_last_attempt_counts(self, scribe: Scribe) -> None:
        await scribe.write(ONE, FIRST, 1, "old words")
        await scribe.end(ONE, FIRST, 1)
        await scribe.write(ONE, FIRST, 2, "new")
        assert await scribe.streams.get_partial_stream(ONE, FIRST) == PartialStreamState("new")
