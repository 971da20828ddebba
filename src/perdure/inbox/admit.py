"""Admission: the same key with the same content is one thing, with other content a conflict."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from perdure.codec import brief, digest
from perdure.errors import Code, Error
from perdure.ids import BlobHash, Fence, InputId, PromiseId, StreamId, TurnId
from perdure.inbox.items import CancelTurn, Input, Item, LateOutcome, Occurrence, Wake, write
from perdure.vocab.blobs import Blob
from perdure.vocab.children import ChildEnded
from perdure.vocab.records import InputAdmitted, InputCancelled

NOBODY = InputId("")


class Opening(msgspec.Struct, frozen=True, gc=False):
    """The first record of a stream that a delivery opens, as it is stored."""

    kind: str
    data: bytes


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One thing to put into one stream's inbox.

    `agent` opens the stream if it does not exist yet, at the place that `queue` and `priority` say (None: that of its
    agent), with `opening` as its first record (None: that a session was opened), to be found by `tags`; without it
    the stream must exist. With `once` it opens none whose name a deleted stream had, and with `fresh` it goes into none
    that exists: both are conflicts. `blobs` are stored and referred to in the same transaction; `refers` names bytes
    that the tenant has stored already. `sealed` is the item as it is stored when it is not stored in the clear.
    """

    stream: StreamId
    source_key: str
    content: str
    item: Item
    at: int
    agent: str | None = None
    blobs: tuple[Blob, ...] = ()
    refers: tuple[BlobHash, ...] = ()
    sealed: bytes | None = None
    queue: str | None = None
    priority: int | None = None
    opening: Opening | None = None
    tags: tuple[str, ...] = ()
    once: bool = False
    fresh: bool = False

    @property
    def data(self) -> bytes:
        """The item as it is stored."""
        return write(self.item) if self.sealed is None else self.sealed


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """New. `fence` is set when the sender was given the stream in the same transaction; `opened` tells that the stream
    was opened by this, and has nothing else in it."""

    inbox_id: int
    fence: Fence | None = None
    opened: bool = False


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """Admitted before, with the same content: here is the first one's turn."""

    turn: TurnId
    input: InputId


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """The key was used before for something else."""

    source_key: str


Admission: TypeAlias = Admitted | Duplicate | Conflict


def content_of(item: Item) -> str:
    """What makes two deliveries under one key the same: everything except the ids minted for this try."""
    return brief(digest(_content(item)))


def content_admitted(record: InputAdmitted) -> str:
    """The same of an input that is in the log, whether or not what it said was taken out since."""
    if record.redacted:
        return record.content
    item = Input(
        input=record.input,
        turn=record.turn,
        parts=record.parts,
        plugin_input=record.plugin_input,
        model=record.model,
        mode=record.mode,
        output=record.output,
    )
    return content_of(item)


def admitted(item: Input, turn: TurnId) -> InputAdmitted:
    """The record of an input that a turn has taken: the one it asked for, or another that it joins."""
    return InputAdmitted(
        input=item.input,
        turn=turn,
        parts=item.parts,
        key=item.key,
        plugin_input=item.plugin_input,
        model=item.model,
        mode=item.mode,
        source=item.source,
        joins=turn != item.turn,
        output=item.output,
    )


def withdrawn(item: Input, *, origin: str, reason: str = "", by: Input | None = None) -> InputCancelled:
    """The record of an input that no turn has taken, and none will: `by` took its place."""
    return InputCancelled(
        input=item.input,
        turn=item.turn,
        key=item.key,
        origin=origin,
        reason=reason,
        replaced_by=by.input if by else NOBODY,
        answered_in=by.turn if by else TurnId(""),
    )


def _content(item: Item) -> tuple[object, ...]:
    match item:
        case Input(parts=parts, plugin_input=plugin_input, model=model, mode=mode, output=output):
            said = ("input", parts, plugin_input) if plugin_input else ("input", parts)
            said = (*said, "model", model) if model else said
            said = (*said, "output", output) if output is not None else said
            return (*said, "mode", mode) if mode != "queue" else said
        case LateOutcome(call=call, id=effect):
            return ("late_outcome", call, effect)
        case Wake(reason=reason):
            return ("wake", reason)
        case CancelTurn(turn=turn):
            return ("cancel_turn", turn)
        case ChildEnded(child=child, turn=turn):
            return ("child_ended", child, turn)
        case Occurrence(payload=payload, session=session):
            return ("occurrence", payload, session)


def delivery(stream: StreamId, source_key: str, item: Item, *, at: int, agent: str | None = None) -> Delivery:
    """Address an item to a stream."""
    return Delivery(stream=stream, source_key=source_key, content=content_of(item), item=item, at=at, agent=agent)


def decide(known: tuple[str, TurnId, InputId] | None, new: Delivery) -> Duplicate | Conflict | None:
    """Judge a delivery against what its key admitted before; None means it is new."""
    if known is None:
        return None
    content, turn, input_id = known
    return Duplicate(turn, input_id) if content == new.content else Conflict(new.source_key)


def opens(agent: str | None, new: Delivery) -> bool:
    """Whether a delivery opens its stream; `agent` is that of the stream which exists, None if there is none.

    Raises:
        Error: `session_unknown` if there is none and the delivery opens none; `session_agent_conflict` if the stream
            belongs to another agent.
    """
    if agent is None and new.agent is None:
        raise stream_unknown(new.stream)
    if agent is not None and new.agent is not None and agent != new.agent:
        raise Error(
            Code.SESSION_AGENT_CONFLICT,
            f"the session belongs to agent {agent}, not to {new.agent}",
            hint="use another session name, or the agent it was opened with",
            stream=new.stream,
            agent=agent,
        )
    return agent is None


def ids_of(item: Item) -> tuple[TurnId, InputId]:
    """The ids a duplicate is answered with; blank for what opens no turn."""
    return (item.turn, item.input) if isinstance(item, Input) else (TurnId(""), InputId(""))


def is_news(item: Item) -> bool:
    """Whether a parked stream is woken by it: everything except an input that waits for the turn to go on or to end."""
    return not isinstance(item, Input) or item.mode == "interrupt"


def wake(stream: StreamId, promise: PromiseId, *, at: int) -> Delivery:
    """What a resolved promise puts into the inbox of each stream that waits for it."""
    return delivery(stream, f"promise:{promise}", Wake(reason=f"promise:{promise}"), at=at)


def blob_unknown(hash: BlobHash) -> Error:
    """The refusal of a reference to bytes that the tenant does not have."""
    return Error(
        Code.BLOB_UNKNOWN,
        "there are no stored bytes of this name; nothing was written",
        hint="send the bytes themselves",
        blob=hash,
    )


def key_conflict(new: Delivery) -> Error:
    """The refusal of other content under a source key that was used."""
    return Error(
        Code.INPUT_KEY_CONFLICT,
        f"the key {new.source_key} was used before, with other content",
        stream=new.stream,
        key=new.source_key,
    )


def stream_unknown(stream: StreamId) -> Error:
    """The refusal of something for a stream that does not exist."""
    return Error(
        Code.SESSION_UNKNOWN,
        "there is no such session",
        hint="name an agent to open it",
        stream=stream,
    )
