"""Redacted forms of records: position, ids, numbers, and the sha256 of the removed payload.

Law: folds and views of the log stay valid. A redacted record has the shape of the original, so that no reader needs a
special case.
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
from perdure.vocab.promises import Failure, Ok, Resolution
from perdure.vocab.records import (
    AttachmentStored,
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
    TurnAgentChanged,
    TurnEnded,
    TurnOpened,
)

PLACEHOLDER = "[redacted]"


def sha256_of(data: bytes) -> str:
    """Return the digest that replaces a removed payload."""
    return hashlib.sha256(data).hexdigest()


def hollow(record: Record, sha256: str) -> Record | None:
    """Return the record without its payload, or None if it has no payload to remove."""
    match record:
        case InputAdmitted():
            content = content_admitted(record)
            rest = replace(record, parts=(Text(text=PLACEHOLDER),), plugin_input=None, output=None)
            return replace(rest, redacted=sha256, content=content)
        case TurnOpened() | TurnAgentChanged():
            return replace(record, composition=BlobHash(""), redacted=sha256)
        case EffectStarted(command=AwaitEvent(about=PreparedToolCall() as about) as asked):
            rest = replace(about, args={}, prepared_payload=None)  # the request itself stays on record
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
        case AttachmentStored():
            return replace(record, ref=None, redacted=sha256)
        case CancelRequested() | InputCancelled() | SessionPaused():
            return replace(record, reason="", redacted=sha256)
        case TurnEnded():
            return replace(record, message="", hint="", redacted=sha256)
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
        case AwaitEventOutcome(resolution=(Ok() | Failure()) as resolution):
            return replace(outcome, resolution=hollow_answer(resolution))
        case _:
            return None


def hollow_answer(resolution: Resolution) -> Resolution:
    """Return a resolution without its content; its kind stays."""
    match resolution:
        case Ok():
            return Ok(value=PLACEHOLDER)
        case Failure(code=code):
            return Failure(code=code, message=PLACEHOLDER)
        case _:
            return resolution


def promise_of(row: Row, rows: tuple[Row, ...]) -> PromiseId | None:
    """Return the promise that a record waits for or resolves.

    Effect ids repeat from turn to turn, so the last start before a settlement is the matching one.
    """
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
    """Remove the content of a reply.

    Calls keep their ids and names, so that results still have a call. Thinking is dropped, because its signature would
    no longer match.
    """
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
    return replace(error, message=PLACEHOLDER, hint="") if error else None


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
    """Remove the content of a step's value. The verdict of a probe stays, without its value."""
    match value:
        case {"verdict": verdict, "value": _}:
            return {"verdict": verdict, "value": PLACEHOLDER}
        case {"verdict": verdict}:
            return {"verdict": verdict}
        case _:
            return PLACEHOLDER


def caches_of(record: Record) -> tuple[BlobHash, ...]:
    """Return the cached blobs that a record names and does not need: interpreter dumps and variables.

    They may contain anything a program received.
    """
    match record:
        case EffectSettled(outcome=CheckpointOutcome(delivery=str(hash))):
            return (BlobHash(hash),)
        case EffectSettled(outcome=SyncOutcome(sync={"hash": str(hash)})):
            return (BlobHash(hash),)
        case _:
            return ()


def blobs_of(value: object) -> Iterator[BlobHash]:
    """Yield the blobs that a record or an item refers to."""
    match value:
        case AttachmentRef(hash=hash):
            yield hash
        case msgspec.Struct():
            if isinstance(value, TurnOpened | TurnAgentChanged) and value.composition:
                yield value.composition
            for name in value.__struct_fields__:
                yield from blobs_of(getattr(value, name))
        case tuple():
            for one in value:  # pyright: ignore[reportUnknownVariableType] - elements of any type
                yield from blobs_of(one)  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return
