"""An input that was sent: how its turn ends, what happens until then, and keys for those who may know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.effects.promises import SECRET, TurnScope, signed_key
from perdure.errors import Code, Error
from perdure.ids import InputId, Seq, TurnId
from perdure.observe.events import Cursor, Delta, Event, Fact, OutputDelta, Progress, Superseded
from perdure.observe.follow import follow
from perdure.observe.text import TextFlow
from perdure.runtime.sessions.results import no_turn
from perdure.runtime.shared import TurnResult
from perdure.tools.durations import seconds
from perdure.vocab.log_keys import input_key, open_key
from perdure.vocab.promises import AwaitEventKey, TurnCancelGate, TurnTerminal, WaitIdentity
from perdure.vocab.records import InputAdmitted, InputCancelled, TurnEnded, TurnOpened

if TYPE_CHECKING:
    from perdure.runtime.sessions.session import Session


@dataclass(frozen=True, slots=True)
class Sent:
    """An input that is durable, and the turn it asked for.

    One that was steered into a running turn is answered by that one, and has no turn of its own; `result` and `events`
    know.
    """

    session: Session
    turn: TurnId
    input: InputId
    duplicate: bool = False

    async def result(self, timeout: float | str | None = None) -> TurnResult:
        """How the turn ended, once that is durable. Cancelling the wait, or its timeout, changes nothing.

        Raises:
            Error: `result_timeout` if the turn is not over in time; `session_unknown` if the session was deleted.
        """
        within = seconds(timeout)
        try:
            async with asyncio.timeout(within):
                return await self.session.wait_for(self.turn, self.input)
        except TimeoutError:
            raise Error(
                Code.RESULT_TIMEOUT,
                f"the turn is not over after {within} s; it goes on",
                hint="wait again, or ask session.why() what it waits for",
                turn=self.turn,
            ) from None

    async def events(self) -> AsyncIterator[Event]:
        """The events of the turn that answers this input, from the moment it takes it to its end.

        Raises:
            Error: `turn_unknown` once its session was deleted.
        """
        begun, answered_in, rt = False, self.turn, self.session.runtime
        before = Cursor.parse(await self._before())
        async for event in follow(rt.sources, self.session.stream, before, while_there=True):
            match event:
                case Delta(turn=turn) | Superseded(turn=turn) | Progress(turn=turn) | OutputDelta(turn=turn) if (
                    turn != answered_in
                ):
                    continue
                case Fact(record=InputAdmitted(input=self.input, turn=turn)):
                    begun, answered_in = True, turn
                case Fact(record=TurnOpened(turn=turn)) if turn == answered_in:
                    begun = True
                case Fact(record=InputCancelled(input=self.input)):
                    yield event
                    return
                case _:
                    pass
            if begun:
                yield event
            if isinstance(event, Fact) and isinstance(event.record, TurnEnded) and event.record.turn == answered_in:
                return
        raise no_turn(self.session, answered_in)

    async def _before(self) -> str:
        """A place before the turn's first record: its input stands right before its opening, late news aside."""
        store, stream = self.session.runtime.store, self.session.stream
        info = await store.stream(stream)  # first: if the turn opens meanwhile, it opens behind this
        opened = await store.find(stream, open_key(self.turn))
        if opened:
            return str(Cursor(Seq(max(0, opened.seq - 2))))
        if joined := await store.find(stream, input_key(self.input)):
            return str(Cursor(Seq(joined.seq - 1)))
        return str(Cursor(info.last_seq if info else Seq(0)))

    async def cancel_key(self) -> AwaitEventKey:
        """A key with which somebody without access to the session can ask for this turn to end: `rt.resolve(key)`."""
        return await self._key(TurnCancelGate(turn_id=self.turn))

    async def terminal_key(self) -> AwaitEventKey:
        """A key with which somebody without access to the session can see how this turn ends: `rt.peek(key)`."""
        return await self._key(TurnTerminal(turn_id=self.turn))

    async def _key(self, wait: WaitIdentity) -> AwaitEventKey:
        rt = self.session.runtime
        rt.check_usable()
        scope = TurnScope(self.session.tenant, self.session.id, self.turn)
        return signed_key(await rt.secrets.get(SECRET), scope.id, wait)

    async def text_stream(self) -> AsyncIterator[str]:
        """The text of the turn's replies as it is written, each on a line of its own.

        A reply that broke off is followed by the whole new one; text missed by a slow reader is filled in from the
        saved reply.
        """
        flow = TextFlow()
        async for event in self.events():
            if text := flow.feed(event):
                yield text
