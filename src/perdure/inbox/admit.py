"""Admission: the same key with the same content is a duplicate, with other content a conflict."""

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

NO_INPUT = InputId("")


class Opening(msgspec.Struct, frozen=True, gc=False):
    """The first record of a stream that a delivery opens, as stored."""

    kind: str
    data: bytes


class Room(msgspec.Struct, frozen=True, gc=False):
    """The limits of a session's queue: the number of waiting inputs, and their bytes."""

    inputs: int
    bytes: int


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """The inputs that wait in a queue, and their bytes."""

    inputs: int = 0
    bytes: int = 0


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One item for one stream's inbox.

    `agent` creates a missing stream; without it the stream must exist. The new stream gets `queue`, `priority` (None:
    those of its agent), `tags`, and `opening` as its first record (None: session opened). `once` refuses a stream id
    that a deleted stream had, and `fresh` refuses an existing stream: both are conflicts. `blobs` are stored and
    referenced in the same transaction; `refers` names bytes that the tenant has stored already. `encrypted` is the item
    as stored when it is encrypted. `room` refuses an input that does not fit into the queue of the stream; without it,
    every input is accepted."""

    stream: StreamId
    source_key: str
    content: str
    item: Item
    at: int
    agent: str | None = None
    blobs: tuple[Blob, ...] = ()
    refers: tuple[BlobHash, ...] = ()
    encrypted: bytes | None = None
    queue: str | None = None
    priority: int | None = None
    opening: Opening | None = None
    tags: tuple[str, ...] = ()
    once: bool = False
    fresh: bool = False
    room: Room | None = None

    @property
    def input_bytes(self) -> int:
        """The bytes that an input adds to the queue of its session, with new attachments; 0 for other items."""
        if not isinstance(self.item, Input):
            return 0
        return len(self.data) + sum(len(blob.data) for blob in self.blobs)

    @property
    def data(self) -> bytes:
        """The item as stored."""
        return write(self.item) if self.encrypted is None else self.encrypted


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """The item is new.

    `fence` is set if the sender claimed the stream in the same transaction. `opened`: the stream was created by this
    and contains nothing else.
    """

    inbox_id: int
    fence: Fence | None = None
    opened: bool = False


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """The item was admitted before with the same content; carries the ids of the first one."""

    turn: TurnId
    input: InputId


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """The key was used before for other content."""

    source_key: str


Admission: TypeAlias = Admitted | Duplicate | Conflict


def content_of(item: Item) -> str:
    """Return the digest that makes two deliveries under one key the same: all fields except the ids minted per try."""
    return brief(digest(_content(item)))


def content_admitted(record: InputAdmitted) -> str:
    """Return the same digest for an input in the log, redacted or not."""
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
    """Return the record of an input taken by a turn: the turn it asked for, or one that it joins."""
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
        by_session=item.by_session,
    )


def withdrawn(item: Input, *, origin: str, reason: str = "", by: Input | None = None) -> InputCancelled:
    """Return the record of an input that was withdrawn before a turn took it; `by` replaced it."""
    return InputCancelled(
        input=item.input,
        turn=item.turn,
        key=item.key,
        origin=origin,
        reason=reason,
        replaced_by=by.input if by else NO_INPUT,
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
    """Compare a delivery with the earlier admission under its key. None means it is new."""
    if known is None:
        return None
    content, turn, input_id = known
    return Duplicate(turn, input_id) if content == new.content else Conflict(new.source_key)


def opens(agent: str | None, new: Delivery) -> bool:
    """Return True if a delivery creates its stream. `agent` is that of the existing stream, None if there is none.

    Raises:
        Error: `session_unknown` if the stream is missing and the delivery creates none; `session_agent_conflict` if the
            stream belongs to another agent.
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


def check_queue(new: Delivery, waiting: Waiting) -> None:
    """Refuse an input for which the queue has no room. `waiting` are the inputs before it.

    Raises:
        Error: `queue_full`.
    """
    room = new.room
    if room is None or not isinstance(new.item, Input):
        return
    if waiting.inputs + 1 > room.inputs or waiting.bytes + new.input_bytes > room.bytes:  # threat: S16
        raise queue_full("session", room, waiting, stream=new.stream)


def queue_full(whose: str, room: Room, waiting: Waiting, **details: object) -> Error:
    """Return the error for an input that does not fit into the queue of a session or tenant."""
    return Error(
        Code.QUEUE_FULL,
        f"the {whose} has {waiting.inputs} inputs of {waiting.bytes} bytes waiting; nothing was written",
        because=f"the limit is {room.inputs} inputs and {room.bytes} bytes",
        hint="send it again later, or withdraw queued inputs: await session.cancel_input(...)",
        **details,
    )


def ids_of(item: Item) -> tuple[TurnId, InputId]:
    """Return the ids in the answer to a duplicate; blank for items that open no turn."""
    return (item.turn, item.input) if isinstance(item, Input) else (TurnId(""), InputId(""))


def is_news(item: Item) -> bool:
    """Return True if the item wakes a parked stream. Only a queued or steering input does not."""
    return not isinstance(item, Input) or item.mode == "interrupt"


def wake(stream: StreamId, promise: PromiseId, *, at: int) -> Delivery:
    """Return the delivery by which a resolved promise wakes a waiting stream."""
    return delivery(stream, f"promise:{promise}", Wake(reason=f"promise:{promise}"), at=at)


def blob_unknown(hash: BlobHash) -> Error:
    """Return the error for a reference to bytes that the tenant has not stored."""
    return Error(
        Code.BLOB_UNKNOWN,
        "unknown blob; nothing was written",
        hint="send the bytes themselves",
        blob=hash,
    )


def key_conflict(new: Delivery) -> Error:
    """Return the error for other content under a used source key."""
    return Error(
        Code.INPUT_KEY_CONFLICT,
        f"the key {new.source_key} was used before, with other content",
        stream=new.stream,
        key=new.source_key,
    )


def stream_unknown(stream: StreamId) -> Error:
    """Return the error for a stream that does not exist."""
    return Error(
        Code.SESSION_UNKNOWN,
        "unknown session",
        hint="name an agent to create it",
        stream=stream,
    )
