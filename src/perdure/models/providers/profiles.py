"""What the models of compatible servers can do: each server has its own view of the same wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic_ai.profiles import ModelProfile

    Profiles = Callable[[str], ModelProfile | None]

_GROQ_KEEPS_FORMS = ("openai/gpt-oss", "moonshotai/", "meta-llama/llama-4")
"""The models of Groq that can be told the form of an answer; it refuses to be told for any other."""


def profiles_of(family: str) -> Profiles | None:
    """What Pydantic AI knows of the models of one server, by their names; None if it knows nothing special."""
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
    """As for a model that a server names `vendor/model`."""
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    return lambda name: OpenAICompatibleProvider.model_profile(f"{vendor}/{name}")


def _groq(name: str) -> ModelProfile | None:
    from pydantic_ai.profiles import ModelProfile, merge_profile
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    keeps_forms = name.lower().startswith(_GROQ_KEEPS_FORMS)
    own = ModelProfile(supports_json_object_output=True, supports_json_schema_output=keeps_forms)
    return merge_profile(OpenAICompatibleProvider.model_profile(name), own)
