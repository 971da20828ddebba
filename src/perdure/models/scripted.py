"""A model that follows a script, for tests that control replies and failures.

Its position is derived from the conversation (replies since the last user message), so a new process continues where a
dead one stopped. Only faults are counted, in memory: after a crash one may strike again. A test that restarts a model
repeatedly passes a persistent counter (`struck`), as `every_boundary` does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from perdure import codec
from perdure.codec import Json
from perdure.models import conversation
from perdure.models.protocol import ModelError, ModelEvent, ModelReply, ModelRequest, ProviderCall, TextPiece
from perdure.models.wording import pieces, provider_id, reword
from perdure.vocab.messages import FinishReason, Text
from perdure.vocab.outcomes import LlmError, LlmErrorKind
from perdure.vocab.usage import Usage


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One tool call of a scripted reply; `arguments` is the text on the wire."""

    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """A step that ends in a reply."""

    text: str = ""
    asked: tuple[ScriptedCall, ...] = ()
    finish: FinishReason = "stop"
    latency_ms: int = 0
    chunks: int = 3
    usage: Usage | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """A step that ends in an error, optionally after some text. It strikes `times` times, then never."""

    error: LlmError
    after: str = ""
    times: int = 1


Step: TypeAlias = ScriptedAnswer | Fault


def say(
    text: str, *, latency_ms: int = 0, chunks: int = 3, usage: Usage | None = None, exact: bool = False
) -> ScriptedAnswer:
    """Reply with text in `chunks` deltas, reworded on every call unless `exact`."""
    return ScriptedAnswer(text=text, latency_ms=latency_ms, chunks=chunks, usage=usage, exact=exact)


def give(value: Json, *, latency_ms: int = 0) -> ScriptedAnswer:
    """Reply with a value as exact JSON, for agents with an `output=` type."""
    return ScriptedAnswer(text=codec.encode(value).decode(), latency_ms=latency_ms, exact=True)


def call(tool: str, /, **args: Json) -> ScriptedAnswer:
    """Reply with one tool call."""
    return ScriptedAnswer(asked=(ScriptedCall(tool, codec.encode(args).decode()),), finish="tool_calls")


def malformed(tool: str, raw_text: str) -> ScriptedAnswer:
    """Reply with one tool call whose arguments are exactly this text."""
    return ScriptedAnswer(asked=(ScriptedCall(tool, raw_text),), finish="tool_calls")


def calls(*steps: ScriptedAnswer, text: str = "") -> ScriptedAnswer:
    """Reply with the calls of several `call` or `malformed` steps at once, optionally after some text."""
    return ScriptedAnswer(text=text, asked=tuple(one for step in steps for one in step.asked), finish="tool_calls")


def refuse(text: str) -> ScriptedAnswer:
    """Reply with a refusal."""
    return ScriptedAnswer(text=text, finish="refusal")


def fail(status: int = 500, *, retry_after_ms: int | None = None, times: int = 1, message: str = "") -> Fault:
    """Answer with an HTTP error instead of a reply."""
    kind, retryable = _meaning(status)
    error = LlmError(
        kind=kind,
        message=message or f"the provider answered {status}",
        retryable=retryable,
        retry_after_ms=retry_after_ms,
        status=status,
    )
    return Fault(error=error, times=times)


def truncate(after: str = "", *, times: int = 1) -> Fault:
    """Stream some text, then break the stream."""
    return Fault(
        error=LlmError(kind="stream_cut", message="the stream broke before the reply ended", retryable=True),
        after=after,
        times=times,
    )


def _meaning(status: int) -> tuple[LlmErrorKind, bool]:
    known: dict[int, tuple[LlmErrorKind, bool]] = {
        401: ("auth", False),
        402: ("quota", False),
        403: ("auth", False),
        408: ("unavailable", True),
        413: ("too_large", False),
        429: ("rate_limit", True),
    }
    return known.get(status, ("unavailable", True) if status >= 500 else ("invalid", False))


class Struck(Protocol):
    """A counter of struck faults, by their position in the script."""

    def count(self, what: str) -> int:
        """Return how often this fault has struck."""
        ...

    def note(self, what: str) -> None:
        """Count one more strike of this fault."""
        ...


class _StruckHere:
    """A counter in the memory of this process."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()

    def count(self, what: str) -> int:
        return self._times[what]

    def note(self, what: str) -> None:
        self._times[what] += 1


class ScriptedModel:
    """A model that answers every user message with the steps of a script, one per reply."""

    def __init__(self, *steps: Step, name: str = "scripted") -> None:
        self._name = name
        self._scripts: dict[str, tuple[Step, ...]] = {}
        self._default: tuple[Step, ...] | None = steps
        self.struck: Struck = _StruckHere()
        self.requests: list[ModelRequest] = []

    @classmethod
    def by_input(
        cls, scripts: Mapping[str, Sequence[Step]], *, default: Sequence[Step] | None = None, name: str = "scripted"
    ) -> ScriptedModel:
        """Return a model with one script per user text, and a default for all others."""
        model = cls(name=name)
        model._scripts = {text: tuple(steps) for text, steps in scripts.items()}
        model._default = None if default is None else tuple(default)
        return model

    @property
    def name(self) -> str:
        """The name in records."""
        return self._name

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Play the step at the conversation's position."""
        self.requests.append(request)
        match self._step(request):
            case Fault() as fault:
                for piece in pieces(fault.after, 3):
                    await asyncio.sleep(0)
                    yield TextPiece(piece)
                raise ModelError(fault.error)
            case ScriptedAnswer() as answer:
                await asyncio.sleep(answer.latency_ms / 1000)
                reply = _reply(answer, request, self._name)
                for part in reply.parts:
                    for piece in pieces(part.text, answer.chunks) if isinstance(part, Text) else ():
                        yield TextPiece(piece)
                        await asyncio.sleep(0)
                yield reply

    def _step(self, request: ModelRequest) -> Step:
        texts = conversation.input_texts(request.messages)
        # Earlier unanswered inputs are in the same message, before the current one.
        said = next((text for text in ("\n".join(texts), *reversed(texts)) if text in self._scripts), None)
        script = self._default if said is None else self._scripts[said]
        if script is None:
            raise _off_script(f"no script for the input {conversation.input_text(request.messages)!r}")
        place = conversation.replies(conversation.since_input(request.messages))
        answered = 0
        for index, step in enumerate(script):
            if isinstance(step, Fault):
                if answered == place and self._strikes(step, (said, index)):
                    return step
            elif answered == place:
                return step
            else:
                answered += 1
        raise _off_script(f"the script has {answered} replies, and reply {place + 1} was requested")

    def _strikes(self, fault: Fault, where: tuple[str | None, int]) -> bool:
        said, index = where
        place = f"step {index}" if said is None else f"step {index} of {said}"
        if self.struck.count(place) >= fault.times:
            return False
        self.struck.note(place)
        return True


def _reply(answer: ScriptedAnswer, request: ModelRequest, name: str) -> ModelReply:
    parts: list[Text | ProviderCall] = []
    if answer.text:
        parts.append(Text(text=answer.text if answer.exact else reword(answer.text)))
    for one in answer.asked:
        parts.append(ProviderCall(provider_id=provider_id(), name=one.tool, arguments=one.arguments))
    reply = ModelReply(parts=tuple(parts), finish=answer.finish, usage=Usage(), model=name)
    return replace(reply, usage=answer.usage or conversation.count_tokens(request, reply))


def _off_script(message: str) -> ModelError:
    return ModelError(LlmError(kind="invalid", message=message))
