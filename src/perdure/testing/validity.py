"""Rules of a valid conversation as providers check them, independent of the code that builds views."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.vocab.messages import File, ImagePart, Message, Opaque, Text, Thinking, ToolCall, ToolResultPart

SPOKEN_BY: dict[str, tuple[type, ...]] = {
    "user": (Text, ImagePart, File),
    "assistant": (Text, Thinking, ToolCall, ImagePart, File, Opaque),
    "tool": (ToolResultPart, ImagePart),
}


def complaints(messages: Sequence[Message]) -> list[str]:
    """Return everything in a conversation that a strict provider would refuse."""
    found: list[str] = []
    if messages and messages[0].role != "user":
        found.append(f"the first role is {messages[0].role}")
    for index, message in enumerate(messages):
        found += [f"message {index} {problem}" for problem in _about(message)]
        before = messages[index - 1] if index else None
        after = messages[index + 1] if index + 1 < len(messages) else None
        if before and before.role == message.role:
            found.append(f"message {index} repeats the role {message.role}")
        calls = [part.id for part in message.parts if isinstance(part, ToolCall)]
        answers = [part.call for part in after.parts if isinstance(part, ToolResultPart)] if after else []
        if calls and answers != calls:
            found.append(f"the calls {calls} of message {index} have the results {answers}")
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
        found.append(f"has a part that the role {message.role} may not have")
    if message.role == "tool" and message.parts and not isinstance(message.parts[0], ToolResultPart):
        found.append("has a picture that belongs to no result")
    if any(isinstance(part, Text) and not part.text.strip() for part in message.parts):
        found.append("has a blank text")
    if message.parts and all(isinstance(part, Thinking | Opaque) for part in message.parts):
        found.append("has only thinking")
    return found
