"""Whether a turn is over, and how: read off the log of its session, wherever it ran."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.ids import StreamId, TurnId
from perdure.inbox.items import Input
from perdure.store.protocol import Store
from perdure.vocab.log_keys import end_key, gate_key, open_key
from perdure.vocab.messages import Reply
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import CancelRequested, EffectSettled, Record, Row, TurnEnded


async def end_of(store: Store, stream: StreamId, turn: TurnId) -> Row | None:
    """The row that holds a turn's end, if it is over."""
    row = await store.find(stream, gate_key(turn))
    if row is not None and isinstance(row.record, CancelRequested):
        row = await store.find(stream, end_key(turn))
    return row


async def has_turn(store: Store, stream: StreamId, turn: TurnId) -> bool:
    """Whether a session has this turn: waiting in its inbox, or begun. In this order, as a turn goes that way."""
    return await waits(store, stream, turn) or await has_begun(store, stream, turn)


async def waits(store: Store, stream: StreamId, turn: TurnId) -> bool:
    """Whether this turn waits in the inbox of its session."""
    return any(isinstance(row.item, Input) and row.item.turn == turn for row in await store.inbox(stream))


async def has_begun(store: Store, stream: StreamId, turn: TurnId) -> bool:
    """Whether a session has begun this turn."""
    return await store.find(stream, open_key(turn)) is not None


async def told(store: Store, stream: StreamId, turn: TurnId) -> tuple[TurnEnded, LlmCallOutcome | None] | None:
    """How a turn ended, and with which reply; None while it is not over."""
    row = await end_of(store, stream, turn)
    ended = row.record if row is not None else None
    if row is None or not isinstance(ended, TurnEnded):
        return None
    opened = await store.find(stream, open_key(turn))
    rows = await store.read(stream, after=opened.seq, until=row.seq) if opened else ()
    return ended, last_answer(one.record for one in rows)


def last_answer(records: Iterable[Record]) -> LlmCallOutcome | None:
    """How the last complete reply of a turn was recorded."""
    answer = None
    for record in records:
        match record:
            case EffectSettled(outcome=LlmCallOutcome(reply=Reply()) as found):
                answer = found
            case _:
                pass
    return answer
