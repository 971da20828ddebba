"""Edits of a session without its lease: title, tags, redaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from msgspec.structs import replace

from perdure.codec import check_text
from perdure.commit.changes import Audit, Label, Redaction, record_unknown
from perdure.commit.plan import Entry
from perdure.errors import Code, Error
from perdure.ids import BlobHash, PromiseId, Seq, StreamId
from perdure.inbox.admit import stream_unknown
from perdure.session.fold import SessionState, fold_all
from perdure.session.redaction import blobs_of, caches_of, hollow, hollow_answer, promise_of, sha256_of
from perdure.store.protocol import Store
from perdure.vocab.log_keys import redaction_key
from perdure.vocab.promises import Ok, Resolution
from perdure.vocab.records import CancelRequested, RecordRedacted, Row, TagsSet, TitleSet, write

MAX_TITLE_CHARS = 200
MAX_TAGS = 32
MAX_TAG_CHARS = 64

_TRIES = 50


def checked_title(title: object) -> str:
    """Return a valid title: one line of limited length. A blank title removes the title.

    Raises:
        Error: `invalid_argument` or `invalid_text`.
    """
    return _line(title, "the title", MAX_TITLE_CHARS)


def checked_tags(tags: object) -> tuple[str, ...]:
    """Return valid tags, sorted, without duplicates.

    Raises:
        Error: `invalid_argument` or `invalid_text`.
    """
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise Error(
            Code.INVALID_ARGUMENT, f"tags must be a list of texts, not {type(tags).__name__}", hint='set_tags(["vip"])'
        )
    found = sorted({checked_tag(tag) for tag in cast("Iterable[object]", tags)})
    if len(found) > MAX_TAGS:
        raise Error(Code.INVALID_ARGUMENT, f"too many tags: {len(found)}", because=f"the limit is {MAX_TAGS}")
    return tuple(found)


def checked_tag(tag: object) -> str:
    """Return a valid tag.

    Raises:
        Error: `invalid_argument` or `invalid_text`.
    """
    text = _line(tag, "a tag", MAX_TAG_CHARS)
    if not text or "," in text:
        raise Error(Code.INVALID_ARGUMENT, f"invalid tag {text!r}", because="a tag is not blank and has no comma")
    return text


def _line(text: object, what: str, limit: int) -> str:
    if not isinstance(text, str):
        raise Error(Code.INVALID_ARGUMENT, f"{what} must be text, not {type(text).__name__}")
    text = check_text(text, where=what).strip()
    if len(text) > limit:
        raise Error(Code.INVALID_ARGUMENT, f"{what} is {len(text)} characters long", because=f"the limit is {limit}")
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text):
        raise Error(Code.INVALID_ARGUMENT, f"{what} contains a control character", hint="use one line of plain text")
    return text


async def set_title(store: Store, stream: StreamId, title: str, *, now: int) -> None:
    """Set the title of a session."""
    await store.annotate(stream, Entry.of(TitleSet(title=title), at=now), label=Label(title=title))


async def set_tags(store: Store, stream: StreamId, tags: tuple[str, ...], *, now: int) -> None:
    """Set the tags of a session."""
    await store.annotate(stream, Entry.of(TagsSet(tags=tags), at=now), label=Label(tags=tags))


async def redact(store: Store, stream: StreamId, seq: Seq, *, origin: str, now: int, audit: Audit = ()) -> bool:
    """Redact the payload of a record. False if it was redacted before.

    Raises:
        Error: see `Session.redact`.
    """
    for _ in range(_TRIES):
        if await store.find(stream, redaction_key(seq)) is not None:
            return False
        plan = await _plan(store, stream, seq, origin, now)
        try:
            return (await store.redact(replace(plan, audit=audit))).new
        except Error as problem:
            if problem.code is not Code.COMMIT_CONFLICT:
                raise
    raise Error(
        Code.SESSION_BUSY,
        "the session changed during redaction; nothing was redacted",
        hint="retry when it is idle",
        stream=stream,
    )


async def _plan(store: Store, stream: StreamId, seq: Seq, origin: str, now: int) -> Redaction:
    rows = await store.read(stream)
    if not rows:
        raise stream_unknown(stream)
    if not 1 <= seq <= len(rows):
        raise record_unknown(stream, seq)
    waiting = await store.inbox(stream)
    row = rows[seq - 1]
    _refuse_what_is_needed(row, rows)
    sha256 = sha256_of(row.data)
    rest = hollow(row.record, sha256)
    if rest is None:
        raise Error(
            Code.INVALID_ARGUMENT,
            f"record {seq} ({row.kind}) has nothing to redact",
            hint="perdure journal show",
            stream=stream,
        )
    others: set[BlobHash] = set()
    caches: set[BlobHash] = set()  # any cache may contain the payload, and none is needed
    for other in rows:
        caches.update(caches_of(other.record))
        if other.seq != seq:
            others.update(blobs_of(other.record))
    for item in waiting:
        others.update(blobs_of(item.item))
    promise = promise_of(row, rows)
    return Redaction(
        stream=stream,
        seq=seq,
        data=write(rest),
        note=Entry.of(RecordRedacted(seq=seq, sha256=sha256, origin=origin), at=now),
        at=now,
        drops=tuple(sorted((set(blobs_of(row.record)) - others) | caches)),
        known_seq=rows[-1].seq,
        known_inbox=max((item.id for item in waiting), default=0),
        answers=() if promise is None else ((promise, await _hollow_answer(store, promise)),),
    )


async def _hollow_answer(store: Store, promise: PromiseId) -> Resolution:
    """Return the redacted resolution of a promise, also for a promise that is resolved only later."""
    known = await store.peek(promise)
    answer = known.resolution if known is not None else None
    return hollow_answer(answer if answer is not None else Ok())


def _refuse_what_is_needed(row: Row, rows: tuple[Row, ...]) -> None:
    state: SessionState = fold_all(None, rows)
    record = row.record
    running = state.open_turn is not None and row.seq >= state.turn_seq
    if running or (isinstance(record, CancelRequested) and record in state.cancels):
        raise Error(
            Code.SESSION_BUSY,
            f"record {row.seq} belongs to a turn that has not ended",
            hint="await session.cancel()",
            stream=row.stream,
        )
    last = next((other for other in reversed(rows) if other.kind == row.kind), None)
    if isinstance(record, TitleSet | TagsSet) and last is not None and last.seq == row.seq:
        raise Error(
            Code.INVALID_ARGUMENT,
            f"record {row.seq} is the current title or tags",
            hint="set another title or other tags first",
            stream=row.stream,
        )
