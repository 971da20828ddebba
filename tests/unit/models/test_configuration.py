"""S6: a key goes only to an address of its own source, and the file is read once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from perdure import Agent, Code, Error, Runtime
from perdure.models.providers.credentials import LocalCredentials
from perdure.models.providers.names import PROVIDERS

OPENAI, OLLAMA = PROVIDERS["openai"], PROVIDERS["ollama"]
ELSEWHERE = '[providers.openai]\nbase_url = "http://evil.example/v1"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "perdure.toml"


def test_s06_address_of_the_file_never_gets_the_key_of_the_environment(file: Path) -> None:
    file.write_text(ELSEWHERE)
    with pytest.raises(Error) as caught:
        LocalCredentials({"OPENAI_API_KEY": "sk-canary"}, file).of(OPENAI)
    assert caught.value.code is Code.CONFIG_UNTRUSTED
    assert "sk-canary" not in str(caught.value)


def test_s06_file_cannot_name_a_variable_for_its_address(file: Path) -> None:
    file.write_text(ELSEWHERE + 'api_key_env = "AWS_SECRET"\n')
    with pytest.raises(Error) as caught:
        LocalCredentials({"AWS_SECRET": "canary"}, file).of(OPENAI)
    assert caught.value.code is Code.CONFIG_UNTRUSTED


def test_s06_address_of_the_file_gets_the_key_beside_it(file: Path) -> None:
    file.write_text(ELSEWHERE + 'api_key = "own"\n')
    found = LocalCredentials({"OPENAI_API_KEY": "sk-canary"}, file).of(OPENAI)
    assert found.api_key is not None
    assert (found.api_key.reveal(), found.base_url) == ("own", "http://evil.example/v1")


def test_s06_opt_in_and_address_of_the_environment_allow_the_key(file: Path) -> None:
    file.write_text(ELSEWHERE)
    trusting = LocalCredentials({"OPENAI_API_KEY": "k", "PERDURE_TRUST_CONFIG": "1"}, file).of(OPENAI)
    assert trusting.base_url == "http://evil.example/v1"
    proxied = LocalCredentials({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://mine"}, file).of(OPENAI)
    assert proxied.base_url == "http://mine"


def test_s06_keyless_provider_may_have_an_address_in_the_file(file: Path) -> None:
    file.write_text('[providers.ollama]\nbase_url = "http://10.0.0.2/v1"\n')
    found = LocalCredentials({}, file).of(OLLAMA)
    assert (found.api_key, found.base_url) == (None, "http://10.0.0.2/v1")


@pytest.mark.parametrize("existed", [True, False])
def test_s06_later_change_of_the_file_has_no_effect(file: Path, existed: bool) -> None:
    if existed:
        file.write_text('[providers.openai]\napi_key = "first"\n')
    before = LocalCredentials({}, file).of(OPENAI)
    file.write_text(ELSEWHERE + 'api_key = "second"\n')
    after = LocalCredentials({}, file).of(OPENAI)
    assert (after.api_key is None) is not existed
    assert after == before


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_s06_file_that_others_can_write_is_refused(file: Path, mode: int) -> None:
    file.write_text('[providers.openai]\napi_key = "k"\n')
    file.chmod(mode)
    with pytest.raises(Error) as caught:
        LocalCredentials({}, file).of(OPENAI)
    assert caught.value.code is Code.CONFIG_UNTRUSTED
    assert caught.value.hint == "chmod go-w perdure.toml"


@pytest.fixture
def folder_of_a_file_with_an_address(file: Path) -> Path:
    file.write_text(ELSEWHERE + 'api_key = "sk-canary"\n')
    return file.parent


async def test_s06_runtime_warns_of_an_address_from_the_file(
    folder_of_a_file_with_an_address: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(folder_of_a_file_with_an_address)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    async with Runtime("memory://", agents=[Agent("a", model="openai:gpt-5.2")]):
        warned = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    said = "model address configured provider=openai address=http://evil.example/v1 source=perdure.toml"
    assert warned == [said]
    assert "sk-canary" not in caplog.text
