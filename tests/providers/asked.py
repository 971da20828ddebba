"""A recorded request as a question of ours: the same conversation, with our own replies where the model had spoken."""

# It reads the JSON of others.
# pyright: basic
from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from perdure.ids import CallId
from perdure.models.protocol import ModelRequest
from perdure.vocab.blobs import blob_of
from perdure.vocab.messages import AttachmentRef, ImagePart, Message, Part, Reply, Text, ToolCall, ToolResultPart
from perdure.vocab.tools import ToolDefinition
from tests.providers.cassettes import Interaction

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0000003010100c9fe92ef"
    "0000000049454e44ae426082"
)
BLOB = blob_of(PNG, "image/png")
PICTURE = ImagePart(ref=AttachmentRef(hash=BLOB.hash, media_type="image/png", size=len(PNG)))


@dataclass(slots=True)
class Turn:
    """One message of one side."""

    who: str
    text: list[str] = field(default_factory=list[str])
    pictures: int = 0
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    results: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


def request_of(interaction: Interaction, replies: list[Reply], *, streamed: bool) -> ModelRequest:
    body = interaction.request
    turns = list(_joined(_READERS[interaction.wire](body)))
    settings: dict[str, Any] = {"stream": streamed}
    if body.get("background"):
        settings["openai_background"] = True
    if isinstance(body.get("thinking"), dict):
        settings["anthropic_thinking"] = body["thinking"]
    for name in ("temperature", "max_tokens"):
        if name in body:
            settings[name] = body[name]
    if limit := (body.get("inferenceConfig") or {}).get("maxTokens"):
        settings["max_tokens"] = limit
    return ModelRequest(
        model=interaction.model,
        instructions=_instructions(body),
        messages=tuple(_messages(turns, replies)),
        tools=tuple(_tools(body)),
        settings=settings,
        output_spec=_form(body),
        attachments={BLOB.hash: PNG},
    )


def _form(body: Any) -> Any:
    """The form that the answer had to have, wherever the provider is told of it."""
    said = body.get("response_format") or (body.get("text") or {}).get("format") or body.get("output_format")
    said = said or (body.get("output_config") or {}).get("format") or body.get("generationConfig") or {}
    inner = said.get("json_schema") or said
    schema = inner.get("schema") or inner.get("responseJsonSchema") or inner.get("responseSchema")
    return {"name": inner.get("name") or "answer", "schema": schema} if isinstance(schema, dict) else None


def _messages(turns: list[Turn], replies: list[Reply]) -> Iterator[Message]:
    calls: dict[str, ToolCall] = {}
    unused = list(replies)
    for place, turn in enumerate(turns):
        if turn.who == "assistant":
            reply = _own(turn, unused) or _rebuilt(turn, place)
            unused = [one for one in unused if one is not reply]
            made = [part for part in reply.parts if isinstance(part, ToolCall)]
            calls = {id: call for (id, _), call in zip(turn.calls, made, strict=True)}
            kept = (part for part in reply.parts if not isinstance(part, Text) or part.text or part.state)
            yield Message(role="assistant", parts=tuple(kept))
            continue
        if turn.results:
            yield Message(role="tool", parts=tuple(_answered(turn, calls)))
        said: list[Part] = [Text(text=text) for text in turn.text if text]
        if said or turn.pictures:
            yield Message(role="user", parts=(*said, *[PICTURE] * turn.pictures))


def _answered(turn: Turn, calls: dict[str, ToolCall]) -> Iterator[ToolResultPart]:
    given = dict(turn.results)
    in_order = [output for _, output in turn.results]
    for place, (id, call) in enumerate(calls.items()):
        output = given.get(id, in_order[place] if place < len(in_order) else "nothing")
        yield ToolResultPart(call=call.id, name=call.name, output=output, provider_id=call.provider_id)


def _own(turn: Turn, replies: list[Reply]) -> Reply | None:
    names = [name for _, name in turn.calls]
    for reply in replies:
        if [call.name for call in reply.calls] == names and (names or reply.text == "".join(turn.text)):
            return reply
    return None


def _rebuilt(turn: Turn, place: int) -> Reply:
    calls = [
        ToolCall(id=CallId(f"t.{place}.{n}"), name=name, args={}, provider_id=id)
        for n, (id, name) in enumerate(turn.calls)
    ]
    return Reply(parts=(*(Text(text=text) for text in turn.text), *calls))


def _joined(turns: Iterable[Turn]) -> Iterator[Turn]:
    last: Turn | None = None
    for turn in turns:
        if last is None or last.who != turn.who:
            if last is not None:
                yield last
            last = turn
            continue
        last.text += turn.text
        last.pictures += turn.pictures
        last.calls += turn.calls
        last.results += turn.results
    if last is not None:
        yield last


def _tools(body: Any) -> Iterator[ToolDefinition]:
    offered: Any = body.get("tools") or (body.get("toolConfig") or {}).get("tools") or []
    for tool in [offered] if isinstance(offered, dict) else offered:
        if tool.get("type") not in (None, "function", "custom"):
            continue  # the provider's own
        for one in (
            tool.get("functionDeclarations")
            or tool.get("function_declarations")
            or [tool.get("function") or tool.get("toolSpec") or tool]
        ):
            schema = one.get("parameters") or one.get("input_schema") or one.get("parameters_json_schema")
            schema = schema or (one.get("inputSchema") or {}).get("json") or one.get("parametersJsonSchema")
            schema = schema or {"type": "object", "properties": {}}
            if "name" in one:
                yield ToolDefinition(name=one["name"], description=one.get("description") or "", parameters=schema)


def _instructions(body: Any) -> str:
    system = body.get("instructions") or body.get("system") or ""
    if isinstance(system, list):
        return "\n".join(part.get("text") or "" for part in system)
    if google := body.get("systemInstruction"):
        return "\n".join(part.get("text") or "" for part in google["parts"])
    said = body.get("messages") or body.get("input") or []
    said = said if isinstance(said, list) else []
    spoken = [one["content"] for one in said if one.get("role") in ("system", "developer")]
    return system or "\n".join(map(_text, spoken))


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else json.dumps(content)


_NOT_TEXT = {"image_url", "image", "input_image", "file", "input_file", "document", "input_audio"}


def _user(content: Any) -> Turn:
    parts: list[Any] = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    pictures = sum(part.get("type") in _NOT_TEXT for part in parts)
    return Turn("user", [part["text"] for part in parts if part.get("text")], pictures)


def _chat(body: Any) -> Iterator[Turn]:
    for one in body["messages"]:
        match one["role"]:
            case "user":
                yield _user(one.get("content"))
            case "assistant":
                made = [call for call in one.get("tool_calls") or [] if call.get("function")]
                calls = [(call["id"], call["function"]["name"]) for call in made]
                yield Turn("assistant", [_text(one["content"])] if one.get("content") else [], calls=calls)
            case "tool":
                yield Turn("user", results=[(one["tool_call_id"], _text(one["content"]))])
            case _:
                pass


def _responses(body: Any) -> Iterator[Turn]:
    given: Any = body.get("input") or []
    for one in given if isinstance(given, list) else [{"role": "user", "content": given}]:
        match one.get("type", "message"), one.get("role"):
            case "function_call", _:
                yield Turn("assistant", calls=[(one["call_id"], one["name"])])
            case "function_call_output", _:
                yield Turn("user", results=[(one["call_id"], _text(one["output"]))])
            case "message", "user":
                yield _user(one["content"])
            case "message", "assistant":
                yield Turn("assistant", [_text(one["content"])])
            case ("message", _) | ("mcp_approval_response" | "computer_call_output", _):
                pass
            case _:  # thoughts, and what the provider did by itself
                yield Turn("assistant")


def _anthropic(body: Any) -> Iterator[Turn]:
    for one in body["messages"]:
        content: Any = one["content"]
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if one["role"] == "assistant":
            calls = [(part["id"], part["name"]) for part in parts if part["type"] == "tool_use"]
            yield Turn("assistant", [part["text"] for part in parts if part["type"] == "text"], calls=calls)
            continue
        results = [(p["tool_use_id"], _text(p.get("content") or "")) for p in parts if p["type"] == "tool_result"]
        said = _user([part for part in parts if part["type"] != "tool_result"])
        yield Turn("user", said.text, said.pictures, results=results)


def _google(body: Any) -> Iterator[Turn]:
    for one in body["contents"]:
        parts = one.get("parts") or []
        texts = [part["text"] for part in parts if part.get("text") and not part.get("thought")]
        if one.get("role") == "model":
            made = [part.get("functionCall") or part.get("function_call") for part in parts]
            calls = [(call.get("id") or f"{n}", call["name"]) for n, call in enumerate(made) if call]
            yield Turn("assistant", texts, calls=calls)
            continue
        gave = [part.get("functionResponse") or part.get("function_response") for part in parts]
        results = [(call.get("id") or f"{n}", json.dumps(call["response"])) for n, call in enumerate(gave) if call]
        yield Turn("user", texts, sum("inlineData" in p or "fileData" in p for p in parts), results=results)


def _bedrock(body: Any) -> Iterator[Turn]:
    for one in body["messages"]:
        parts = one["content"]
        texts = [part["text"] for part in parts if part.get("text")]
        if one["role"] == "assistant":
            made = [part["toolUse"] for part in parts if "toolUse" in part]
            yield Turn("assistant", texts, calls=[(call["toolUseId"], call["name"]) for call in made])
            continue
        gave = [part["toolResult"] for part in parts if "toolResult" in part]
        results = [(call["toolUseId"], _text(call["content"])) for call in gave]
        yield Turn("user", texts, sum("image" in part for part in parts), results=results)


_READERS = {
    "chat": _chat,
    "responses": _responses,
    "anthropic": _anthropic,
    "google": _google,
    "bedrock": _bedrock,
}
