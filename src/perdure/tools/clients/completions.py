"""`ctx.direct_completions`: asking a model once, outside the turn's conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from perdure.codec import Json
from perdure.vocab.messages import Message, Reply


@dataclass(frozen=True, slots=True)
class DirectRequest:
    """One question: a text, or a whole conversation that ends with a user message.

    `key` names the request where it is recorded; without one its content does, and the same request twice is refused.
    `utility` asks the host's own model for small work, with no settings but those given here.
    """

    messages: str | Sequence[Message]
    instructions: str = ""
    settings: Json = None
    key: str = ""
    utility: bool = False


class DirectCompletions(Protocol):
    """One-shot model calls. What they cost is counted for the turn, under `usage_source`."""

    async def complete(self, request: DirectRequest | str, usage_source: str) -> Reply:
        """The reply of the session's own model, without tools.

        In the body of an ordinary tool the request belongs to the attempt: an attempt that runs again asks again. In
        that of a `resumable` one it is recorded, under its `key` or by its content, and never asked again once it was
        answered, whether with a reply or an error.

        Raises:
            ToolError: `direct_completion_failed`, with the model's own reason.
        """
        ...
