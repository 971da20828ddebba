"""Chat Completions with the usage reports of all servers. Imported when a model is built, since it needs the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse

if TYPE_CHECKING:
    from pydantic_ai.usage import RequestUsage


class _Stream(OpenAIStreamedResponse):
    """A stream whose usage reports are cumulative: some servers report once, some in every chunk."""

    def _add_usage(self, usage: RequestUsage, *, reported: bool, cumulative: bool = False) -> None:
        super()._add_usage(usage, reported=reported, cumulative=cumulative or reported)


class ChatModel(OpenAIChatModel):
    """A model of any server with Chat Completions."""

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _Stream
