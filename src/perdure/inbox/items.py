"""What waits in an inbox before it enters a stream."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from perdure.codec import Json, encode
from perdure.ids import CallId, EffectId, InputId, TurnId
from perdure.vocab.children import ChildEnded
from perdure.vocab.messages import InputPart
from perdure.vocab.outcomes import ToolOutput
from perdure.vocab.records import InputMode
from perdure.vocab.wire import Value, read_stored


class Input(Value, frozen=True, tag="input"):
    """Somebody says something; a turn will answer it. The turn's id is minted here.

    `model` is the one this turn runs on, if it is not the agent's own. An input of the same `merge_key` that is sent
    while this one waits takes its place. `output` is what the reply must be, if the sender says: a name and a schema.
    """

    input: InputId
    turn: TurnId
    parts: tuple[InputPart, ...]
    key: str = ""
    plugin_input: dict[str, Json] | None = None
    model: str = ""
    mode: InputMode = "queue"
    source: str = ""
    merge_key: str = ""
    output: Json = None


class LateOutcome(Value, frozen=True, tag="late_outcome"):
    """A worker that lost its lease while a call ran reports how the call ended."""

    call: CallId
    id: EffectId
    tool: str
    output: ToolOutput


class Wake(Value, frozen=True, tag="wake"):
    """Something the stream waited for has happened: look again."""

    reason: str


class CancelTurn(Value, frozen=True, tag="cancel_turn"):
    """Whoever asked for a turn does not wait for it any more: it shall end."""

    turn: TurnId
    origin: str
    reason: str = ""


class Occurrence(Value, frozen=True, tag="occurrence"):
    """Something happened at a trigger source."""

    occurrence: str
    key: str
    payload: Json = None
    session: str = ""


Item: TypeAlias = Input | LateOutcome | Wake | CancelTurn | ChildEnded | Occurrence

_decoder = msgspec.json.Decoder(Item)


def write(item: Item) -> bytes:
    """An item as it is stored."""
    return encode(item)


def read(data: bytes) -> Item:
    """A stored item.

    Raises:
        Error: `format_newer` for an item this version does not know, `store_corrupt` for one that is damaged.
    """
    return read_stored(_decoder, data, what="inbox item")
