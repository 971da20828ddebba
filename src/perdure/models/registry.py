"""From the name of a model to the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from perdure.errors import Code, Error
from perdure.models.protocol import Model
from perdure.models.providers.names import PROVIDERS
from perdure.models.providers.provided import ProviderModel, provider_model
from perdure.models.simulated import EchoModel, TravelModel

SIMULATED: Mapping[str, Callable[[], Model]] = {"sim:echo": EchoModel, "sim:travel": TravelModel}


def resolve(spec: str | Model) -> Model:
    """The model a specification names; a model is itself. One of a provider needs its key only when it is asked.

    Raises:
        Error: `model_unknown`, listing what exists.
    """
    if not isinstance(spec, str):
        return _checked(spec)
    if make := SIMULATED.get(spec):
        return make()
    if provided := provider_model(spec):
        return provided
    simulated, providers = ", ".join(SIMULATED), ", ".join(f"{name}:…" for name in PROVIDERS)
    raise Error(
        Code.MODEL_UNKNOWN,
        f"there is no model {spec!r}",
        because=f"the models are: {simulated}, {providers}",
        hint=_meant(spec) or "stay offline with --model sim:echo, or pass your own Model object",
        model=spec,
    )


def _meant(spec: str) -> str:
    """What somebody may have wanted to write."""
    word, _, model = spec.partition(":")
    if word in PROVIDERS:
        return f"name the model as the provider does, such as {word}:{model.strip() or 'some-model'}"
    known = [*SIMULATED, *(f"{name}:{model}" for name in PROVIDERS if word != "sim")]
    near = get_close_matches(spec, known, n=1)
    return f"did you mean {near[0]}?" if near else ""


async def check_ready(model: Model) -> None:
    """Whether a model could be asked from here: one of a provider needs its SDK and a key.

    Raises:
        Error: `model_key_missing`, `model_package_missing`.
    """
    if isinstance(model, ProviderModel):
        await model.check()


def at_address(spec: str, base_url: str) -> Model:
    """A model of a provider that is reached at this address.

    Raises:
        Error: `model_unknown`; `invalid_argument` if it is no model of a provider.
    """
    model = resolve(spec)
    if not isinstance(model, ProviderModel):
        raise Error(Code.INVALID_ARGUMENT, f"{spec} has no address", because="it is not a model of a provider")
    return model.at(base_url)


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
