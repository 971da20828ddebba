"""Model profiles of compatible servers, since each supports the wire protocol differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic_ai.profiles import ModelProfile

    Profiles = Callable[[str], ModelProfile | None]

_GROQ_KEEPS_FORMS = ("openai/gpt-oss", "moonshotai/", "meta-llama/llama-4")
"""Groq models that accept an output schema; Groq refuses it for all others."""


def profiles_of(family: str) -> Profiles | None:
    """Return Pydantic AI's model profiles of one server, or None if it has none."""
    match family:
        case "deepseek":
            from pydantic_ai.providers.deepseek import DeepSeekProvider

            return DeepSeekProvider.model_profile
        case "ollama":
            from pydantic_ai.providers.ollama import OllamaProvider

            return OllamaProvider.model_profile
        case "openrouter":
            from pydantic_ai.providers.openrouter import OpenRouterProvider

            return OpenRouterProvider.model_profile
        case "groq":
            return _groq
        case "mistral":
            return _made_by("mistral")
        case "xai":
            return _made_by("x-ai")
        case _:
            return None


def _made_by(vendor: str) -> Profiles:
    """Return the profiles of models that another server names `vendor/model`."""
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    return lambda name: OpenAICompatibleProvider.model_profile(f"{vendor}/{name}")


def _groq(name: str) -> ModelProfile | None:
    from pydantic_ai.profiles import ModelProfile, merge_profile
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    keeps_forms = name.lower().startswith(_GROQ_KEEPS_FORMS)
    own = ModelProfile(supports_json_object_output=True, supports_json_schema_output=keeps_forms)
    return merge_profile(OpenAICompatibleProvider.model_profile(name), own)
