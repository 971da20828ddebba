"""The client `ctx.messages`: the conversation so far, and complete results of earlier calls."""

from __future__ import annotations

from perdure.ids import CallId
from perdure.tools.services import Services, required
from perdure.vocab.messages import Message


class MessagesClient:
    """Read access to the conversation of the call's session. Each method raises a `ToolError` without its service."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def list(self, *, last: int | None = None) -> tuple[Message, ...]:
        """Return the conversation as shown to a model, or its last messages."""
        return await required(self._services.message_retriever, "message_retriever").load(last=last)

    async def get(self, index: int) -> Message | None:
        """Return one message by its index, counted from 0, or None."""
        return await required(self._services.message_retriever, "message_retriever").get(index)

    async def result(self, call_id: str) -> bytes | None:
        """Return all bytes of the result of an earlier call, which the model may see truncated. None if not stored."""
        return await required(self._services.result_reader, "result_reader").read(CallId(call_id))
