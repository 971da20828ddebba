"""The contract of a call, as captured by its turn."""

from __future__ import annotations

from perdure.codec import decode
from perdure.ids import BlobHash, StreamId, TurnId
from perdure.store.protocol import Store
from perdure.vocab.log_keys import hands_key, open_key
from perdure.vocab.records import TurnAgentChanged, TurnOpened
from perdure.vocab.tools import Composition, ToolContract


async def contract_of(store: Store, stream: StreamId, turn: TurnId, tool: str) -> ToolContract | None:
    """Return the contract of a tool in this turn, or None if the turn has none or is gone."""
    composition = await _composition_of(store, stream, turn)
    if not composition:
        return None
    blob = await store.blob(composition, stream=stream)
    return decode(blob.data, Composition).tool(tool)


async def _composition_of(store: Store, stream: StreamId, turn: TurnId) -> BlobHash | None:
    """Return the composition of the agent that currently has the turn."""
    opened = await store.find(stream, open_key(turn))
    if opened is None or not isinstance(opened.record, TurnOpened):
        return None
    composition, hands = opened.record.composition, 1
    while (taken := await store.find(stream, hands_key(turn, hands))) is not None:
        if isinstance(taken.record, TurnAgentChanged):
            composition = taken.record.composition
        hands += 1
    return composition
