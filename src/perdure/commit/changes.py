"""Changes made without owning the stream, and their refusals: labels, redactions, control writes, conditional appends,
whole new streams.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from perdure.commit.plan import Entry, Snapshot
from perdure.errors import Code, Error
from perdure.ids import BlobHash, InputId, PromiseId, Seq, StreamId, TurnId
from perdure.inbox.admit import Delivery
from perdure.vocab.blobs import Blob
from perdure.vocab.promises import Resolution


class Label(msgspec.Struct, frozen=True, gc=False):
    """Title and tags of a stream, for lists and filters. None leaves a field unchanged. A projection of the log.

    `tags` replaces all tags. `adds` and `drops` change single tags, so concurrent changes do not overwrite each other.
    The end of a stream removes its tags that begin with `LIVE`; an ended stream gets no such tag.
    """

    title: str | None = None
    tags: tuple[str, ...] | None = None
    adds: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()


class Note(msgspec.Struct, frozen=True, gc=False):
    """An admitted record for one stream, with its label; several notes can be written in one transaction."""

    stream: StreamId
    entry: Entry
    label: Label | None = None


Audit: TypeAlias = tuple[Note, ...]
"""Records of a change for the audit log, in the transaction of the change.

A change that took no effect writes none of them. Their stream must exist, and has no other locks taken after its own:
every store writes them last.
"""


class Redaction(msgspec.Struct, frozen=True, gc=False):
    """Physical removal of a record's content, at most once per record.

    `data` replaces the record's bytes. `note` is appended under its own log key, so a second redaction changes nothing.
    The snapshot is deleted, and a wake in the inbox notifies the owner.

    `drops` lists blob references of this record alone, as read at `known_seq` and `known_inbox` (the last inbox row).
    If the stream has moved since, nothing is written. `answers` replaces stored resolutions of the stream's promises,
    because a resolution that the record quotes is stored there too.
    """

    stream: StreamId
    seq: Seq
    data: bytes
    note: Entry
    at: int
    drops: tuple[BlobHash, ...] = ()
    known_seq: Seq = Seq(0)
    known_inbox: int = 0
    answers: tuple[tuple[PromiseId, Resolution], ...] = ()
    audit: Audit = ()


REDACTED = "redacted"
MODEL_SET = "model set"
"""Reasons of the wakes that notify the owner of a redaction and of a changed model."""


class Remembered(msgspec.Struct, frozen=True, gc=False):
    """An admission copied into a new stream, so that the same key and content is still the same input there."""

    source_key: str
    content: str
    turn: TurnId
    input: InputId


class NewStream(msgspec.Struct, frozen=True, gc=False):
    """A stream created with its history: idle, unowned, in one transaction. `beside` names an existing stream that the
    new one belongs to."""

    stream: StreamId
    agent: str
    entries: tuple[Entry, ...]
    at: int
    blobs: tuple[Blob, ...] = ()
    admissions: tuple[Remembered, ...] = ()
    label: Label = Label()
    beside: StreamId | None = None
    audit: Audit = ()


class Amendment(msgspec.Struct, frozen=True, gc=False):
    """A conditional append to an unowned stream: one record with its blob references, all or nothing.

    The log key of `entry` names the state that the decision was based on. If the key is taken, nothing is written.
    `blobs` adds references, `drops` removes them, and `snapshot` is the fold that includes this record.
    """

    stream: StreamId
    entry: Entry
    blobs: tuple[Blob, ...] = ()
    drops: tuple[BlobHash, ...] = ()
    snapshot: Snapshot | None = None


class Pause(msgspec.Struct, frozen=True, gc=False):
    """A pause of a stream: author and start time. `since` None means that work may start again."""

    by: str
    since: int | None


class Intervention(msgspec.Struct, frozen=True, gc=False):
    """A control write: changes to a stream's turn or inbox by a non-owner, in one transaction, all or nothing.

    `notes` are admitted records; a note whose log key is taken is left out. `delivery` goes into the inbox. `withdraw`
    removes inbox rows: each must still be queued, and with `known_inbox` (the last row) no later row may have arrived.
    `pause` pauses or resumes. A pause also releases an idle stream from its owner, so that nothing starts there.
    `outbox` go into the inboxes of other streams; a rejected one changes nothing.

    Nothing is written if the delivery was admitted before, the pause state is already as requested, or a log key of
    `unless` is taken. `audit` is left out if a note was.
    """

    stream: StreamId
    delivery: Delivery | None = None
    notes: tuple[Entry, ...] = ()
    withdraw: tuple[int, ...] = ()
    known_inbox: int | None = None
    pause: Pause | None = None
    outbox: tuple[Delivery, ...] = ()
    unless: tuple[str, ...] = ()
    audit: Audit = ()


def check_admissions(new: NewStream) -> None:
    """Refuse a new stream that uses one input key for two inputs.

    Raises:
        Error: `input_key_conflict`.
    """
    known: set[str] = set()
    for one in new.admissions:
        if one.source_key in known:
            raise Error(
                Code.INPUT_KEY_CONFLICT,
                f"input key {one.source_key} occurs twice; nothing was written",
                stream=new.stream,
                key=one.source_key,
            )
        known.add(one.source_key)


def record_unknown(stream: StreamId, seq: Seq) -> Error:
    """Return the error for a change to a record that does not exist."""
    return Error(Code.RECORD_UNKNOWN, f"unknown record {seq}", stream=stream, seq=seq)


def stream_moved(stream: StreamId) -> Error:
    """Return the error for a change that was decided on outdated data."""
    return Error(Code.COMMIT_CONFLICT, "the session changed concurrently; nothing was written", stream=stream)


def stream_exists(stream: StreamId) -> Error:
    """Return the error for a second stream of the same name."""
    return Error(
        Code.SESSION_EXISTS,
        "a session of this name exists; nothing was written",
        hint="choose another name, or delete that session first",
        stream=stream,
    )
