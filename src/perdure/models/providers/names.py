"""The known providers, by the prefix of a model's name, and their requirements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Wire = Literal["responses", "chat", "anthropic", "google", "bedrock"]


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider: wire protocol, extra with its SDK, and the sources of key and address.

    `family` is the name under which credentials are stored. `base_url` is the default address; None leaves it to the
    SDK. `keyless`: usable without a key, as local servers are.
    """

    name: str
    family: str
    wire: Wire
    extra: str
    keys: tuple[str, ...]
    base_url_variable: str
    base_url: str | None = None
    keyless: bool = False


def _openai(name: str, wire: Wire) -> Provider:
    return Provider(name, "openai", wire, "openai", ("OPENAI_API_KEY",), "OPENAI_BASE_URL")


def _compatible(name: str, base_url: str | None, *, keyless: bool = False) -> Provider:
    shout = name.upper().replace("-", "_")
    return Provider(name, name, "chat", "openai", (f"{shout}_API_KEY",), f"{shout}_BASE_URL", base_url, keyless)


_KNOWN = (
    _openai("openai", "responses"),
    _openai("openai-responses", "responses"),
    _openai("openai-chat", "chat"),
    _compatible("openai-compatible", None, keyless=True),
    Provider("anthropic", "anthropic", "anthropic", "anthropic", ("ANTHROPIC_API_KEY",), "ANTHROPIC_BASE_URL"),
    Provider("google", "google", "google", "google", ("GOOGLE_API_KEY", "GEMINI_API_KEY"), "GOOGLE_GEMINI_BASE_URL"),
    Provider(
        "bedrock",
        "bedrock",
        "bedrock",
        "bedrock",
        ("AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME",
    ),
    _compatible("deepseek", "https://api.deepseek.com/v1"),
    _compatible("groq", "https://api.groq.com/openai/v1"),
    _compatible("mistral", "https://api.mistral.ai/v1"),
    _compatible("ollama", "http://127.0.0.1:11434/v1", keyless=True),
    _compatible("openrouter", "https://openrouter.ai/api/v1"),
    _compatible("xai", "https://api.x.ai/v1"),
)

PROVIDERS: Mapping[str, Provider] = {one.name: one for one in _KNOWN}


def split(spec: str) -> tuple[Provider, str] | None:
    """Return the provider and its model name in `provider:model`, or None for any other form."""
    word, colon, model = spec.partition(":")
    provider = PROVIDERS.get(word)
    return (provider, model) if colon and provider and model.strip() == model and model else None
