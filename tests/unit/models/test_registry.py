from typing import cast

import pytest

from perdure.errors import Code, Error
from perdure.models.protocol import Model
from perdure.models.registry import resolve
from perdure.models.scripted import ScriptedModel, say
from perdure.models.simulated import EchoModel, TravelModel


def test_simulated_models_are_found_by_name() -> None:
    assert isinstance(resolve("sim:echo"), EchoModel)
    assert isinstance(resolve("sim:travel"), TravelModel)
    assert resolve("sim:travel").name == "sim:travel"


def test_a_model_is_itself() -> None:
    model = ScriptedModel(say("x"))
    assert resolve(model) is model


@pytest.mark.parametrize("spec", ["openai:gpt-9", "anthropic:x"])
def test_a_provider_is_told_to_come_later(spec: str) -> None:
    with pytest.raises(Error) as caught:
        resolve(spec)
    assert caught.value.code is Code.MODEL_UNKNOWN
    assert "later release" in caught.value.because
    assert "--model sim:echo" in caught.value.hint


@pytest.mark.parametrize("spec", ["", "sim:", "sim:nothing", "gpt", "sim:Echo"])
def test_an_unknown_name_lists_what_exists(spec: str) -> None:
    with pytest.raises(Error) as caught:
        resolve(spec)
    assert caught.value.code is Code.MODEL_UNKNOWN
    assert "sim:echo, sim:travel" in str(caught.value)


@pytest.mark.parametrize("thing", [None, 3, EchoModel, object()])
def test_what_is_not_a_model_is_refused(thing: object) -> None:
    with pytest.raises(Error, match="is not a model"):
        resolve(cast("Model", thing))
