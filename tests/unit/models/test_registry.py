from typing import cast

import pytest

from perdure.errors import Code, Error
from perdure.models.protocol import Model
from perdure.models.providers import building
from perdure.models.providers.names import PROVIDERS
from perdure.models.registry import check_ready, resolve
from perdure.models.scripted import ScriptedModel, say
from perdure.models.simulated import EchoModel, TravelModel


def test_simulated_models_are_found_by_name() -> None:
    assert isinstance(resolve("sim:echo"), EchoModel)
    assert isinstance(resolve("sim:travel"), TravelModel)
    assert resolve("sim:travel").name == "sim:travel"


def test_a_model_is_itself() -> None:
    model = ScriptedModel(say("x"))
    assert resolve(model) is model


@pytest.mark.parametrize("spec", ["openai:gpt-9", "anthropic:x", "openai-compatible:a:b", "ollama:llama3.2"])
def test_a_model_of_a_provider_needs_no_key_until_it_is_asked(spec: str) -> None:
    assert resolve(spec).name == spec
    assert resolve(spec) is resolve(spec)


@pytest.mark.parametrize(
    ("spec", "near"), [("opena:gpt-9", "openai:gpt-9"), ("sim:eco", "sim:echo"), ("gpt-5.2", "openai:gpt-5.2")]
)
def test_a_name_that_is_nearly_right_is_corrected(spec: str, near: str) -> None:
    with pytest.raises(Error) as caught:
        resolve(spec)
    assert caught.value.hint == f"did you mean {near}?"


@pytest.mark.parametrize("spec", ["", "sim:", "sim:nothing", "gpt", "sim:Echo", "openai:", "openai: gpt"])
def test_an_unknown_name_lists_what_exists(spec: str) -> None:
    with pytest.raises(Error) as caught:
        resolve(spec)
    assert caught.value.code is Code.MODEL_UNKNOWN
    assert "sim:echo, sim:travel" in str(caught.value)


@pytest.mark.parametrize("thing", [None, 3, EchoModel, object()])
def test_object_that_is_no_model_is_refused(thing: object) -> None:
    with pytest.raises(Error, match="is not a model"):
        resolve(cast("Model", thing))


def test_an_sdk_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        try:
            raise ModuleNotFoundError("No module named 'anthropic'", name="anthropic")
        except ImportError as cause:
            raise ImportError("Please install it") from cause

    monkeypatch.setattr(building, "import_module", missing)
    with pytest.raises(Error) as caught:
        building.load(PROVIDERS["anthropic"])
    assert caught.value.code is Code.MODEL_PACKAGE_MISSING
    assert caught.value.because == "anthropic cannot be imported"
    assert caught.value.hint.startswith("pip install 'perdure[anthropic]'")


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("openai:", "name the model as the provider does, such as openai:some-model"),
        ("sim:ekho", "did you mean sim:echo?"),
        ("nobody:m", "name one of them, or pass your own Model object; sim:echo works offline"),
    ],
)
def test_a_name_that_is_none_gets_a_hint(model: str, hint: str) -> None:
    with pytest.raises(Error) as caught:
        resolve(model)
    assert (caught.value.code, caught.value.hint) == (Code.MODEL_UNKNOWN, hint)


async def test_a_missing_package_is_reported_before_a_missing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ModuleNotFoundError("No module named 'openai'", name="openai")

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(building, "import_module", missing)
    with pytest.raises(Error) as caught:
        await check_ready(resolve("openai:gpt-5.2"))
    assert caught.value.code is Code.MODEL_PACKAGE_MISSING
    assert "--model" not in caught.value.hint
