"""The model view: a total function of the log.

Law: the view is valid for a provider after any interruption. It begins with a user message. Every tool call is followed
at once by exactly one result, in the order of the calls, with the images of that result. No message is empty, and no
two user messages or two replies are adjacent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from perdure.codec import Json, encode, head_of
from perdure.vocab.approvals import approved, did_not_happen, happened, refused
from perdure.vocab.messages import ImagePart, Message, Opaque, Part, Reply, Text, Thinking, ToolCall, ToolResultPart
from perdure.vocab.notifications import notification
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    CompletedToolCall,
    Done,
    DurableStepOutcome,
    Failed,
    InDoubt,
    LlmCallOutcome,
    NotRun,
    Success,
    ToolCallOutcome,
    ToolOutput,
    completed,
)
from perdure.vocab.records import (
    EffectSettled,
    EffectStarted,
    InputAdmitted,
    OutcomeArrivedLate,
    Record,
    TurnEnded,
    TurnOpened,
)
from perdure.vocab.refs import PART, EffectRef

UNCERTAIN = "interrupted: the call was dispatched and its result is uncertain; do not retry it automatically"
NOT_EXECUTED = "interrupted: the tool was not executed before recovery; it is safe to retry"
MAX_MESSAGE_BYTES = 30_720  # two fit under the 64 KiB limit of a result
_MOST_BYTES = 6  # at most, of one character in JSON
EDITED = "A person changed the arguments of this call before they approved it. It ran with these arguments"
EDITED_AND_NOT_RUN = "A person changed the arguments of this call to these before they approved it. It did not run"
OUTCOME_UNKNOWN = "outcome unknown: the call was dispatched, it may or may not have taken effect, and it was not re-run"


_EFFECTS = (EffectStarted, EffectSettled)

LATE = "The outcome of a call was unknown and is now known."
CORRECTION = "[Your answer does not have the form it must have:"


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn as messages, and the notes with which the next turn must begin."""

    messages: tuple[Message, ...]
    carried: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The approximate size of these messages."""
        return sum(len(encode(message)) for message in self.messages)


@dataclass(slots=True)
class _CallView:
    """One call: its last dispatched attempt (0 if none), and the output."""

    call: ToolCall
    dispatched: int = 0
    output: ToolOutput | None = None
    edited: dict[str, Json] | None = None


@dataclass(slots=True)
class _Round:
    """One reply, its calls, and the inputs before the next model call."""

    reply: Reply
    calls: list[_CallView] = field(default_factory=list[_CallView])
    problem: str = ""
    steered: list[Part] = field(default_factory=list[Part])


@dataclass(slots=True)
class _ViewFold:
    said: list[Part] = field(default_factory=list[Part])
    notes: list[str] = field(default_factory=list[str])
    carried: list[str] = field(default_factory=list[str])
    rounds: list[_Round] = field(default_factory=list[_Round])
    opened: bool = False


def turn_view(records: Iterable[Record]) -> TurnView:
    """Return the messages of one turn, from any prefix of its records."""
    reading = _ViewFold()
    for record in records:
        if not (isinstance(record, _EFFECTS) and PART in record.id):  # parts of bodies are not shown
            _read(reading, record)
    user: tuple[Part, ...] = (*(Text(text=note) for note in reading.notes), *reading.said)
    messages = [Message(role="user", parts=user)] if user else []
    for turn_round in reading.rounds:
        messages.extend(_round_messages(turn_round))
    return TurnView(tuple(messages), tuple(reading.carried))


class Conversation:
    """Turns in order as one conversation, built incrementally."""

    def __init__(self, views: Iterable[TurnView] = ()) -> None:
        self._messages: list[Message] = []
        self._carried: tuple[str, ...] = ()
        for view in views:
            self.add(view)

    def add(self, view: TurnView) -> None:
        """Add the next turn."""
        self._messages, self._carried = _joined(self._messages, self._carried, view)

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages."""
        return tuple(self._messages)

    def with_turn(self, view: TurnView) -> tuple[Message, ...]:
        """Return the conversation with this turn appended, without changing it."""
        messages, _ = _joined([*self._messages], self._carried, view)
        return tuple(messages)


def joined(views: Iterable[TurnView]) -> tuple[Message, ...]:
    """Join turns in order into one conversation."""
    return Conversation(views).messages


def _joined(messages: list[Message], carried: tuple[str, ...], view: TurnView) -> tuple[list[Message], tuple[str, ...]]:
    turn = view.messages
    if carried and turn:
        turn = (_noted(turn[0], carried), *turn[1:])
        carried = ()
    for message in turn:
        if messages or message.role == "user":
            _append(messages, message)
    return messages, (*carried, *view.carried)


def _noted(first: Message, notes: tuple[str, ...]) -> Message:
    return Message(role=first.role, parts=(*(Text(text=note) for note in notes), *first.parts))


def _append(messages: list[Message], message: Message) -> None:
    if messages and messages[-1].role == message.role:
        messages[-1] = Message(role=message.role, parts=(*messages[-1].parts, *message.parts))
    else:
        messages.append(message)


def _read(reading: _ViewFold, record: Record) -> None:
    match record:
        case InputAdmitted(parts=parts):
            (reading.rounds[-1].steered if reading.rounds else reading.said).extend(parts)
        case TurnOpened():
            reading.opened = True
        case OutcomeArrivedLate():
            _read_late(reading, record)
        case TurnEnded() if reading.rounds:
            reading.rounds[-1].problem = ""  # no further model call follows
        case EffectStarted(id=effect) | EffectSettled(id=effect):
            _read_effect(reading, EffectRef.parse(effect), record)
        case _:
            pass


def _read_effect(reading: _ViewFold, ref: EffectRef, record: EffectStarted | EffectSettled) -> None:
    if ref.index is None:
        match record:
            case EffectSettled(outcome=LlmCallOutcome(reply=Reply() as reply, output=output, problem=problem)):
                calls = [_CallView(call) for call in reply.calls]
                reading.rounds.append(_Round(reply, calls, problem if output == "invalid" else ""))
            case _:
                pass
        return
    call = _find(reading, ref)
    if call is None:
        return
    match record:
        case EffectStarted() if not ref.tail:
            call.output, call.dispatched = None, ref.attempt
        case EffectSettled(outcome=ToolCallOutcome(launch=Done(result=CompletedToolCall(output=output)))):
            call.output = output
        case EffectSettled(outcome=AwaitEventOutcome(resolution=resolution)) if ref.tail == "completion":
            call.output = completed(resolution)
        case EffectSettled(outcome=AwaitEventOutcome(resolution=resolution)) if ref.tail == "approval":
            decision = approved(resolution)
            call.edited = decision.args if decision else None
            call.output = None if decision else refused(resolution)
        case EffectSettled(outcome=AwaitEventOutcome(resolution=resolution)) if ref.tail == "doubt":
            if did_not_happen(resolution):
                call.output, call.dispatched = None, 0
            else:
                call.output = happened(resolution) or call.output
        case EffectSettled(outcome=DurableStepOutcome(value=verdict)) if ref.tail == "probe":
            _read_verdict(call, verdict)
        case _:
            pass


def _read_verdict(call: _CallView, verdict: Json) -> None:
    match verdict:
        case {"verdict": "happened", **rest}:
            call.output = Success(value=rest.get("value"))
        case {"verdict": "did_not_happen"}:
            call.output, call.dispatched = None, 0
        case _:
            pass


def _find(reading: _ViewFold, ref: EffectRef) -> _CallView | None:
    if not reading.rounds or ref.index is None:
        return None
    calls = reading.rounds[-1].calls
    return calls[ref.index] if ref.index < len(calls) else None


def _read_late(reading: _ViewFold, late: OutcomeArrivedLate) -> None:
    current = reading.rounds[-1].calls if reading.rounds else []
    call = next((c for c in current if c.call.id == late.call), None)
    same_attempt = call is not None and call.dispatched == EffectRef.parse(late.id).attempt
    if call and same_attempt and (call.output is None or isinstance(call.output, InDoubt)):
        call.output = late.output
        return
    told = _short(encode(message_for_model(late.output)[0]).decode())
    note = notification(LATE, {"call": late.call, "tool": late.tool, "outcome": told}, text="outcome")
    (reading.carried if reading.opened else reading.notes).append(note)


def _round_messages(turn_round: _Round) -> list[Message]:
    parts: tuple[Part, ...] = tuple(p for p in turn_round.reply.parts if not _is_blank(p))
    asked_again = [_correction(turn_round.problem)] if turn_round.problem else []
    if turn_round.steered:
        asked_again.append(Message(role="user", parts=tuple(turn_round.steered)))
    if not any(not isinstance(part, Thinking | Opaque) for part in parts):
        return asked_again
    messages = [Message(role="assistant", parts=parts)]
    if turn_round.calls:
        messages.append(
            Message(role="tool", parts=tuple(part for call in turn_round.calls for part in _result_parts(call)))
        )
    return [*messages, *asked_again]


def _correction(problem: str) -> Message:
    text = f"{CORRECTION} {problem}. Answer again: JSON of that form, and nothing else.]"
    return Message(role="user", parts=(Text(text=text),))


def _is_blank(part: Part) -> bool:
    """Return True for a text without a visible character and state.

    Models write such texts, and providers refuse them.
    """
    return isinstance(part, Text) and not part.text.strip() and part.state is None


def _result_parts(view: _CallView) -> Iterator[Part]:
    """Yield the result of a call, then its images."""
    yield _result(view)
    if isinstance(view.output, Success):
        yield from (ImagePart(ref=ref) for ref in view.output.images)


def _result(view: _CallView) -> ToolResultPart:
    output, is_error = message_for_model(view.output) if view.output else _repair(view.dispatched > 0)
    if view.edited is not None:
        output = {"note": EDITED if view.dispatched else EDITED_AND_NOT_RUN, "arguments": view.edited, "result": output}
    call = view.call
    return ToolResultPart(call=call.id, name=call.name, output=output, is_error=is_error, provider_id=call.provider_id)


def _repair(dispatched: bool) -> tuple[Json, bool]:
    return {"error": UNCERTAIN if dispatched else NOT_EXECUTED, "code": "interrupted"}, True


def message_for_model(output: ToolOutput) -> tuple[Json, bool]:
    """Return an output as the model receives it, and whether it is an error."""
    match output:
        case Success(value=value):
            return value, False
        case Failed(failure=failure):
            return {"error": _short(failure.message), "code": _short(failure.code)}, True
        case InDoubt(reason=reason, message=message):
            detail = f" ({_short(message)})" if message else ""
            return {"error": f"{OUTCOME_UNKNOWN}{detail}", "code": "outcome_unknown", "reason": reason}, True
        case NotRun(reason=reason):
            return {
                "error": f"cancelled: the call was not run{f' ({_short(reason)})' if reason else ''}",
                "code": "cancelled",
            }, True


def _short(text: str) -> str:
    """Cut an error text to the size limit of a result."""
    if len(text) * _MOST_BYTES <= MAX_MESSAGE_BYTES:
        return text
    head = head_of(text, MAX_MESSAGE_BYTES)
    return text if len(head) == len(text) else f"{head}…"
