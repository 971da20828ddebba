"""Provider responses, written by hand and checked against the types of their SDKs."""

# It reads the JSON of others.
# pyright: basic
from __future__ import annotations

from dataclasses import replace
from typing import Any

from anthropic.types.beta import BetaRawMessageStreamEvent
from google.genai.types import GenerateContentResponse
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests.providers.loopback import Answer, events

WIRES = {
    "openai": "gpt-5.2",
    "openai-chat": "gpt-4o",
    "openai-compatible": "llama3.2",
    "anthropic": "claude-haiku-4-5",
    "google": "gemini-2.5-flash",
}

_RESPONSES: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_ANTHROPIC: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)


def base_of(provider: str, url: str) -> str:
    """Where a provider's address ends and the SDK goes on."""
    return url if provider in ("anthropic", "google") else f"{url}/v1"


def speech(provider: str, *texts: str) -> list[dict[str, Any]]:
    """A reply in pieces: what begins it and the texts, without what ends it."""
    match provider:
        case "openai":
            return [_created(), *_responses_begin(), *(_responses_delta(text, n) for n, text in enumerate(texts, 4))]
        case "anthropic":
            return [_message_start(), _block_start(), *map(_anthropic_delta, texts)]
        case "google":
            return [_google(text) for text in texts]
        case _:
            return [_chat({"role": "assistant", "content": text}) for text in texts]


def ending(provider: str, text: str) -> list[dict[str, Any]]:
    """Return the events that end a reply of this text: 12 tokens in, 5 out."""
    match provider:
        case "openai":
            response = _response("completed", [_message(text)], {"input_tokens": 12, "output_tokens": 5})
            return [_checked(_RESPONSES, {"type": "response.completed", "response": response, "sequence_number": 99})]
        case "anthropic":
            delta = {"stop_reason": "end_turn", "stop_sequence": None, "container": None}
            usage = {"output_tokens": 5, "input_tokens": 12}
            return [
                _checked(_ANTHROPIC, {"type": "content_block_stop", "index": 0}),
                {"type": "message_delta", "delta": delta, "usage": usage},
                _checked(_ANTHROPIC, {"type": "message_stop"}),
            ]
        case "google":
            return [_google("", finish="STOP")]
        case _:
            usage = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
            return [_chat({}, finish="stop"), _chat(None, usage=usage)]


def stream(provider: str, *data: dict[str, Any], cut: bool = False, hold: bool = False) -> Answer:
    """Pieces as this provider streams them."""
    whole = not (cut or hold)
    named, done = provider in ("openai", "anthropic"), provider.startswith("openai-") and whole
    return events(*data, named=named, done=done, cut=cut, hold=hold)


def pinging(provider: str, *data: dict[str, Any]) -> Answer:
    """These pieces, and then everything that a provider sends which is not its model's: for ever."""
    match provider:
        case "anthropic":
            pings = [{"type": "ping"}, _anthropic_delta("")]  # the SDK has no type for the first
        case "openai":
            running = {"type": "response.in_progress", "response": _response("in_progress", []), "sequence_number": 50}
            pings = [_checked(_RESPONSES, running), _responses_delta("", 51)]
        case "google":
            pings = [_google("")]
        case _:
            pings = [_chat({}), _chat({"content": ""})]
    given = stream(provider, *data, hold=True)
    return replace(given, pings=b": keep-alive\n\n" + stream(provider, *pings, hold=True).body)


def calling(provider: str, name: str, *arguments: str) -> list[dict[str, Any]]:
    """The beginning of a reply that is one call, whose arguments come in these pieces."""
    match provider:
        case "openai":
            item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": name, "arguments": ""}
            where = {"output_index": 0, "item_id": "fc_1"}
            return [
                _created(),
                {"type": "response.output_item.added", "item": item, "output_index": 0, "sequence_number": 1},
                *(
                    _checked(
                        _RESPONSES,
                        {
                            "type": "response.function_call_arguments.delta",
                            "delta": text,
                            "sequence_number": number,
                            **where,
                        },
                    )
                    for number, text in enumerate(arguments, 2)
                ),
            ]
        case "anthropic":
            block = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}
            pieces = [{"type": "input_json_delta", "partial_json": text} for text in arguments]
            return [
                _message_start(),
                _checked(_ANTHROPIC, {"type": "content_block_start", "index": 0, "content_block": block}),
                *(_checked(_ANTHROPIC, {"type": "content_block_delta", "index": 0, "delta": one}) for one in pieces),
            ]
        case _:
            first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": ""}}
            more = [{"index": 0, "function": {"arguments": text}} for text in arguments]
            return [_chat({"role": "assistant", "tool_calls": [one]}) for one in (first, *more)]


def reply(provider: str, *texts: str) -> Answer:
    """A whole reply, streamed."""
    return stream(provider, *speech(provider, *texts), *ending(provider, "".join(texts)))


def error(provider: str, message: str, *, code: str, status: int) -> dict[str, Any]:
    """The body of an error."""
    match provider:
        case "anthropic":
            return {"type": "error", "error": {"type": code, "message": message}, "request_id": "r"}
        case "google":
            return {"error": {"code": status, "message": message, "status": code}}
        case _:
            return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def _checked(adapter: TypeAdapter[Any], value: dict[str, Any]) -> dict[str, Any]:
    adapter.validate_python(value)
    return value


def _chat(delta: dict[str, Any] | None, *, finish: str | None = None, usage: Any = None) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    piece = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    piece |= {"usage": usage} if usage else {}
    ChatCompletionChunk.model_validate(piece)
    return piece


def _response(status: str, output: list[Any], usage: dict[str, int] | None = None) -> dict[str, Any]:
    counted = usage and {
        **usage,
        "total_tokens": sum(usage.values()),
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {
        "id": "resp_1",
        "created_at": 1,
        "model": "gpt-5.2",
        "object": "response",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": status,
        "usage": counted,
    }


def job(status: str, text: str = "") -> dict[str, Any]:
    """Return the state of a background response of OpenAI: 12 tokens in, 5 out once it is done."""
    done = status == "completed"
    usage = {"input_tokens": 12, "output_tokens": 5} if done else None
    response = _response(status, [_message(text)] if done else [], usage) | {"background": True}
    OpenAIResponse.model_validate(response)
    return response


def job_begun(*, cut: bool = False) -> Answer:
    """The beginning of the stream of a job, which then stands still or breaks."""
    created = {"type": "response.created", "response": job("queued"), "sequence_number": 0}
    return stream("openai", _checked(_RESPONSES, created), cut=cut, hold=not cut)


def _message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def _created() -> dict[str, Any]:
    created = {"type": "response.created", "response": _response("in_progress", []), "sequence_number": 0}
    return _checked(_RESPONSES, created)


def _responses_begin() -> list[dict[str, Any]]:
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    where = {"output_index": 0, "content_index": 0, "item_id": "msg_1"}
    return [
        _checked(
            _RESPONSES, {"type": "response.output_item.added", "item": item, "output_index": 0, "sequence_number": 1}
        ),
        _checked(_RESPONSES, {"type": "response.content_part.added", "part": part, "sequence_number": 2, **where}),
    ]


def _responses_delta(text: str, number: int) -> dict[str, Any]:
    where = {"output_index": 0, "content_index": 0, "item_id": "msg_1", "logprobs": []}
    delta = {"type": "response.output_text.delta", "delta": text, "sequence_number": number, **where}
    return _checked(_RESPONSES, delta)


def _message_start() -> dict[str, Any]:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-haiku-4-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 12, "output_tokens": 1},
    }
    return _checked(_ANTHROPIC, {"type": "message_start", "message": message})


def _block_start() -> dict[str, Any]:
    block = {"type": "text", "text": "", "citations": None}
    return _checked(_ANTHROPIC, {"type": "content_block_start", "index": 0, "content_block": block})


def _anthropic_delta(text: str) -> dict[str, Any]:
    delta = {"type": "text_delta", "text": text}
    return _checked(_ANTHROPIC, {"type": "content_block_delta", "index": 0, "delta": delta})


def _google(text: str, *, finish: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
    usage = {"promptTokenCount": 12, "candidatesTokenCount": 5, "totalTokenCount": 17}
    candidate |= {"finishReason": finish} if finish else {}
    piece = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m", "responseId": "r"}
    GenerateContentResponse.model_validate(piece)
    return piece
