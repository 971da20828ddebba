"""Convert a Pydantic AI response to a `Reply`: parts, finish reason, usage."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from perdure.codec import Json
from perdure.models.protocol import AnswerPart, MadeFile, ModelError, ModelReply, ProviderCall
from perdure.vocab.messages import Citation, FinishReason, Opaque, Text, Thinking
from perdure.vocab.outcomes import LlmError
from perdure.vocab.usage import NANO, Usage

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_ai import messages as m
    from pydantic_ai.usage import RequestUsage

_FINISH: dict[str | None, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
}
_LATER: dict[str, FinishReason] = {"IMAGE_RECITATION": "content_filter"}
_BROKEN = frozenset({"MALFORMED_RESPONSE", "MISSING_THOUGHT_SIGNATURE", "TOO_MANY_TOOL_CALLS", "IMAGE_OTHER"})
"""Finish reasons that the library does not map yet."""
MOST_TOKENS = 1 << 40
"""Upper bound of a token count; larger reports are invalid."""
RESPONSE = "response"
"""The kind of an `Opaque` that belongs to a whole reply."""
COMMENTARY = "commentary"
"""The phase of an OpenAI message that is no part of the answer."""
_WANTED_BACK = ("container_id", "input_transformations")
"""Details that the library looks up in earlier replies: the code container, and dropped thoughts."""


def reply_of(response: m.ModelResponse, *, name: str, model: str, route: str) -> ModelReply:
    """Convert a complete response.

    The response must state its end: a closed stream or an empty page may come from a proxy.

    Raises:
        ModelError: if the response ended early or in an error.
    """
    details = response.provider_details or {}
    reason = details.get("finish_reason")
    said = response.finish_reason or reason
    if response.state != "complete" or said is None:
        message = "the answer ended before the reply did"
        raise ModelError(LlmError(kind="stream_cut", message=message, retryable=True), reported_usage(response, model))
    if response.finish_reason == "error" or reason in _BROKEN or (reason == "OTHER" and not response.parts):
        message = f"the provider ended the reply with an error{f' ({reason})' if reason else ''}"
        raise ModelError(LlmError(kind="unavailable", message=message, retryable=True), reported_usage(response, model))
    refusal = details.get("refusal")
    parts = [part for one in response.parts for part in answer_parts(one, route)]
    if kept := {name: details[name] for name in _WANTED_BACK if details.get(name)}:
        parts.append(Opaque(kind=RESPONSE, state=_plain(kept), route=route))
    if isinstance(refusal, str) and refusal and not any(isinstance(part, Text) and part.text for part in parts):
        parts.append(Text(text=refusal))
    finish = _FINISH.get(response.finish_reason) or _LATER.get(str(reason), "stop")
    finish = "refusal" if refusal else finish
    return ModelReply(parts=tuple(parts), finish=finish, usage=usage_of(response, model), model=name)


def answer_parts(part: m.ModelResponsePart, route: str) -> Iterable[AnswerPart]:
    """Convert one part. An empty text is dropped, unless its provider needs state back with it."""
    from pydantic_ai import messages as m

    match part:
        case m.TextPart():
            state = _state(part)
            if part.content or part.provider_details:
                citations = tuple(_citations(part.citations or ()))
                aside = (part.provider_details or {}).get("phase") == COMMENTARY
                kept = route if state else ""
                yield Text(text=part.content, citations=citations, state=state, route=kept, aside=aside)
        case m.ThinkingPart():
            yield Thinking(text=part.content, signature=part.signature or "", route=route, state=_state(part))
        case m.ToolCallPart():
            id, name = _word(part.tool_call_id), _word(part.tool_name)
            yield ProviderCall(id, name, _arguments(part), state=_state(part), route=route)
        case m.FilePart():
            state = _state(part)
            yield MadeFile(part.content.data, part.content.media_type, state, route if state else "")
        case _:
            yield Opaque(kind=part.part_kind, state=_dumped(part), route=route)


def _word(said: object) -> str:
    """Return a name or an id as text. Some servers send numbers as ids, and no SDK validates them."""
    return said if isinstance(said, str) else "" if said is None else str(said)


def _arguments(part: m.ToolCallPart) -> str:
    """Return the arguments as the model wrote them. The library would turn invalid JSON into an object."""
    return part.args or "" if isinstance(part.args, str | None) else part.args_as_json_str()


def _state(part: m.TextPart | m.ThinkingPart | m.ToolCallPart | m.FilePart) -> Json:
    """Return the provider state of a part."""
    kept: dict[str, Any] = {}
    if part.id is not None:
        kept["id"] = part.id
    if part.provider_details:
        kept["details"] = _plain(part.provider_details)
    return kept or None


def _plain(value: object) -> Json:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)


def _citations(given: Sequence[m.Citation]) -> Iterable[Citation]:
    from pydantic_ai import messages as m

    for one in given:
        anchor = one.anchor
        place = (anchor.start, anchor.end) if anchor else (None, None)
        marker = isinstance(anchor, m.MarkerCitationAnchor)
        for source in one.sources:
            yield Citation(
                url=source.url if isinstance(source, m.WebCitationSource) else "",
                document=(source.document_id or "") if isinstance(source, m.DocumentCitationSource) else "",
                title=source.title or "",
                excerpts=tuple(source.excerpts),
                start=place[0],
                end=place[1],
                marker=marker,
            )


def _dumped(part: m.ModelResponsePart) -> Json:
    return opaque_parts().dump_python(part, mode="json")


@cache
def opaque_parts() -> TypeAdapter[m.ModelResponsePart]:
    """Return the codec of the library's parts. Its construction takes about 50 ms."""
    from pydantic import TypeAdapter
    from pydantic_ai.messages import ModelResponsePart

    return TypeAdapter(ModelResponsePart)


def usage_of(response: m.ModelResponse, model: str) -> Usage:
    """Return the usage of a response, complete or not.

    The price is that of the answering model, else of the requested one; unknown if the library has neither.
    """
    usage = buckets_of(response.usage)
    for name in (response.model_name, model):
        try:
            price = dataclasses.replace(response, model_name=name).cost().total_price
        except (LookupError, ValueError, AssertionError):
            continue
        return replace(usage, cost_nano=round(price * NANO), priced=1)
    return usage


def reported_usage(response: m.ModelResponse, model: str) -> Usage:
    """Return the usage reported for an unfinished response, or zero usage."""
    return usage_of(response, model) if response.usage.has_values() else Usage()


def priced(usage: Usage, model: str, provider: str) -> int | None:
    """Return the price of estimated tokens in billionths of a US dollar, or None if the library does not know it."""
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    tokens = RequestUsage(
        input_tokens=usage.input + usage.cache_read + usage.cache_write,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
        output_tokens=usage.output + usage.reasoning,
    )
    known = usage_of(ModelResponse(parts=[], usage=tokens, model_name=model, provider_name=provider), model)
    return known.cost_nano if known.priced else None


def buckets_of(usage: RequestUsage) -> Usage:
    """Convert the library's nested token counts to buckets that do not overlap."""
    read, wrote = _count(usage.cache_read_tokens), _count(usage.cache_write_tokens)
    output = _count(usage.output_tokens)
    reasoning = min(_count(usage.output_reasoning_tokens), output)
    return Usage(
        input=max(0, _count(usage.input_tokens) - read - wrote),
        output=output - reasoning,
        cache_read=read,
        cache_write=wrote,
        reasoning=reasoning,
        calls=1,
    )


def _count(tokens: float) -> int:
    """Return a server's token count as an integer within bounds."""
    return max(0, min(ceil(tokens), MOST_TOKENS))
