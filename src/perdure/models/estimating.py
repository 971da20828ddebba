"""What a model call costs whose provider never said so: rather too much than too little."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perdure.codec import encode
from perdure.vocab.messages import File, Image, Message
from perdure.vocab.tools import ToolDefinition
from perdure.vocab.usage import Usage

CHARS_PER_TOKEN = 3
"""English has four; other languages, code and JSON have fewer."""
TOKENS_PER_FILE = 1_600
"""About what providers charge for a large picture."""


def estimated(instructions: str, messages: Sequence[Message], tools: Sequence[ToolDefinition], written: int) -> Usage:
    """The tokens of one call that was asked this and had written so many characters; its price is not known."""
    chars = len(instructions) + sum(len(encode(one)) for one in (*messages, *tools))
    files = sum(isinstance(part, Image | File) for message in messages for part in message.parts)
    tokens = -(-chars // CHARS_PER_TOKEN) + files * TOKENS_PER_FILE
    return Usage(input=tokens, output=-(-written // CHARS_PER_TOKEN), calls=1, estimated=1)


def completed(told: Usage, guessed: Usage) -> Usage:
    """An estimate of a call whose provider told some of its cost before it broke off: what was sent counts as told,
    what was written is the larger of both."""
    if not told.calls:
        return guessed
    written = max(told.output, guessed.output - told.reasoning)
    return replace(told, output=written, cost_nano=0, priced=0, estimated=guessed.estimated)
