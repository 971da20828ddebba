"""What a provider accepts, written without looking at how views are made."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.vocab.messages import File, Image, Message, Opaque, Text, Thinking, ToolCall, ToolResult

SPOKEN_BY: dict[str, tuple[type, ...]] = {
    "user": (Text, Image, File),
    "assistant": (Text, Thinking, ToolCall, Image, File, Opaque),
    "tool": (ToolResult, Image),
}


def complaints(messages: Sequence[Message]) -> list[str]:
    """Everything a strict provider would refuse about a conversation."""
    found: list[str] = []
    if messages and messages[0].role != "user":
        found.append(f"it begins with {messages[0].role}")
    for index, message in enumerate(messages):
        found += [f"message {index} {problem}" for problem in _about(message)]
        before = messages[index - 1] if index else None
        after = messages[index + 1] if index + 1 < len(messages) else None
        if before and before.role == message.role:
            found.append(f"message {index} repeats the role {message.role}")
        calls = [part.id for part in message.parts if isinstance(part, ToolCall)]
        answers = [part.call for part in after.parts if isinstance(part, ToolResult)] if after else []
        if calls and answers != calls:
            found.append(f"the calls {calls} of message {index} are answered by {answers}")
        if message.role == "tool" and not (before and any(isinstance(part, ToolCall) for part in before.parts)):
            found.append(f"the results in message {index} belong to no call")
    ids = [part.id for message in messages for part in message.parts if isinstance(part, ToolCall)]
    if len(ids) != len(set(ids)):
        found.append("a call id is used twice")
    return found


def _about(message: Message) -> list[str]:
    found: list[str] = []
    allowed = SPOKEN_BY.get(message.role, ())
    if not message.parts:
        found.append("is empty")
    if any(not isinstance(part, allowed) for part in message.parts):
        found.append(f"has a part that {message.role} cannot say")
    if message.role == "tool" and message.parts and not isinstance(message.parts[0], ToolResult):
        found.append("has a picture that belongs to no result")
    if any(isinstance(part, Text) and not part.text.strip() for part in message.parts):
        found.append("has a blank text")
    if message.parts and all(isinstance(part, Thinking | Opaque) for part in message.parts):
        found.append("is nothing but thinking")
    return found
