"""The client behind `ctx.complete`: one-shot model calls outside the turn's conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from perdure.codec import Json
from perdure.vocab.messages import Message, Reply


@dataclass(frozen=True, slots=True)
class DirectRequest:
    """One request: a text, or a whole conversation that ends with a user message.

    `key` names the request in its record. Without a key the content does, and an equal request is refused. `utility`
    uses the host's utility model, with only the settings given here.
    """

    messages: str | Sequence[Message]
    instructions: str = ""
    settings: Json = None
    key: str = ""
    utility: bool = False


class DirectCompletions(Protocol):
    """One-shot model calls. Their cost counts for the turn, under `usage_source`."""

    async def complete(self, request: DirectRequest | str, usage_source: str) -> Reply:
        """Return the reply of the session's own model, without tools.

        In an ordinary tool the request belongs to the attempt: a repeated attempt asks again. In a `resumable` tool it
        is recorded under its `key` or content. An answered request, by a reply or an error, is replayed.

        Raises:
            ToolError: `direct_completion_failed`, with the model's own reason.
        """
        ...
