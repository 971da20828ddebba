"""Contents of recorded responses, read by hand for each wire: expectations that none of our code computes."""

# It reads the JSON of others.
# pyright: basic
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from botocore.eventstream import EventStreamBuffer

from tests.providers.cassettes import Interaction

_THINKS = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_FILTERED = {
    *("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"),
    *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
}
_BROKEN = {
    *("LANGUAGE", "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"),
    *("NO_IMAGE", "IMAGE_OTHER", "MISSING_THOUGHT_SIGNATURE", "malformed_model_output", "malformed_tool_use"),
}


@dataclass(slots=True)
class Told:
    """Text, thinking, calls and files of a response, and what it says it cost in total.

    `over`: it says that it is complete; `pending`: that it is gone on with elsewhere.
    """

    text: str = ""
    thinking: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    files: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached: int = 0
    reasoning: int = 0
    refused: bool = False
    pending: bool = False
    over: bool = True
    broken: bool = False


def told(interactions: list[Interaction]) -> Told:
    """What these say together: a paused reply is gone on with, a job is asked for until it is done."""
    each = [_READERS[one.wire](pieces(one), one.streamed) for one in interactions]
    whole = each[-1]
    if interactions[-1].wire == "anthropic":
        for before in reversed(each[:-1]):
            whole.text, whole.thinking = before.text + whole.text, before.thinking + whole.thinking
            whole.calls = before.calls + whole.calls
            for name in ("files", "input_tokens", "output_tokens", "cached", "reasoning"):
                setattr(whole, name, getattr(before, name) + getattr(whole, name))
    return whole


def is_error(interaction: Interaction) -> bool:
    """Whether it answers with an error: by its status, in the middle of a stream, or by breaking off."""
    if interaction.status >= 400:
        return True
    found = pieces(interaction)
    last = found[-1] if found else {}
    failed = last.get("type") in ("error", "response.failed") or last.get("status") in ("failed", "cancelled")
    if failed or any(piece.get("error") for piece in found) or "exception" in last:
        return True
    said = _READERS[interaction.wire](found, interaction.streamed)
    return said.broken or not (said.over or said.pending)


def pieces(interaction: Interaction) -> list[Any]:
    if interaction.wire == "bedrock" and interaction.streamed:
        return _frames(interaction.body)
    if interaction.streamed:
        return _events(interaction.body)
    return [json.loads(interaction.body)] if interaction.body else []


def _events(body: bytes) -> list[Any]:
    lines = body.decode().replace("\r\n", "\n").split("\n")
    data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    return [json.loads(one) for one in data if one and one != "[DONE]"]


def _frames(body: bytes) -> list[Any]:
    buffer = EventStreamBuffer()
    buffer.add_data(body)
    found = []
    for frame in buffer:
        kind = frame.headers.get(":exception-type")
        found.append({(kind and "exception") or frame.headers[":event-type"]: json.loads(frame.payload)})
    return found


def _called(name: str, arguments: Any) -> tuple[str, Any]:
    """A call and its arguments; what is no JSON object stays the text it is."""
    if not isinstance(arguments, str):
        return name, arguments or {}
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return name, arguments
    return name, value if isinstance(value, dict) else arguments


def _chat(pieces: list[Any], streamed: bool) -> Told:
    out, calls, ends = Told(), dict[int, list[str]](), not streamed
    for piece in pieces:
        for choice in (piece.get("choices") or [])[:1]:
            said = choice.get("delta" if streamed else "message") or {}
            for text in _content(said.get("content")):
                out.text += text
            out.thinking += said.get("reasoning") or said.get("reasoning_content") or ""
            out.refused |= bool(said.get("refusal")) or choice.get("finish_reason") == "content_filter"
            ends |= bool(choice.get("finish_reason"))
            for place, call in enumerate(said.get("tool_calls") or []):
                known = calls.setdefault(call.get("index", place), ["", ""])
                known[0] += (call.get("function") or {}).get("name") or ""
                known[1] += (call.get("function") or {}).get("arguments") or ""
                out.broken |= call.get("type") == "custom"  # the library has no such call
        if usage := piece.get("usage"):
            out.input_tokens, out.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
            out.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            out.reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    out.thinking += "".join(_THINKS.findall(out.text))
    out.text = _THINKS.sub("", out.text)
    out.calls = [_called(name, args) for name, args in calls.values()]
    out.over = ends
    return out


def _content(content: Any) -> list[str]:
    if isinstance(content, list):
        return [one.get("text") or "" for one in content]
    return [content or ""]


def _responses(pieces: list[Any], streamed: bool) -> Told:
    out = Told()
    last: Any = pieces[0] if not streamed else {}
    for piece in pieces if streamed else []:
        last = piece.get("response") or last
        out.over = piece["type"] in ("response.completed", "response.incomplete", "response.failed")
    out.pending = bool(last.get("background")) and last.get("status") in ("queued", "in_progress")
    out.refused = (last.get("incomplete_details") or {}).get("reason") == "content_filter"
    done = [piece["item"] for piece in pieces if piece.get("type") == "response.output_item.done"]
    for item in last.get("output") or done:
        match item["type"]:
            case "message":
                for content in item["content"]:
                    out.text += content.get("text") or ""
                    out.refused |= content["type"] == "refusal"
            case "function_call":
                out.calls.append(_called(item["name"], item["arguments"]))
            case "reasoning":
                out.thinking += "".join(one["text"] for one in item.get("summary") or [])
            case "image_generation_call":
                out.files += bool(item.get("result"))
            case "code_interpreter_call":
                out.files += sum(one["type"] == "image" for one in item.get("outputs") or [])
            case _:
                pass
    if usage := last.get("usage"):
        out.input_tokens, out.output_tokens = usage["input_tokens"], usage["output_tokens"]
        out.cached = (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0
        out.reasoning = (usage.get("output_tokens_details") or {}).get("reasoning_tokens") or 0
    return out


def _anthropic(pieces: list[Any], streamed: bool) -> Told:
    out, blocks, usage, stop = Told(), list[Any](), dict[str, Any](), None
    if not streamed:
        blocks, usage = pieces[0].get("content") or [], pieces[0].get("usage") or {}
        stop = pieces[0].get("stop_reason")
    for piece in pieces if streamed else []:
        match piece["type"]:
            case "message_start":
                usage |= piece["message"]["usage"]
            case "content_block_start":
                blocks.append(dict(piece["content_block"], partial=""))
            case "content_block_delta":
                delta, block = piece["delta"], blocks[piece["index"]]
                block["text"] = block.get("text", "") + delta.get("text", "")
                block["thinking"] = block.get("thinking", "") + delta.get("thinking", "")
                block["partial"] += delta.get("partial_json", "")
            case "message_delta":
                usage |= {name: value for name, value in piece["usage"].items() if value is not None}
                stop = piece["delta"].get("stop_reason") or stop
            case _:
                pass
    for block in blocks:
        match block["type"]:
            case "text":
                out.text += block["text"]
            case "thinking":
                out.thinking += block["thinking"]
            case "tool_use":
                out.calls.append(_called(block["name"], block.get("partial") or block["input"]))
            case _:
                pass
    out.refused, out.pending, out.over = stop == "refusal", stop == "pause_turn", stop is not None
    bought = [usage, *(one for one in usage.get("iterations") or [] if one["type"] == "compaction")]
    for one in bought:
        read, written = one.get("cache_read_input_tokens") or 0, one.get("cache_creation_input_tokens") or 0
        out.input_tokens += (one.get("input_tokens") or 0) + read + written
        out.output_tokens, out.cached = out.output_tokens + (one.get("output_tokens") or 0), out.cached + read
    out.reasoning = (usage.get("output_tokens_details") or {}).get("thinking_tokens") or 0
    return out


def _google(pieces: list[Any], streamed: bool) -> Told:
    out, usage = Told(over=not streamed), dict[str, Any]()
    reason = ""
    for piece in pieces:
        for candidate in (piece.get("candidates") or [])[:1]:
            for part in (candidate.get("content") or {}).get("parts") or []:
                if "functionCall" in part:
                    out.calls.append((part["functionCall"]["name"], part["functionCall"].get("args") or {}))
                elif "inlineData" in part:
                    out.files += not part.get("thought")
                elif part.get("thought"):
                    out.thinking += part.get("text") or ""
                else:
                    out.text += part.get("text") or ""
            reason = candidate.get("finishReason") or reason
        out.refused |= "blockReason" in (piece.get("promptFeedback") or {})
        usage |= {name: count for name, count in (piece.get("usageMetadata") or {}).items() if count}
    nothing = not (out.text or out.calls or out.files or out.thinking)
    out.broken = reason in _BROKEN or (reason == "OTHER" and nothing)
    out.refused |= reason in _FILTERED
    out.over |= bool(reason) or out.refused
    out.reasoning = usage.get("thoughtsTokenCount") or 0
    out.cached = usage.get("cachedContentTokenCount") or 0
    out.input_tokens = (usage.get("promptTokenCount") or 0) + (usage.get("toolUsePromptTokenCount") or 0)
    out.output_tokens = (usage.get("candidatesTokenCount") or 0) + out.reasoning
    return out


def _whole_bedrock(said: Any) -> Iterator[dict[str, Any]]:
    """An answer in one piece, as if it had been streamed."""
    for index, one in enumerate(said["output"]["message"]["content"]):
        where = {"contentBlockIndex": index}
        if "toolUse" in one:
            arguments = {"toolUse": {"input": json.dumps(one["toolUse"]["input"])}}
            yield {"contentBlockStart": {"start": one, **where}}
            yield {"contentBlockDelta": {"delta": arguments, **where}}
        else:
            thought = (one.get("reasoningContent") or {}).get("reasoningText") or {}
            yield {"contentBlockDelta": {"delta": {"text": one.get("text"), "reasoningContent": thought}, **where}}
    yield {"messageStop": said}
    yield {"metadata": said}


def _bedrock(pieces: list[Any], streamed: bool) -> Told:
    out, calls = Told(over=False), dict[int, list[str]]()
    pieces = pieces if streamed else [*_whole_bedrock(pieces[0])]
    for piece in pieces:
        for kind, said in piece.items():
            match kind:
                case "contentBlockStart" if "toolUse" in said.get("start", {}):
                    calls[said["contentBlockIndex"]] = [said["start"]["toolUse"]["name"], ""]
                case "contentBlockDelta":
                    delta = said["delta"]
                    out.text += delta.get("text") or ""
                    out.thinking += (delta.get("reasoningContent") or {}).get("text") or ""
                    if "toolUse" in delta:
                        calls[said["contentBlockIndex"]][1] += delta["toolUse"]["input"]
                case "messageStop":
                    out.over = True
                    out.refused = said["stopReason"] in ("content_filtered", "guardrail_intervened")
                    out.broken = said["stopReason"] in _BROKEN
                case "metadata":
                    usage = said["usage"]
                    read, written = usage.get("cacheReadInputTokens") or 0, usage.get("cacheWriteInputTokens") or 0
                    out.input_tokens, out.cached = usage["inputTokens"] + read + written, read
                    out.output_tokens = usage["outputTokens"]
                case _:
                    pass
    out.calls = [_called(name, args) for name, args in calls.values()]
    return out


_READERS = {
    "chat": _chat,
    "responses": _responses,
    "anthropic": _anthropic,
    "google": _google,
    "bedrock": _bedrock,
}
