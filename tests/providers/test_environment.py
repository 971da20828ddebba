"""S6: an address of the file gets the key beside it and nothing else of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.models.protocol import ModelError
from perdure.models.providers.credentials import LocalCredentials
from perdure.models.providers.names import PROVIDERS, Provider
from perdure.models.providers.provided import ProviderModel
from perdure.services.llm import ProviderCredentials
from perdure.services.secrets import Secret
from tests.providers.asking import KEY, ask, said
from tests.providers.loopback import Loopback

CANARY = "CANARY0123456789"
VARIABLES = {
    "ANTHROPIC_AUTH_TOKEN": CANARY,
    "ANTHROPIC_CUSTOM_HEADERS": f"x-secret: {CANARY}\nauthorization: {CANARY}",
    "OPENAI_API_KEY": CANARY,
    "OPENAI_CUSTOM_HEADERS": f"x-secret: {CANARY}\nauthorization: {CANARY}",
    "OPENAI_ORG_ID": CANARY,
    "OPENAI_PROJECT_ID": CANARY,
    "AWS_SECRET_ACCESS_KEY": CANARY,
    "AWS_SESSION_TOKEN": CANARY,
}
MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai": "gpt-5.2",
    "openai-chat": "gpt-4o",
    "google": "gemini-2.5-flash",
    "groq": "llama",
    "openrouter": "x/y",
    "bedrock": "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
}


async def sent(provider: str, credentials: ProviderCredentials) -> dict[str, str]:
    """Return the headers of the request of one model call."""

    async def given(_: Provider) -> ProviderCredentials:
        return credentials

    async with Loopback().running() as server:
        assert credentials.base_url is None
        model = ProviderModel(provider, PROVIDERS[provider], MODELS[provider], given).at(server.url)
        with pytest.raises(ModelError):
            await ask(model, said("hi"))
    return server.asked[0].headers


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "aws").write_text("[profile named]\nregion=us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


@pytest.mark.parametrize("provider", MODELS)
async def test_s06_variables_never_reach_the_address_of_a_foreign_key(provider: str) -> None:
    headers = await sent(provider, ProviderCredentials(Secret(KEY)))
    assert CANARY not in str(headers)


@pytest.mark.parametrize("bearer", ["", CANARY])
@pytest.mark.parametrize("named", ["AWS_PROFILE", "AWS_ACCESS_KEY_ID"])
async def test_s06_key_of_the_file_is_no_key_of_aws(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str, bearer: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "named")
    monkeypatch.setenv(named, "named")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", bearer)
    file = tmp_path / "perdure.toml"
    async with Loopback().running() as server:
        file.write_text(f'[providers.bedrock]\nbase_url = "{server.url}"\napi_key = "named"\n')

        async def given(provider: Provider) -> ProviderCredentials:
            return LocalCredentials(file=file).of(provider)

        with pytest.raises(ModelError):
            await ask(ProviderModel("b", PROVIDERS["bedrock"], MODELS["bedrock"], given), said("hi"))
    headers = server.asked[0].headers
    assert headers["authorization"] == "Bearer named"
    assert CANARY not in str(headers)


async def test_s06_variables_of_openai_reach_no_other_provider() -> None:
    headers = await sent("groq", ProviderCredentials(Secret(KEY), key_variable="GROQ_API_KEY"))
    assert CANARY not in str(headers)


async def test_s06_key_of_the_environment_keeps_the_variables_beside_it() -> None:
    headers = await sent("openai-chat", ProviderCredentials(Secret(KEY), key_variable="OPENAI_API_KEY"))
    assert headers["openai-organization"] == CANARY


async def test_s06_keys_of_aws_sign_requests_to_an_address_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    headers = await sent("bedrock", ProviderCredentials(Secret("AKIA"), key_variable="AWS_ACCESS_KEY_ID"))
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIA/")
