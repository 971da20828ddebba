"""Asking one model of a provider on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.models.protocol import (
    ComesWhole,
    HiddenDelta,
    JobBegun,
    ModelReply,
    ModelRequest,
    TextPiece,
    ThinkingDelta,
    UsageSoFar,
)
from perdure.models.providers.names import PROVIDERS, Provider
from perdure.models.providers.provided import ProviderModel
from perdure.services.llm import ProviderCredentials
from perdure.services.secrets import Secret
from perdure.vocab.messages import Message, Text

KEY = "sk-not-a-real-key-0123456789"


def model_at(base_url: str, provider: str, model: str) -> ProviderModel:
    """A model whose provider is at this address."""

    async def credentials(_: Provider) -> ProviderCredentials:
        return ProviderCredentials(Secret(KEY), base_url)

    return ProviderModel(f"{provider}:{model}", PROVIDERS[provider], model, credentials)


@dataclass(slots=True)
class Heard:
    """The result of a model call."""

    deltas: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    hidden: int = 0
    jobs: int = 0
    reply: ModelReply | None = None


async def ask(model: ProviderModel, request: ModelRequest) -> Heard:
    """All that a model says to one request."""
    heard = Heard()
    async for event in model.stream(request):
        match event:
            case TextPiece(text=text):
                heard.deltas.append(text)
            case ThinkingDelta(text=text):
                heard.thoughts.append(text)
            case HiddenDelta(chars=chars):
                heard.hidden += chars
            case ComesWhole() | UsageSoFar():
                pass
            case JobBegun():
                heard.jobs += 1
            case ModelReply():
                heard.reply = event
    return heard


def said(text: str, **settings: object) -> ModelRequest:
    """A user says something."""
    messages = (Message(role="user", parts=(Text(text=text),)),)
    return ModelRequest("m", "Be brief.", messages, (), settings=settings or None)
