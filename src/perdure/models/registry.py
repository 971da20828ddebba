"""Resolution of model names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from perdure.errors import Code, Error
from perdure.models.protocol import Model
from perdure.models.providers.names import PROVIDERS
from perdure.models.simulated import EchoModel, TravelModel

# How the models of a provider begin, for a name without its provider.
FAMILIES = {"gpt-": "openai", "o3": "openai", "o4": "openai", "claude-": "anthropic", "gemini-": "google"}

SIMULATED: Mapping[str, Callable[[], Model]] = {"sim:echo": EchoModel, "sim:travel": TravelModel}


def resolve(spec: str | Model) -> Model:
    """Return the model that a specification names. A provider's model needs its key only when it is called.

    Raises:
        Error: `model_unknown`, listing the known models.
    """
    if not isinstance(spec, str):
        return _checked(spec)
    if make := SIMULATED.get(spec):
        return make()
    from perdure.models.providers.provided import provider_model  # the simulated models need none of it

    if provided := provider_model(spec):
        return provided
    simulated, providers = ", ".join(SIMULATED), ", ".join(f"{name}:…" for name in PROVIDERS)
    raise Error(
        Code.MODEL_UNKNOWN,
        f"unknown model {spec!r}",
        because=f"the known models are {simulated}, {providers}",
        hint=_meant(spec) or "name one of them, or pass your own Model object; sim:echo works offline",
        model=spec,
    )


def _meant(spec: str) -> str:
    """Return a hint with the name that was probably meant, or an empty string."""
    word, _, model = spec.partition(":")
    if word in PROVIDERS:
        return f"name the model as the provider does, such as {word}:{model.strip() or 'some-model'}"
    if family := next((FAMILIES[begins] for begins in FAMILIES if spec.startswith(begins)), None):
        return f"did you mean {family}:{spec}?"
    known = [*SIMULATED, *(f"{name}:{model}" for name in PROVIDERS if word != "sim")]
    near = get_close_matches(spec, known, n=1)
    return f"did you mean {near[0]}?" if near else ""


async def check_ready(model: Model) -> None:
    """Raise if a model cannot be called from here: a provider's model needs its SDK and a key.

    Raises:
        Error: `model_key_missing`, `model_package_missing`.
    """
    from perdure.models.providers.provided import ProviderModel

    if isinstance(model, ProviderModel):
        await model.check()


def at_address(spec: str, base_url: str) -> Model:
    """Return a provider's model at another base URL.

    Raises:
        Error: `model_unknown`; `invalid_argument` for other models.
    """
    from perdure.models.providers.provided import ProviderModel

    model = resolve(spec)
    if not isinstance(model, ProviderModel):
        raise Error(Code.INVALID_ARGUMENT, f"{spec} has no address", because="only models of providers have one")
    return model.at(base_url)


def _checked(model: Model) -> Model:
    # Untyped callers pass other things too: a class instead of its instance, or the client of a library.
    if isinstance(model, type) or not callable(getattr(model, "stream", None)) or not hasattr(model, "name"):
        shown = model.__name__ if isinstance(model, type) else type(model).__name__
        raise Error(
            Code.MODEL_UNKNOWN,
            f"{shown} is not a model",
            because="a model has a name and a method stream(request)",
            hint=f"pass an instance that has both, or one of: {', '.join(SIMULATED)}",
        )
    return model
