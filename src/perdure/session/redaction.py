"""What is left of a record whose payload is taken out: its place, its ids, its numbers, and the sha256 of what it said.

Law: folds and views of the log stay valid. A hollow record has the shape of the whole one, so that no reader needs to
know that something was taken out of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from perdure.codec import Json
from perdure.ids import BlobHash, PromiseId
from perdure.inbox.admit import content_admitted
from perdure.vocab.effects import AwaitEvent, PreparedToolCall
from perdure.vocab.messages import AttachmentRef, Reply, ReplyPart, Text, ToolCall
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    CheckpointOutcome,
    CompletedToolCall,
    DirectOutcome,
    Done,
    DurableStepOutcome,
    ExecCodeOutcome,
    Failed,
    InDoubt,
    LlmCallOutcome,
    LlmError,
    NotRun,
    Outcome,
    Pending,
    StepFailure,
    Success,
    SyncOutcome,
    ToolCallOutcome,
    ToolOutput,
)
from perdure.vocab.promises import Err, Ok, Resolution
from perdure.vocab.records import (
    AttachmentKept,
    CancelRequested,
    EffectSettled,
    EffectStarted,
    InputAdmitted,
    InputCancelled,
    ModelJobBegun,
    OutcomeArrivedLate,
    Record,
    Row,
    SessionPaused,
    TagsSet,
    TitleSet,
    TurnEnded,
    TurnOpened,
    TurnRecomposed,
)

PLACEHOLDER = "[redacted]"


def sha256_of(data: bytes) -> str:
    """What stands for a payload when it is gone."""
    return hashlib.sha256(data).hexdigest()


def hollow(record: Record, sha256: str) -> Record | None:
    """The record without what it said; None if it says nothing that could be taken out."""
    match record:
        case InputAdmitted():
            content = content_admitted(record)
            rest = replace(record, parts=(Text(text=PLACEHOLDER),), plugin_input=None, output=None)
            return replace(rest, redacted=sha256, content=content)
        case TurnOpened() | TurnRecomposed():
            return replace(record, composition=BlobHash(""), redacted=sha256)
        case EffectStarted(command=AwaitEvent(about=PreparedToolCall() as about) as asked):
            rest = replace(about, args={}, prepared_payload=None)  # that somebody was asked stays
            return replace(record, command=replace(asked, about=rest), redacted=sha256)
        case EffectStarted():
            return replace(record, command=None, redacted=sha256)
        case ModelJobBegun():
            return replace(record, job=None, redacted=sha256)
        case EffectSettled(outcome=outcome):
            rest = _outcome(outcome)
            return replace(record, outcome=rest, redacted=sha256) if rest is not None else None
        case OutcomeArrivedLate(output=output):
            return replace(record, output=_output(output), redacted=sha256)
        case AttachmentKept():
            return replace(record, ref=None, redacted=sha256)
        case CancelRequested() | InputCancelled() | SessionPaused():
            return replace(record, reason="", redacted=sha256)
        case TurnEnded():
            return replace(record, message="", redacted=sha256)
        case TitleSet():
            return replace(record, title="", redacted=sha256)
        case TagsSet():
            return replace(record, tags=(), redacted=sha256)
        case _:
            return None


def _outcome(outcome: Outcome) -> Outcome | None:
    match outcome:
        case LlmCallOutcome(reply=reply, error=error):
            return replace(outcome, reply=_reply(reply), error=_error(error), problem="")
        case DirectOutcome(reply=reply, error=error):
            return replace(outcome, reply=_reply(reply), error=_error(error))
        case ToolCallOutcome(launch=Done(result=CompletedToolCall(output=output) as result)):
            return replace(outcome, launch=Done(result=replace(result, output=_output(output))), triggers=())
        case ToolCallOutcome(launch=Pending(silence=silence) as pending) if silence is not None:
            return replace(outcome, launch=replace(pending, silence=None))
        case DurableStepOutcome(value=value, error=error):
            told = StepFailure(code=error.code, message=PLACEHOLDER) if error else None
            return replace(outcome, value=_step(value), error=told)
        case ExecCodeOutcome(error=error):
            return replace(outcome, response=None, error=error and PLACEHOLDER)
        case AwaitEventOutcome(resolution=(Ok() | Err()) as resolution):
            return replace(outcome, resolution=hollow_answer(resolution))
        case _:
            return None


def hollow_answer(resolution: Resolution) -> Resolution:
    """An answer without what it said; that there was one stays."""
    match resolution:
        case Ok():
            return Ok(value=PLACEHOLDER)
        case Err(code=code):
            return Err(code=code, message=PLACEHOLDER)
        case _:
            return resolution


def promise_of(row: Row, rows: tuple[Row, ...]) -> PromiseId | None:
    """The promise whose answer a record waits for or tells. The last start before a settlement is its own."""
    match row.record:
        case EffectStarted(command=AwaitEvent(key=key)):
            return key.key_id
        case EffectSettled(id=id, outcome=AwaitEventOutcome()):
            for other in reversed(rows[: row.seq - 1]):
                if isinstance(other.record, EffectStarted) and other.record.id == id:
                    return promise_of(other, rows)
            return None
        case _:
            return None


def _reply(reply: Reply | None) -> Reply | None:
    """Calls keep their ids and names, or results would stand alone. Thinking goes: its signature would not fit."""
    if reply is None:
        return None
    parts: list[ReplyPart] = []
    for part in reply.parts:
        match part:
            case Text():
                parts.append(Text(text=PLACEHOLDER))
            case ToolCall():
                malformed = None if part.malformed is None else PLACEHOLDER
                parts.append(replace(part, args={}, malformed=malformed, state=None, route=""))
            case _:
                pass
    return replace(reply, parts=tuple(parts))


def _error(error: LlmError | None) -> LlmError | None:
    return replace(error, message=PLACEHOLDER) if error else None


def _output(output: ToolOutput) -> ToolOutput:
    match output:
        case Success():
            return Success(value=PLACEHOLDER)
        case Failed(failure=failure):
            return Failed(failure=replace(failure, message=PLACEHOLDER))
        case InDoubt():
            return replace(output, message="")
        case NotRun():
            return NotRun()


def _step(value: Json) -> Json:
    """A verdict is what became of a call: it stays, without what was found."""
    match value:
        case {"verdict": verdict, "value": _}:
            return {"verdict": verdict, "value": PLACEHOLDER}
        case {"verdict": verdict}:
            return {"verdict": verdict}
        case _:
            return PLACEHOLDER


def caches_of(record: Record) -> tuple[BlobHash, ...]:
    """Stored bytes that a record names and does not need: how an interpreter stood, and which variables it left. They
    may hold whatever a program was told."""
    match record:
        case EffectSettled(outcome=CheckpointOutcome(delivery=str(hash))):
            return (BlobHash(hash),)
        case EffectSettled(outcome=SyncOutcome(sync={"hash": str(hash)})):
            return (BlobHash(hash),)
        case _:
            return ()


def blobs_of(value: object) -> Iterator[BlobHash]:
    """The stored bytes that a record or an item refers to."""
    match value:
        case AttachmentRef(hash=hash):
            yield hash
        case msgspec.Struct():
            if isinstance(value, TurnOpened | TurnRecomposed) and value.composition:
                yield value.composition
            for name in value.__struct_fields__:
                yield from blobs_of(getattr(value, name))
        case tuple():
            for one in value:  # pyright: ignore[reportUnknownVariableType] - of whatever
                yield from blobs_of(one)  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return
