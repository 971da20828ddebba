"""The end of a turn and its reply, read from the log of its session, so that any process can read them."""

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
    """Return the row with the turn's end, or None while the turn is open."""
    row = await store.find(stream, gate_key(turn))
    if row is not None and isinstance(row.record, CancelRequested):
        row = await store.find(stream, end_key(turn))
    return row


async def has_turn(store: Store, stream: StreamId, turn: TurnId) -> bool:
    """Return whether a session has this turn, queued or opened. A turn moves from inbox to log: read in this order."""
    return await waits(store, stream, turn) or await has_begun(store, stream, turn)


async def waits(store: Store, stream: StreamId, turn: TurnId) -> bool:
    """Return whether this turn is queued in the inbox of its session."""
    return any(isinstance(row.item, Input) and row.item.turn == turn for row in await store.inbox(stream))


async def has_begun(store: Store, stream: StreamId, turn: TurnId) -> bool:
    """Return whether the session has opened this turn."""
    return await store.find(stream, open_key(turn)) is not None


async def end_and_reply(store: Store, stream: StreamId, turn: TurnId) -> tuple[TurnEnded, LlmCallOutcome | None] | None:
    """Return the turn's end and its last reply, or None while the turn is open."""
    row = await end_of(store, stream, turn)
    ended = row.record if row is not None else None
    if row is None or not isinstance(ended, TurnEnded):
        return None
    opened = await store.find(stream, open_key(turn))
    rows = await store.read(stream, after=opened.seq, until=row.seq) if opened else ()
    return ended, last_answer(one.record for one in rows)


def last_answer(records: Iterable[Record]) -> LlmCallOutcome | None:
    """Return the outcome that contains the last complete reply among these records."""
    answer = None
    for record in records:
        match record:
            case EffectSettled(outcome=LlmCallOutcome(reply=Reply()) as found):
                answer = found
            case _:
                pass
    return answer
