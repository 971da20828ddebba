"""Conversations as simulated models read them: the last input, and the messages since."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast

from perdure import codec
from perdure.codec import Json
from perdure.errors import Error
from perdure.models.protocol import AnswerPart, ModelReply, ModelRequest, ProviderCall
from perdure.session.view import CORRECTION, LATE
from perdure.vocab.messages import AttachmentRef, File, ImagePart, Message, Text, Thinking, ToolResultPart
from perdure.vocab.notifications import NOTICE
from perdure.vocab.usage import Usage

_CHARS_PER_TOKEN = 4
_NOTE = re.compile(
    re.escape(f"{LATE}\n{NOTICE}\n") + r'- call: ".*"\n- tool: (?P<tool>".*")\n- outcome: (?P<told>".*")',
)


def last_input(messages: tuple[Message, ...]) -> int:
    """Return the index of the last user message, or -1. Messages of only tool results or corrections do not count."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "user" and not _only_results(message) and not _only_corrections(message):
            return index
    return -1


def _only_corrections(message: Message) -> bool:
    return bool(message.parts) and all(isinstance(part, Text) and is_correction(part) for part in message.parts)


def is_correction(part: Text) -> bool:
    """Return True if the text is the runtime's request to repeat the answer in another form."""
    return part.text.startswith(CORRECTION)


def _only_results(message: Message) -> bool:
    return bool(message.parts) and all(isinstance(part, ToolResultPart) for part in message.parts)


def input_texts(messages: tuple[Message, ...]) -> tuple[str, ...]:
    """Return the texts of the last user message, without notes.

    More than one if an earlier input was never answered.
    """
    index = last_input(messages)
    if index < 0:
        return ()
    message = messages[index]
    texts = (part for part in message.parts if isinstance(part, Text) and not is_correction(part))
    return tuple(part.text for part in texts if not late_note(message, part))


def input_text(messages: tuple[Message, ...]) -> str:
    """Return the text of the last user message, joined."""
    return "\n".join(input_texts(messages))


def input_attachments(messages: tuple[Message, ...]) -> tuple[AttachmentRef, ...]:
    """Return the attachments of the last user message."""
    index = last_input(messages)
    parts = messages[index].parts if index >= 0 else ()
    return tuple(part.ref for part in parts if isinstance(part, ImagePart | File))


@dataclass(frozen=True, slots=True)
class LateNote:
    """A note about a call whose outcome became known later."""

    tool: str
    told: Json

    @property
    def is_error(self) -> bool:
        """True if the call failed. A value that looks like an error counts as one."""
        told: object = self.told
        return isinstance(told, dict) and {"error", "code"} <= cast("dict[str, Json]", told).keys()


def late_note(message: Message, part: Text) -> LateNote | None:
    """Return the late note in a text that the runtime prepended to a user message or put into a system message."""
    found = _NOTE.fullmatch(part.text) if message.role in ("user", "system") else None
    if found is None:
        return None
    try:
        told = codec.decode(found["told"], str)
        return LateNote(codec.decode(found["tool"], str), codec.decode(told))
    except Error:
        return None


def since_input(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return all messages after the last user message."""
    return messages[last_input(messages) + 1 :]


def results(messages: tuple[Message, ...], tool: str) -> tuple[ToolResultPart, ...]:
    """Return the results of one tool, oldest first."""
    parts = (part for message in messages for part in message.parts)
    return tuple(part for part in parts if isinstance(part, ToolResultPart) and part.name == tool)


def count_tokens(request: ModelRequest, reply: ModelReply) -> Usage:
    """Return simulated usage derived from text length: deterministic, and larger for more text."""
    shown = [request.instructions, *(_weight(message) for message in request.messages)]
    said = [_reply_weight(part) for part in reply.parts]
    return Usage(input=_tokens(shown), output=_tokens(said), calls=1)


def _weight(message: Message) -> str:
    return codec.encode(message.parts).decode()


def _reply_weight(part: AnswerPart) -> str:
    match part:
        case ProviderCall(name=name, arguments=arguments):
            return name + arguments
        case Text(text=text) | Thinking(text=text):
            return text
        case _:
            return ""


def _tokens(texts: list[str]) -> int:
    return -(-sum(map(len, texts)) // _CHARS_PER_TOKEN)


def replies(messages: tuple[Message, ...]) -> int:
    """Return the number of assistant messages."""
    return sum(message.role == "assistant" for message in messages)
