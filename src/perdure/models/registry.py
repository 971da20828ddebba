"""From the name of a model to the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perdure.errors import Code, Error
from perdure.models.protocol import Model
from perdure.models.simulated import EchoModel, TravelModel

SIMULATED: Mapping[str, Callable[[], Model]] = {"sim:echo": EchoModel, "sim:travel": TravelModel}
PROVIDERS = frozenset(
    {"anthropic", "azure", "bedrock", "cohere", "deepseek", "gemini", "google", "google-vertex", "groq", "mistral"}
    | {"ollama", "openai", "openrouter", "vertex", "xai"}
)


def resolve(spec: str | Model) -> Model:
    """The model a specification names; a model is itself.

    Raises:
        Error: `model_unknown`, listing what exists.
    """
    if not isinstance(spec, str):
        return _checked(spec)
    if make := SIMULATED.get(spec):
        return make()
    provider, colon, _ = spec.partition(":")
    exists = ", ".join(SIMULATED)
    if colon and provider in PROVIDERS:
        raise Error(
            Code.MODEL_UNKNOWN,
            f"the model {spec!r} cannot be used yet",
            because="providers arrive in a later release",
            hint=f"stay offline with --model sim:echo (there are: {exists}), or pass your own Model object",
            model=spec,
        )
    raise Error(
        Code.MODEL_UNKNOWN,
        f"there is no model {spec!r}",
        because=f"the models are: {exists}",
        hint="stay offline with --model sim:echo, or pass your own Model object",
        model=spec,
    )


def _checked(model: Model) -> Model:
    # What is not typed may come from anywhere: a class instead of its instance, a client of some library.
    if isinstance(model, type) or not callable(getattr(model, "stream", None)) or not hasattr(model, "name"):
        shown = model.__name__ if isinstance(model, type) else type(model).__name__
        raise Error(
            Code.MODEL_UNKNOWN,
            f"{shown} is not a model",
            because="a model has a name and a method stream(request)",
            hint=f"pass an instance that has both, or one of: {', '.join(SIMULATED)}",
        )
    return model
