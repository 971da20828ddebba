"""Conservative usage estimates for model calls whose provider reported none."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perdure.codec import encode
from perdure.vocab.messages import File, ImagePart, Message
from perdure.vocab.tools import ToolDefinition
from perdure.vocab.usage import Usage

CHARS_PER_TOKEN = 3
"""English has four; other languages, code and JSON have fewer."""
TOKENS_PER_FILE = 1_600
"""About the charge of providers for a large image."""


def estimated(instructions: str, messages: Sequence[Message], tools: Sequence[ToolDefinition], written: int) -> Usage:
    """Return the estimated tokens of one call with this request and `written` characters of reply, without a price."""
    chars = len(instructions) + sum(len(encode(one)) for one in (*messages, *tools))
    files = sum(isinstance(part, ImagePart | File) for message in messages for part in message.parts)
    tokens = -(-chars // CHARS_PER_TOKEN) + files * TOKENS_PER_FILE
    return Usage(input=tokens, output=-(-written // CHARS_PER_TOKEN), calls=1, estimated=1)


def completed(told: Usage, guessed: Usage) -> Usage:
    """Combine usage reported before an interruption with an estimate.

    The reported input counts; of the output the larger number does.
    """
    if not told.calls:
        return guessed
    written = max(told.output, guessed.output - told.reasoning)
    return replace(told, output=written, cost_nano=0, priced=0, estimated=guessed.estimated)
