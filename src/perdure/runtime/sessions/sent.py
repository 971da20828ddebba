"""A sent input: the result and events of its turn, and signed keys for third parties."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure.effects.promises import SECRET, TurnScope, signed_key
from perdure.errors import Code, Error
from perdure.ids import InputId, Seq, TurnId
from perdure.observe.events import Cursor, Event, RecordEvent, TextDelta, TextReset, ToolOutputDelta, ToolProgress
from perdure.observe.follow import follow
from perdure.observe.text import TextFlow
from perdure.runtime.sessions.results import no_turn, wait_for
from perdure.runtime.shared import TurnResult
from perdure.tools.durations import seconds
from perdure.vocab.log_keys import input_key, open_key
from perdure.vocab.promises import EventKey, TurnCancelGate, TurnTerminal, WaitIdentity
from perdure.vocab.records import InputAdmitted, InputCancelled, TurnEnded, TurnOpened

if TYPE_CHECKING:
    from perdure.runtime.sessions.ref import SessionRef
    from perdure.runtime.sessions.session import Session


@dataclass(frozen=True, slots=True)
class TurnHandle:
    """A durable input, and the turn that it requests.

    A running turn answers an input that was steered into it; `result` and `events` then follow that turn.
    """

    session: Session
    _ref: SessionRef = field(repr=False)
    turn_id: TurnId
    input_id: InputId
    is_duplicate: bool = False

    async def result(self, timeout: float | str | None = None) -> TurnResult:
        """Wait for the durable end of the turn, and return its result. Cancelling the wait, or its timeout, changes
        nothing.

        Raises:
            Error: `result_timeout` if the turn has not ended in time; `session_unknown` if the session was deleted.
        """
        within = seconds(timeout)
        try:
            async with asyncio.timeout(within):
                return await wait_for(self._ref, self.turn_id, self.input_id)
        except TimeoutError:
            raise Error(
                Code.RESULT_TIMEOUT,
                f"the turn has not ended after {within} s; it goes on",
                hint="await session.why()",
                turn=self.turn_id,
            ) from None

    async def events(self) -> AsyncIterator[Event]:
        """Yield the events of the turn that answers this input, from its admission to its end.

        Raises:
            Error: `turn_unknown` once its session was deleted.
        """
        begun, answered_in, rt = False, self.turn_id, self._ref.runtime
        before = Cursor.parse(await self._before())
        async for event in follow(rt.sources, self._ref.stream, before, while_there=True):
            match event:
                case (
                    TextDelta(turn=turn) | TextReset(turn=turn) | ToolProgress(turn=turn) | ToolOutputDelta(turn=turn)
                ) if turn != answered_in:
                    continue
                case RecordEvent(record=InputAdmitted(input=self.input_id, turn=turn)):
                    begun, answered_in = True, turn
                case RecordEvent(record=TurnOpened(turn=turn)) if turn == answered_in:
                    begun = True
                case RecordEvent(record=InputCancelled(input=self.input_id)):
                    yield event
                    return
                case _:
                    pass
            if begun:
                yield event
            if (
                isinstance(event, RecordEvent)
                and isinstance(event.record, TurnEnded)
                and event.record.turn == answered_in
            ):
                return
        raise no_turn(self._ref, answered_in)

    async def _before(self) -> str:
        """Return a cursor before the turn's first record: the input's record is directly before the opening."""
        store, stream = self._ref.runtime.store, self._ref.stream
        info = await store.stream(stream)  # read first: a turn that opens later opens after this position
        opened = await store.find(stream, open_key(self.turn_id))
        if opened:
            return str(Cursor(Seq(max(0, opened.seq - 2))))
        if joined := await store.find(stream, input_key(self.input_id)):
            return str(Cursor(Seq(joined.seq - 1)))
        return str(Cursor(info.last_seq if info else Seq(0)))

    async def cancel_key(self) -> EventKey:
        """Return a signed key that cancels this turn: `await rt.resolve(key)`. The bearer needs no access to the
        session."""
        return await self._key(TurnCancelGate(turn_id=self.turn_id))

    async def result_key(self) -> EventKey:
        """Return a signed key that reads the end of this turn: `await rt.peek(key)`. The bearer needs no access to the
        session."""
        return await self._key(TurnTerminal(turn_id=self.turn_id))

    async def _key(self, wait: WaitIdentity) -> EventKey:
        rt = self._ref.runtime
        rt.check_usable()
        scope = TurnScope(self._ref.tenant, self._ref.id, self.turn_id)
        return signed_key(await rt.secrets.get(SECRET, scope.tenant), scope.id, wait)

    async def stream_text(self) -> AsyncIterator[str]:
        """Yield the text of the turn's replies as it is written, each reply on its own line.

        After an interrupted reply, the whole new one follows. Text that a slow reader missed comes from the saved
        reply.
        """
        flow = TextFlow()
        async for event in self.events():
            if text := flow.feed(event):
                yield text
