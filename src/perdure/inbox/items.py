"""Inbox items: messages that have not entered a stream yet."""

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
    """A user input; a turn answers it. The turn's id is minted here.

    `model` replaces the agent's model for this turn. A later input with the same `merge_key` replaces this one while it
    is queued. `output` is the required form of the reply, if the sender sets one: a name and a schema. `by_session` is
    true if the session caused the input itself: by a background run, a sub-agent, a task or a schedule of its model.
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
    by_session: bool = False


class LateOutcome(Value, frozen=True, tag="late_outcome"):
    """The outcome of a call, reported by a worker that lost its lease during the call."""

    call: CallId
    id: EffectId
    tool: str
    output: ToolOutput


class Wake(Value, frozen=True, tag="wake"):
    """An event that the stream waits for has happened."""

    reason: str


class CancelTurn(Value, frozen=True, tag="cancel_turn"):
    """A request to end a turn, because its requester no longer waits for it."""

    turn: TurnId
    origin: str
    reason: str = ""


class Occurrence(Value, frozen=True, tag="occurrence"):
    """An occurrence at a trigger source."""

    occurrence: str
    key: str
    payload: Json = None
    session: str = ""


Item: TypeAlias = Input | LateOutcome | Wake | CancelTurn | ChildEnded | Occurrence

_decoder = msgspec.json.Decoder(Item)


def write(item: Item) -> bytes:
    """Encode an item for storage."""
    return encode(item)


def read(data: bytes) -> Item:
    """Decode a stored item.

    Raises:
        Error: `format_newer` for an item unknown to this version, `store_corrupt` for a damaged one.
    """
    return read_stored(_decoder, data, what="inbox item")
