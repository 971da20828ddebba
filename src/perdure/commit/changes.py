"""Changes that no owner makes: labels, a redaction, an intervention, an amendment, a stream that comes as a whole. And
why one is refused.
"""

from __future__ import annotations

import msgspec

from perdure.commit.plan import Entry, Snapshot
from perdure.errors import Code, Error
from perdure.ids import BlobHash, InputId, PromiseId, Seq, StreamId, TurnId
from perdure.inbox.admit import Delivery
from perdure.vocab.blobs import Blob
from perdure.vocab.promises import Resolution


class Label(msgspec.Struct, frozen=True, gc=False):
    """How a stream is listed and found. None leaves it as it is. A projection of the log: its records say the same.

    `tags` are all it has from now on; `adds` and `drops` change them one by one, so that two who do that at once lose
    nothing. A tag that begins with `LIVE` is taken from a stream by its end, and not given to one that has ended.
    """

    title: str | None = None
    tags: tuple[str, ...] | None = None
    adds: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()


class Note(msgspec.Struct, frozen=True, gc=False):
    """An admitted record for one stream, among others that are written together, and its label."""

    stream: StreamId
    entry: Entry
    label: Label | None = None


class Redaction(msgspec.Struct, frozen=True, gc=False):
    """A record loses what it said.

    `data` takes the place of its bytes, `note` is appended under a key of its own: a record is redacted once. The
    snapshot goes, and the owner finds a wake in its inbox. `drops` are references that no other record has, as far as
    could be seen at `known_seq` and `known_inbox` (the last inbox row there was): if the stream has moved, nothing is
    done. `answers` are what the stream's promises say from now on, those that were answered: an answer that a record
    quotes is kept there too.
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


REDACTED = "redacted"
MODEL_SET = "model set"
"""The reason of the wake that a redaction leaves."""


class Remembered(msgspec.Struct, frozen=True, gc=False):
    """An admission of a stream that comes as a whole: the same key and content is still the same input."""

    source_key: str
    content: str
    turn: TurnId
    input: InputId


class NewStream(msgspec.Struct, frozen=True, gc=False):
    """A stream with its past: idle, nobody's, all of it or nothing. `beside` is a stream that must be there, because
    this one belongs to it."""

    stream: StreamId
    agent: str
    entries: tuple[Entry, ...]
    at: int
    blobs: tuple[Blob, ...] = ()
    admissions: tuple[Remembered, ...] = ()
    label: Label = Label()
    beside: StreamId | None = None


class Amendment(msgspec.Struct, frozen=True, gc=False):
    """One more record of a stream that nobody drives, with the bytes it brings and those it lets go: all or nothing.

    The log key of `entry` says on what it was decided: if somebody has taken it, nothing is done. `blobs` are referred
    to from now on, `drops` are not, and `snapshot` is the fold with this record in it.
    """

    stream: StreamId
    entry: Entry
    blobs: tuple[Blob, ...] = ()
    drops: tuple[BlobHash, ...] = ()
    snapshot: Snapshot | None = None


class Pause(msgspec.Struct, frozen=True, gc=False):
    """Since when nothing of a stream may be begun, and by whose will; `since` None: it may again."""

    by: str
    since: int | None


class Intervention(msgspec.Struct, frozen=True, gc=False):
    """What somebody does from outside to the turn or the inbox of a stream, in one transaction: all of it or nothing.

    `notes` are admitted records; one whose log key is taken is left out. `delivery` goes into the inbox; if it was
    admitted before, nothing at all is done. `withdraw` takes inbox rows back: each must still wait, and with
    `known_inbox` (the last row there was) nothing may have come behind them. `pause` pauses or resumes; if it is so
    already, nothing is done. Pausing takes an idle stream from whoever holds it, so that nothing begins there. `sends`
    go into the inboxes of other streams with it; one that is not accepted changes nothing. If a log key of `unless` is
    taken, nothing at all is done.
    """

    stream: StreamId
    delivery: Delivery | None = None
    notes: tuple[Entry, ...] = ()
    withdraw: tuple[int, ...] = ()
    known_inbox: int | None = None
    pause: Pause | None = None
    sends: tuple[Delivery, ...] = ()
    unless: tuple[str, ...] = ()


def check_admissions(new: NewStream) -> None:
    """What every store refuses of a stream that comes whole: one input key for two inputs.

    Raises:
        Error: `input_key_conflict`.
    """
    known: set[str] = set()
    for one in new.admissions:
        if one.source_key in known:
            raise Error(
                Code.INPUT_KEY_CONFLICT,
                f"the key {one.source_key} is there twice; nothing was written",
                stream=new.stream,
                key=one.source_key,
            )
        known.add(one.source_key)


def record_unknown(stream: StreamId, seq: Seq) -> Error:
    """The refusal of a change to a record that is not there."""
    return Error(Code.RECORD_UNKNOWN, f"there is no record {seq}", stream=stream, seq=seq)


def stream_moved(stream: StreamId) -> Error:
    """The refusal of a change that was decided on what is not true any more."""
    return Error(Code.COMMIT_CONFLICT, "the session has moved on meanwhile; nothing was written", stream=stream)


def stream_exists(stream: StreamId) -> Error:
    """The refusal of a second stream of one name."""
    return Error(
        Code.SESSION_EXISTS,
        "there is a session of this name already; nothing was written",
        hint="choose another name, or delete that session first",
        stream=stream,
    )
