"""Replies of kinds that few conversations have, written by hand and checked against the types of the SDKs."""

# It reads the JSON of others.
# pyright: basic
from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from google.genai.types import GenerateContentResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.providers.asked import PNG
from tests.providers.loopback import Answer, answer, events

_RESPONSES: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_ANTHROPIC: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)
PICTURE = base64.b64encode(PNG).decode()


@dataclass(frozen=True, slots=True)
class Shape:
    """A reply, the text that users see of it, and the parts that only its provider gets back (`kept`)."""

    name: str
    provider: str
    model: str
    answer: Answer
    text: str
    kept: tuple[str, ...]

    @property
    def streamed(self) -> bool:
        return self.answer.content_type == "text/event-stream"


def anthropic(*content: Any, stop: str = "end_turn", **more: Any) -> Answer:
    usage = {"input_tokens": 12, "output_tokens": 5}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "usage": usage}
    message |= {"content": [*content], "stop_reason": stop, "stop_sequence": None, **more}
    BetaMessage.model_validate(message)
    return answer(message)


def anthropic_stream(*blocks: tuple[Any, list[Any]], stop: str = "end_turn") -> Answer:
    """Blocks, each as it begins and what it grows by."""
    begun = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "content": []}
    begun |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 12, "output_tokens": 1}}
    pieces: list[Any] = [{"type": "message_start", "message": begun}]
    for index, (block, deltas) in enumerate(blocks):
        pieces.append({"type": "content_block_start", "index": index, "content_block": block})
        pieces += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        pieces.append({"type": "content_block_stop", "index": index})
    for piece in pieces:
        _ANTHROPIC.validate_python(piece)
    ended = {"stop_reason": stop, "stop_sequence": None, "container": None}
    over = [{"type": "message_delta", "delta": ended, "usage": {"output_tokens": 5}}, {"type": "message_stop"}]
    return events(*pieces, *over, named=True)


def google(*parts: Any, finish: str | None = "STOP") -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": [*parts]}, "index": 0}
    candidate |= {"finishReason": finish} if finish else {}
    usage = {"promptTokenCount": 12, "candidatesTokenCount": 5, "totalTokenCount": 17}
    piece = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m", "responseId": "r"}
    GenerateContentResponse.model_validate(piece)
    return piece


def response(*output: Any, **more: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 12,
        "output_tokens": 5,
        "total_tokens": 17,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    said = {"id": "resp_1", "created_at": 1, "model": "gpt-5.2", "object": "response", "output": [*output]}
    said |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "completed", "usage": usage}
    said |= more
    Response.model_validate(said)
    return said


def response_stream(*pieces: Any, begins: int = 0) -> Answer:
    counted = [{**piece, "sequence_number": number} for number, piece in enumerate(pieces, begins)]
    for piece in counted:
        _RESPONSES.validate_python(piece)
    return events(*counted, named=True)


def said(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def chat(message: dict[str, Any], *, finish: str = "stop", **more: Any) -> Answer:
    usage = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    reply = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    ChatCompletion.model_validate(reply)
    return answer({**reply, **more})


def chat_stream(*deltas: dict[str, Any], finish: str = "stop") -> Answer:
    ends = [*((delta, None) for delta in deltas), ({}, finish)]
    pieces = [
        {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": end}],
        }
        for delta, end in ends
    ]
    for piece in pieces:
        ChatCompletionChunk.model_validate(piece)
    return events(*pieces, done=True)


def call(arguments: str, *, at: int | None = None) -> dict[str, Any]:
    made = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return made if at is None else {"index": at, **made}


def deltas(kind: str, name: str, *texts: str) -> list[Any]:
    return [{"type": kind, name: text} for text in texts]


TEXT = {"type": "text", "text": "", "citations": None}
_SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "sun"}}
_PAGE = {"type": "web_search_result", "title": "Sun", "url": "https://s", "encrypted_content": "RU5D", "page_age": None}
_FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [_PAGE]}
_CITED = {"type": "web_search_result_location", "cited_text": "hot", "url": "https://s", "title": "Sun"}
_CITED |= {"encrypted_index": "SU5E"}
_MCP = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "ask", "server_name": "wiki", "input": {"q": "x"}}
_MCP_GAVE = {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False}
_MCP_GAVE |= {"content": [{"type": "text", "text": "so", "citations": None}]}
_HIDDEN = {"type": "redacted_thinking", "data": "UkVE"}
_DREW = {"inlineData": {"mimeType": "image/png", "data": PICTURE}, "thoughtSignature": "UElDVA=="}
_SIGNED = {"text": "", "thoughtSignature": "RU1QVFk="}
_ASKED = {"toolCall": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "args": {}}, "thoughtSignature": "Q0FMTA=="}
_GOT = {"toolResponse": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "response": {}}, "thoughtSignature": "UkVT"}
_THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "VEhJTks="}
_LOOKED = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "s"}}
_PAINTED = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PICTURE}
_RAN = {"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "code": "1", "container_id": "cntr_1"}
_RAN |= {"outputs": [{"type": "logs", "logs": "1"}]}
_SHORT = {"type": "compaction", "id": "cmp_1", "encrypted_content": "U0hPUlQ="}
_REASONED = [{"type": "reasoning.text", "text": "hm", "signature": "T1JTSUc=", "id": None, "index": 0}]
_REASONED[0] |= {"format": "anthropic-claude-v1"}

CLAUDE, GEMINI, PAINTER, GPT = "claude-sonnet-4-5", "gemini-3-pro-preview", "gemini-3-pro-image-preview", "gpt-5.2"

SHAPES = [
    Shape(
        "web search",
        "anthropic",
        CLAUDE,
        anthropic(_SEARCH, _FOUND, TEXT | {"text": "It is "}, TEXT | {"text": "hot", "citations": [_CITED]}),
        "It is hot",
        ("srvtoolu_1", "RU5D", "SU5E"),
    ),
    Shape(
        "web search, streamed",
        "anthropic",
        CLAUDE,
        anthropic_stream(
            (_SEARCH | {"input": {}}, deltas("input_json_delta", "partial_json", '{"query":', '"sun"}')),
            (_FOUND, []),
            (TEXT, [*deltas("text_delta", "text", "h", "ot"), {"type": "citations_delta", "citation": _CITED}]),
        ),
        "hot",
        ("srvtoolu_1", "RU5D", "SU5E"),
    ),
    Shape(
        "a server's tool",
        "anthropic",
        CLAUDE,
        anthropic(_HIDDEN, _MCP, _MCP_GAVE, TEXT | {"text": "so"}),
        "so",
        ("mcptoolu_1", "UkVE"),
    ),
    Shape("signed nothing", "google", GEMINI, answer(google({"text": "Hi"}, _SIGNED)), "Hi", ("RU1QVFk=",)),
    Shape(
        "signed nothing, streamed",
        "google",
        GEMINI,
        events(google({"text": "Hi"}, finish=None), google(_SIGNED)),
        "Hi",
        ("RU1QVFk=",),
    ),
    Shape("a picture", "google", PAINTER, answer(google({"text": "Here"}, _DREW)), "Here", ("UElDVA==",)),
    Shape("a picture, streamed", "google", PAINTER, events(google(_DREW)), "", ("UElDVA==",)),
    Shape(
        "search", "google", GEMINI, answer(google(_ASKED, _GOT, {"text": "Hot"})), "Hot", ("Q0FMTA==", "UkVT", '"t1"')
    ),
    Shape(
        "thoughts and search",
        "openai",
        GPT,
        answer(response(_THOUGHT, _LOOKED, said("Hot"))),
        "Hot",
        ("VEhJTks=", "ws_1", "rs_1"),
    ),
    Shape(
        "search, streamed",
        "openai",
        GPT,
        response_stream(
            {"type": "response.created", "response": response(status="in_progress", usage=None)},
            {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": _LOOKED | {"status": "in_progress"},
            },
            {"type": "response.output_item.done", "output_index": 0, "item": _LOOKED},
            {
                "type": "response.output_text.delta",
                "delta": "Hot",
                "item_id": "msg_1",
                "output_index": 1,
                "content_index": 0,
                "logprobs": [],
            },
            {"type": "response.completed", "response": response(_LOOKED, said("Hot"))},
        ),
        "Hot",
        ("ws_1", "msg_1"),
    ),
    Shape("painting", "openai", GPT, answer(response(_THOUGHT, _PAINTED)), "", ("VEhJTks=", "ig_1")),
    Shape("code", "openai", GPT, answer(response(_RAN, said("1"))), "1", ("ci_1", "cntr_1")),
    Shape("what came before, short", "openai", GPT, answer(response(_SHORT, said("ok"))), "ok", ("U0hPUlQ=",)),
    Shape(
        "thoughts of others",
        "openrouter",
        "anthropic/claude-sonnet-4.5",
        chat({"content": "ok", "reasoning": "hm", "reasoning_details": _REASONED}, provider="Anthropic"),
        "ok",
        ("T1JTSUc=",),
    ),
    Shape(
        "thoughts before a call",
        "deepseek",
        "deepseek-reasoner",
        chat({"reasoning_content": "a thought", "tool_calls": [call("{}")]}, finish="tool_calls"),
        "",
        ('"reasoning_content":"a thought"',),
    ),
]
