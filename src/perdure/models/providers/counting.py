"""Chat Completions as all servers stream them. Imported when a model is built, since it needs the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse

if TYPE_CHECKING:
    from pydantic_ai.usage import RequestUsage


class _Stream(OpenAIStreamedResponse):
    """What a piece says of the tokens is the whole so far: some servers say it once, some with every piece."""

    def _add_usage(self, usage: RequestUsage, *, reported: bool, cumulative: bool = False) -> None:
        super()._add_usage(usage, reported=reported, cumulative=cumulative or reported)


class ChatModel(OpenAIChatModel):
    """A model of any server with Chat Completions."""

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _Stream
