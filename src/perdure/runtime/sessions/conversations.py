"""A conversation of another library, with its calls and their results, as the past of a session.

Law: every call has a result, even a call that was never answered. No imported call runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from perdure.codec import brief, digest, encode
from perdure.commit.changes import NewStream
from perdure.commit.plan import Entry
from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId, InputId, Seq, StreamId, TurnId
from perdure.models.providers.history import Imported
from perdure.turn.machine import settlement
from perdure.vocab.blobs import blob_of
from perdure.vocab.messages import File, ImagePart, Message, Reply, ReplyPart, Text, ToolCall, ToolResultPart
from perdure.vocab.outcomes import Failed, FailureDetail, LlmCallOutcome, NotRun, Success, ToolOutput
from perdure.vocab.records import EffectSettled, InputAdmitted, Limits, Record, SessionOpened, TurnEnded, TurnOpened
from perdure.vocab.refs import EffectRef, call_id
from perdure.vocab.tools import Composition

NO_LIMITS = Limits(max_iterations=1_000_000, no_progress=1_000_000)
UNANSWERED = "this call had no result in the imported conversation"


def conversation(stream: StreamId, given: Imported, *, agent: str, model: str, now: int) -> NewStream:
    """Return a session that begins with a conversation.

    Raises:
        Error: `export_invalid` unless the first message is a user's.
    """
    composition = blob_of(encode(Composition(agent=agent, model=model)), "application/json")
    records: list[Record] = [SessionOpened(agent=agent)]
    for index, messages in enumerate(_turns(given.messages)):
        turn, first = TurnId(f"imported-{index + 1}"), Seq(len(records) + 1)
        asked, *answered = messages
        parts = tuple(part for part in asked.parts if isinstance(part, Text | ImagePart | File))
        records.append(InputAdmitted(input=InputId(turn), turn=turn, parts=parts))
        opened = TurnOpened(turn=turn, index=index, composition=composition.hash, view_seq=first, limits=NO_LIMITS)
        records += (opened, *_Answered(turn, model).records(answered))
    blobs = {blob.hash: blob for blob in (composition, *given.blobs)}
    return NewStream(stream, agent, tuple(Entry.of(one, at=now) for one in records), now, tuple(blobs.values()))


def _turns(messages: Sequence[Message]) -> list[list[Message]]:
    turns: list[list[Message]] = []
    for message in messages:
        if message.role == "user":
            turns.append([])
        elif not turns:
            because = "a conversation begins with a user message"
            raise Error(
                Code.EXPORT_INVALID, "the conversation cannot be imported; nothing was written", because=because
            )
        turns[-1].append(message)
    if not turns:
        raise Error(Code.EXPORT_INVALID, "the conversation has no messages; nothing was written")
    return turns


@dataclass(slots=True)
class _Answered:
    """The replies and results of one imported turn, as records."""

    turn: TurnId
    model: str
    iteration: int = 0
    open: dict[CallId, tuple[EffectRef, ToolCall]] = field(default_factory=dict[CallId, tuple[EffectRef, ToolCall]])

    def records(self, messages: Sequence[Message]) -> Iterator[Record]:
        for message in messages:
            if message.role == "assistant":
                yield from self._given_up()
                yield self._reply(message)
            else:
                for result in message.parts:
                    if isinstance(result, ToolResultPart) and result.call in self.open:
                        ref, call = self.open.pop(result.call)
                        yield self._settled(ref, call, _output(result))
        yield from self._given_up()
        last = messages[-1] if messages else None
        if last is not None and last.role == "assistant" and not any(isinstance(one, ToolCall) for one in last.parts):
            yield TurnEnded(turn=self.turn, status="finished")
        else:
            message = "the imported conversation has no answer to this"
            yield TurnEnded(turn=self.turn, status="stopped", reason="imported", message=message)

    def _reply(self, message: Message) -> Record:
        self.iteration += 1
        parts: list[ReplyPart] = []
        calls = 0
        for part in message.parts:
            if isinstance(part, ToolCall):
                own = replace(part, id=call_id(self.turn, self.iteration, calls))
                self.open[part.id] = EffectRef(self.iteration, calls, 1), own
                calls += 1
                parts.append(own)
            elif not isinstance(part, ToolResultPart):
                parts.append(part)
        reply = Reply(parts=tuple(parts), finish="tool_calls" if calls else "stop", model=self.model)
        print_of = brief(digest(("imported", self.turn, self.iteration)))
        return EffectSettled(
            id=EffectId(f"m{self.iteration}.1"), outcome=LlmCallOutcome(reply=reply), fingerprint=print_of
        )

    def _settled(self, ref: EffectRef, call: ToolCall, output: ToolOutput) -> Record:
        return replace(settlement(ref, call, output), fingerprint=brief(digest(("imported", call.id))))

    def _given_up(self) -> Iterator[Record]:
        for ref, call in self.open.values():
            yield self._settled(ref, call, NotRun(reason=UNANSWERED))
        self.open.clear()


def _output(result: ToolResultPart) -> ToolOutput:
    if not result.is_error:
        return Success(value=result.output)
    message = result.output if isinstance(result.output, str) else encode(result.output).decode()
    return Failed(failure=FailureDetail(code="tool_error", message=message))
