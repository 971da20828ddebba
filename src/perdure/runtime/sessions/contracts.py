"""The contract that a call was made under, as its turn captured it: wherever its agent is registered now."""

from __future__ import annotations

from perdure.codec import decode
from perdure.ids import BlobHash, StreamId, TurnId
from perdure.store.protocol import Store
from perdure.vocab.log_keys import hands_key, open_key
from perdure.vocab.records import TurnOpened, TurnRecomposed
from perdure.vocab.tools import Composition, ToolContract


async def contract_of(store: Store, stream: StreamId, turn: TurnId, tool: str) -> ToolContract | None:
    """The contract of a tool for the calls that this turn waits for; None if it has none, or nobody knows any more."""
    composition = await _composition_of(store, stream, turn)
    if not composition:
        return None
    blob = await store.blob(composition, stream=stream)
    return decode(blob.data, Composition).tool(tool)


async def _composition_of(store: Store, stream: StreamId, turn: TurnId) -> BlobHash | None:
    """Of whoever has the turn: what it waits for was called by that agent."""
    opened = await store.find(stream, open_key(turn))
    if opened is None or not isinstance(opened.record, TurnOpened):
        return None
    composition, hands = opened.record.composition, 1
    while (taken := await store.find(stream, hands_key(turn, hands))) is not None:
        if isinstance(taken.record, TurnRecomposed):
            composition = taken.record.composition
        hands += 1
    return composition
