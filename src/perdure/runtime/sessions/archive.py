"""Export and import of sessions as JSON lines, complete or refused.

Law: an import never continues foreign work. Unfinished work is recorded as it stands: calls that may have happened as
in doubt, the turn as stopped. A past has no authority: the session belongs to the agent that the import names, on that
agent's model and tools, without session-wide approvals, sub-agents and variables of programs.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import cast

from msgspec.structs import replace

from perdure.codec import Json, brief, decode, digest, encode
from perdure.commit.changes import Label, NewStream, Remembered
from perdure.commit.plan import Entry
from perdure.errors import Code, Error
from perdure.ids import BlobHash, EffectId, InputId, Seq, SessionId, StreamId, TurnId, check_id
from perdure.inbox.admit import content_admitted
from perdure.observe.verify import contradictions
from perdure.offload import offload
from perdure.runtime.agent import check_agent_name
from perdure.runtime.calls.programs import MEDIA_TYPE
from perdure.runtime.sessions.editing import checked_tags, checked_title
from perdure.runtime.sessions.parts import checked_content
from perdure.session.fold import fold_all
from perdure.session.redaction import blobs_of
from perdure.store.protocol import Store
from perdure.store.shapes import StreamInfo
from perdure.turn.machine import settlement
from perdure.vocab.blobs import Blob, blob_of
from perdure.vocab.children import ChildClaimed, ChildEnded, ChildRegistered
from perdure.vocab.effects import EffectKind
from perdure.vocab.invisible import one_line_json
from perdure.vocab.messages import Reply, Text
from perdure.vocab.outcomes import InDoubt, LlmCallOutcome
from perdure.vocab.records import (
    ApprovalGranted,
    AttachmentStored,
    CancelRequested,
    EffectSettled,
    EffectStarted,
    GrantRevoked,
    HandedOver,
    InputAdmitted,
    InputCancelled,
    ModelJobBegun,
    ModelSet,
    OutcomeArrivedLate,
    Record,
    RecordRedacted,
    Row,
    SessionImported,
    SessionOpened,
    SessionPaused,
    SessionResumed,
    TagsSet,
    TitleSet,
    ToolMembershipChanged,
    TurnAgentChanged,
    TurnEnded,
    TurnOpened,
    kind_of,
    read,
    write,
)
from perdure.vocab.refs import EffectRef, parse_ref
from perdure.vocab.tools import Composition

VERSION = 1
MAX_RECORDS = 1_000_000
MAX_AT = 2**53 - 1
MAX_TOLD = 5
_FOREIGN = "imported:"
_UNFINISHED = "the turn was not over when the session was exported; it is not continued here"


# --- export -------------------------------------------------------------------------------------------------------


async def export(store: Store, info: StreamInfo, *, now: int) -> bytes:
    """Return all records of a session and the bytes they refer to, one JSON object per line."""
    rows = await store.read(info.stream)
    size = sum(len(row.data) for row in rows)
    hashes = await offload(size, _blobs_of, rows)
    blobs = list[Blob]()
    for hash in hashes:
        try:
            blobs.append(await store.blob(hash, stream=info.stream))
        except Error as problem:
            if problem.code is not Code.BLOB_UNKNOWN:
                raise
            continue  # the pruned composition of an old turn, not needed any more
    size += sum(len(blob.data) for blob in blobs)
    return await offload(size, _written, info, rows, blobs, now)


def _blobs_of(rows: Sequence[Row]) -> list[BlobHash]:
    return list(dict.fromkeys(hash for row in rows for hash in blobs_of(row.record)))


def _written(info: StreamInfo, rows: Sequence[Row], blobs: Sequence[Blob], now: int) -> bytes:
    state = fold_all(None, rows)
    head = {
        "type": "perdure_session",
        "v": VERSION,
        "session": info.name,
        "agent": state.next_agent or state.agent or info.agent,
        "exported_at": now,
        "records": len(rows),
        "title": info.title,
        "tags": list(info.tags),
    }
    lines: list[Json] = [head]
    for row in rows:
        lines.append({"type": "record", "seq": row.seq, "at": row.at, "kind": row.kind, "data": decode(row.data)})
    for blob in blobs:
        told = {"type": "blob", "hash": blob.hash, "media_type": blob.media_type}
        lines.append({**told, "data": b64encode(blob.data).decode()})
    lines.append({"type": "end", "lines": len(lines), "sha256": digest(lines)})
    return b"".join(one_line_json(encode(line).decode()).encode() + b"\n" for line in lines)


# --- import -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Read:
    """The parsed parts of an export."""

    agent: str
    rows: list[Row] = field(default_factory=list[Row])
    blobs: list[Blob] = field(default_factory=list[Blob])


def imported(stream: StreamId, data: bytes | str, *, agent: str | None, now: int) -> NewStream:
    """Return the session of an export, under another name.

    Raises:
        Error: `export_invalid`, with the number of the invalid line.
    """
    found = _parsed(stream, data)
    _check_log(found.rows)
    owner = check_agent_name(agent) if agent else found.agent
    rows = [_owned(row, owner) for row in found.rows]
    records = [(row.at, row.record) for row in rows]
    records += [(now, record) for record in (*_closing(rows), SessionImported(agent=owner))]
    _check_bytes(found, (record for _, record in records))
    entries = tuple(Entry.of(record, at=at) for at, record in records)
    admissions = tuple(_remembered(record) for _, record in records if isinstance(record, InputAdmitted) and record.key)
    state = fold_all(None, found.rows)
    label = Label(title=state.title, tags=state.tags)
    return NewStream(stream, owner, entries, now, tuple(found.blobs), admissions, label)


def _parsed(stream: StreamId, data: bytes | str) -> _Read:
    raw = data.encode() if isinstance(data, str) else data
    lines: list[Json] = []
    for number, text in enumerate(raw.splitlines(), 1):
        try:
            lines.append(decode(text, dict[str, Json]))
        except Error as problem:
            raise _invalid(number, problem.because or problem.message) from None
    if not lines or lines[0].get("type") != "perdure_session":
        raise _invalid(1, "the first line is not the header of a session export")
    if type(lines[0].get("v")) is not int or lines[0]["v"] != VERSION:
        raise _invalid(1, f"the export has version {lines[0].get('v')!r}; supported: {VERSION}")
    last = lines[-1]
    if last.get("type") != "end" or last.get("lines") != len(lines) - 1 or last.get("sha256") != digest(lines[:-1]):
        raise _invalid(len(lines), "the last line is missing, or the content was changed")
    return _sorted(stream, lines)


def _sorted(stream: StreamId, lines: list[Json]) -> _Read:
    found = _Read(_checked_head(lines[0]))
    for number, line in enumerate(lines[1:-1], 2):
        try:
            match line:
                case {"type": "record", "seq": int(seq), "at": int(at), "kind": str(kind), "data": payload}:
                    if type(seq) is bool or seq != len(found.rows) + 1 or seq > MAX_RECORDS:
                        raise _invalid(number, f"record {seq} is out of order")
                    if type(at) is bool or not 0 <= at <= MAX_AT:
                        raise _invalid(number, f"record {seq} has an invalid time")
                    _check_record(read(kind, encode(payload)))
                    found.rows.append(Row(stream=stream, seq=Seq(seq), at=at, kind=kind, data=encode(payload)))
                case {"type": "blob", "hash": str(hash), "media_type": str(media_type), "data": str(text)}:
                    blob = blob_of(b64decode(text, validate=True), media_type)
                    if blob.hash != hash:
                        raise _invalid(number, "the bytes do not match the hash")
                    if media_type != MEDIA_TYPE:  # threat: S5
                        found.blobs.append(blob)
                case _:
                    raise _invalid(number, "neither a record nor a blob")
        except ValueError as problem:
            raise _invalid(number, str(problem)) from None
        except Error as problem:
            raise problem if problem.code is Code.EXPORT_INVALID else _invalid(number, _error_text(problem)) from None
    if not found.rows or not isinstance(found.rows[0].record, SessionOpened):
        raise _invalid(2, "the first record must be session_opened")
    return found


def _checked_head(head: Json) -> str:
    """Return the agent of the header. Its title and tags are only checked, because the records contain them."""
    try:
        checked_title(head.get("title", ""))
        checked_tags(head.get("tags", []))
        return check_agent_name(head.get("agent"))
    except Error as problem:
        raise _invalid(1, _error_text(problem)) from None


OF_SESSION: frozenset[type[Record]] = frozenset(
    {
        SessionOpened,
        InputAdmitted,
        InputCancelled,
        TurnOpened,
        TurnAgentChanged,
        TurnEnded,
        EffectStarted,
        EffectSettled,
        ModelJobBegun,
        OutcomeArrivedLate,
        AttachmentStored,
        ToolMembershipChanged,
        HandedOver,
        ApprovalGranted,
        GrantRevoked,
        CancelRequested,
        SessionPaused,
        SessionResumed,
        SessionImported,
        TitleSet,
        ModelSet,
        TagsSet,
        RecordRedacted,
        ChildClaimed,
        ChildRegistered,
        ChildEnded,
    }
)
"""The kinds of records that a session can have. Every other kind belongs to another kind of stream."""


def _check_record(record: Record) -> None:
    """Check a record by the same rules as a live one."""
    if type(record) not in OF_SESSION:  # threat: S5
        raise Error(Code.INVALID_ARGUMENT, f"a session has no record {kind_of(record)}")
    match record:
        case SessionOpened(agent=agent) | SessionImported(agent=agent) | TurnAgentChanged(agent=agent):
            check_agent_name(agent)
        case HandedOver(to=agent):
            check_agent_name(agent)
        case EffectStarted(id=effect) | EffectSettled(id=effect) | ModelJobBegun(id=effect):
            _check_effect(effect)
        case OutcomeArrivedLate(id=effect):
            _check_effect(effect)
        case TurnOpened(turn=turn, index=index, from_turn=from_turn):
            check_id(turn, what="the turn id")
            if not 0 <= from_turn <= max(index, 0):
                raise Error(Code.INVALID_ARGUMENT, f"the model view of turn {index} starts at turn {from_turn}")
        case InputAdmitted(input=input, turn=turn, parts=parts, key=key):
            check_id(input, what="the input id")
            check_id(turn, what="the turn id")
            if key:
                check_id(key, what="the input key")
            if not parts:
                checked_content(parts)
            for part in parts:  # one by one: an input of several imported messages may exceed the limit of one
                checked_content([part])
        case TitleSet(title=title):
            checked_title(title)
        case TagsSet(tags=tags):
            checked_tags(tags)
        case _:
            pass


def _check_effect(effect: EffectId) -> None:
    """Check that this version could have given the effect this id."""
    ref = parse_ref(effect)
    numbers = (ref.iteration, ref.index, ref.attempt) if isinstance(ref, EffectRef) else (ref.iteration, ref.index)
    if ref.id != effect or not all(0 <= (n or 0) <= MAX_RECORDS for n in numbers):  # threat: S23
        raise Error(Code.INVALID_ARGUMENT, f"{effect!r} is not the id of an effect of a turn")


def _check_log(rows: Sequence[Row]) -> None:
    problems = list(islice(chain(contradictions(rows), _gaps(rows)), MAX_TOLD))
    if problems:
        raise Error(
            Code.EXPORT_INVALID,
            "the log of the export contradicts itself; nothing was written",
            because="; ".join(problems),
            hint="export the session again; `perdure journal verify` reads the log where it is",
        )


def _gaps(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the claims whose numbers have gaps: the next number is found by binary search."""
    claims = [(row.seq, row.record) for row in rows if row.kind == "child_claimed"]
    for expected, (seq, record) in enumerate(claims, 1):
        if isinstance(record, ChildClaimed) and record.number != expected:
            yield f"#{seq}: sub-agent {record.number} is claimed, expected {expected}"


def _owned(row: Row, agent: str) -> Row:
    """Return a row of the past as a row of its new session. Its sub-agents stay with the exported session."""
    match row.record:
        case SessionOpened():
            return replace(row, data=write(SessionOpened(agent=agent)))
        case ChildClaimed() as claimed:
            own = replace(claimed, handle=_FOREIGN + claimed.handle, parent=row.stream, live=())
            return replace(row, data=write(own))
        case ChildRegistered() as child:
            own = replace(child, handle=_FOREIGN + child.handle, child=SessionId(""))
            return replace(row, data=write(own))
        case _:
            return row


def _closing(rows: list[Row]) -> list[Record]:
    """Return the records that lift a pause and stop an unfinished turn."""
    state = fold_all(None, rows)
    undone: list[Record] = [SessionResumed(origin="import")] if state.paused else []
    if state.open_turn is None:
        return undone
    records = [row.record for row in rows if row.seq >= state.turn_seq]
    settled = {record.id for record in records if isinstance(record, EffectSettled)}
    closing: list[Record] = []
    calls: tuple[object, ...] = ()
    for record in records:
        match record:
            case EffectSettled(outcome=LlmCallOutcome(reply=Reply() as reply)):
                calls = reply.calls
            case EffectStarted(id=id, kind=EffectKind.TOOL_CALL) if id not in settled:
                ref = _ref(id)
                call = calls[ref.index] if ref.index is not None and ref.index < len(calls) else None
                doubt = InDoubt(reason="worker_lost", message="the session was exported while the call ran")
                if call is not None:
                    closing.append(settlement(ref, cast("Json", call), doubt))
            case _:
                pass
    cancelled = any(request.turn == state.open_turn for request in state.cancels)
    reason = "cancelled" if cancelled else "imported"
    return [*undone, *closing, TurnEnded(turn=state.open_turn, status="stopped", reason=reason, message=_UNFINISHED)]


def _ref(effect: EffectId) -> EffectRef:
    try:
        return EffectRef.parse(effect)
    except Error as problem:
        raise Error(
            Code.EXPORT_INVALID, "the export has an invalid effect id; nothing was written", because=problem.message
        ) from None


def _check_bytes(found: _Read, records: Iterable[Record]) -> None:
    known = {blob.hash for blob in found.blobs}
    for record in records:
        if not isinstance(record, TurnOpened) and (missing := set(blobs_of(record)) - known):
            raise Error(
                Code.EXPORT_INVALID,
                "the export lacks bytes that its records refer to; nothing was written",
                because=f"blob {min(missing)} is missing",
            )


def _remembered(record: InputAdmitted) -> Remembered:
    return Remembered(f"key:{record.key}", content_admitted(record), record.turn, record.input)


def _error_text(problem: Error) -> str:
    return f"{problem.message}: {problem.because}" if problem.because else problem.message


def _invalid(line: int, because: str) -> Error:
    return Error(
        Code.EXPORT_INVALID,
        f"line {line} of the export cannot be read; nothing was written",
        because=because,
        hint="export the session again, with this version or an earlier one",
    )


# --- plain messages -----------------------------------------------------------------------------------------------


def history(stream: StreamId, messages: Sequence[Json], *, agent: str, model: str, now: int) -> NewStream:
    """Return a session that begins with a foreign conversation: `{"role": "user" | "assistant", "content": …}`.

    Raises:
        Error: `export_invalid` with the number of the invalid message; the errors of `send` for its content.
    """
    composition = blob_of(encode(Composition(agent=agent, model=model)), "application/json")
    entries: list[Record] = [SessionOpened(agent=agent)]
    blobs: dict[BlobHash, Blob] = {composition.hash: composition}
    for index, (asked, answered) in enumerate(_turns(messages)):
        turn = TurnId(f"imported-{index + 1}")
        parts = [checked_content(content) for content in asked]
        for one in parts:
            if one.refers:
                raise _unusable(index, "the message refers to bytes that the import lacks")
            blobs.update((blob.hash, blob) for blob in one.blobs)
        first = Seq(len(entries) + 1)
        entries.append(
            InputAdmitted(
                input=InputId(f"imported-{index + 1}"), turn=turn, parts=tuple(p for one in parts for p in one.parts)
            )
        )
        entries.append(TurnOpened(turn=turn, index=index, composition=composition.hash, view_seq=first))
        entries += _answer(turn, answered, model)
    written = tuple(Entry.of(record, at=now) for record in entries)
    return NewStream(stream, agent, written, now, tuple(blobs.values()))


def _answer(turn: TurnId, answered: list[str], model: str) -> list[Record]:
    if not answered:
        message = "the imported conversation has no answer to this"
        return [TurnEnded(turn=turn, status="stopped", reason="imported", message=message)]
    reply = Reply(parts=tuple(Text(text=text) for text in answered), model=model)
    return [
        EffectSettled(
            id=EffectId("m1.1"), outcome=LlmCallOutcome(reply=reply), fingerprint=brief(digest(("imported", answered)))
        ),
        TurnEnded(turn=turn, status="finished"),
    ]


def _turns(messages: Sequence[Json]) -> list[tuple[list[Json], list[str]]]:
    if not isinstance(messages, Sequence) or isinstance(messages, bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _unusable(0, f"messages must be a list, not {type(messages).__name__}")
    turns: list[tuple[list[Json], list[str]]] = []
    for index, message in enumerate(messages):
        match message:
            case {"role": "user", "content": content}:
                if not turns or turns[-1][1]:
                    turns.append(([], []))
                turns[-1][0].append(content)
            case {"role": "assistant", "content": str(text)} if turns and text.strip():
                (checked,) = checked_content(text).parts
                turns[-1][1].append(cast("Text", checked).text)
            case {"role": "assistant", "content": str()} if not turns:
                raise _unusable(index, "a conversation begins with a user message")
            case {"role": "system" | "developer"}:
                raise _unusable(index, "instructions belong to the agent: Agent(instructions=…)")
            case _:
                raise _unusable(index, 'expected {"role": "user" or "assistant", "content": …}')
    if not turns:
        raise _unusable(0, "the list is empty")
    return turns


def _unusable(index: int, because: str) -> Error:
    return Error(Code.EXPORT_INVALID, f"message {index + 1} cannot be imported; nothing was written", because=because)
