"""`perdure usage` and `perdure models`, as a user types them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Agent, Runtime
from perdure.models.scripted import ScriptedModel, say
from perdure.vocab.usage import Usage
from tests.e2e.command import in_this_process, perdure
from tests.e2e.test_models import NO_KEYS
from tests.providers import spoken
from tests.providers.loopback import Loopback, beside

pytestmark = pytest.mark.timeout(300)

PRICED = Usage(input=1_200, output=300, cache_read=4_000, reasoning=50, calls=1, cost_nano=4_100_000, priced=1)
UNPRICED = Usage(input=10, output=5, calls=1)
APP = """
from perdure import Agent, Runtime
from perdure.runtime.models import ModelSources
from perdure.services.llm import ModelWithProvider, ProviderCredentials
from perdure.services.secrets import Secret


class Host:
    async def get_model_with_provider(self, model_id):
        return ModelWithProvider("gpt-5.2", "openai") if model_id == "house" else None

    async def get_default_model(self):
        return ModelWithProvider("claude-haiku-4-5", "anthropic")

    async def get_default_provider_credentials(self, provider_type):
        return ProviderCredentials(Secret("sk-of-the-host")) if provider_type == "anthropic" else None


agents = [Agent("plain", model="sim:echo"), Agent("open", model=None), Agent("house", model="openai:gpt-5.2")]
app = Runtime(agents=agents)
hosted = Runtime(agents=agents, model_sources=ModelSources(providers=Host(), credentials=Host()))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with two sessions, one of which asked a model whose price is not known."""
    (tmp_path / "agent.py").write_text(APP)

    async def make() -> None:
        priced = Agent("a", model=ScriptedModel.by_input({}, default=[say("hello", usage=PRICED)]))
        unpriced = Agent("b", model=ScriptedModel.by_input({}, default=[say("hi", usage=UNPRICED)]))
        async with Runtime(f"sqlite:///{tmp_path / 's.db'}", agents=[priced, unpriced]) as rt:
            for _ in range(2):
                await (await rt.session("customer-1", agent="a")).ask("hi")
            await (await rt.session("customer-2", agent="b")).ask("hi")

    asyncio.run(make())
    return tmp_path


def test_tokens_and_money_are_shown_and_an_unknown_price_is_said(folder: Path) -> None:
    ran = perdure("usage", "--db", "s.db", cwd=folder)
    assert ran.code == 0, ran.err
    assert ran.out == (
        "SESSION     AGENT  CALLS  INPUT  CACHE READ  CACHE WRITE  OUTPUT  REASONING       COST\n"
        "customer-1  a          2  2,400       8,000            -     600        100    $0.0082\n"
        "customer-2  b          1     10           -            -       5          -    unknown\n"
        "total                  3  2,410       8,000            -     605        100  ≥ $0.0082\n"
    )
    assert ran.err == "The price of 1 call is unknown, so the true cost is higher.\n2 sessions, 17 records read.\n"


def test_programs_get_every_bucket_and_no_invented_price(folder: Path) -> None:
    one, two, total = perdure("usage", "--by", "agent", "--db", "s.db", "--json", cwd=folder).objects
    assert (one["name"], one["cost_usd"], one["tokens"]) == ("a", "0.0082", 11_100)
    assert (two["name"], two["cost_usd"], two["known_cost_usd"]) == ("b", None, "0")
    assert (total["type"], total["cost_usd"], total["known_cost_usd"]) == ("usage_total", None, "0.0082")
    buckets = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
    assert [total[name] for name in buckets] == [2_410, 8_000, 0, 605, 100]
    assert total["tokens"] == 2_410 + 8_000 + 605 + 100
    [of_one, _] = perdure("usage", "customer-1", "--db", "s.db", "--json", cwd=folder).objects
    assert (of_one["name"], of_one["parent"]) == ("customer-1", None)


def test_invalid_arguments_are_refused(folder: Path) -> None:
    for args, code, what in (
        (("--by", "colour"), 2, "unknown grouping 'colour'"),
        (("--since", "whenever"), 2, "invalid time 'whenever'"),
        (("nobody",), 3, "unknown session 'nobody'"),
    ):
        ran = perdure("usage", *args, "--db", "s.db", cwd=folder)
        assert (ran.code, ran.out) == (code, "")
        assert what in ran.err
    assert perdure("usage", "--since", "2030-01-01", "--db", "s.db", cwd=folder).err == "No usage.\n"


def test_models_are_listed_with_where_they_come_from_and_no_key(folder: Path) -> None:
    env = {**NO_KEYS, "OPENAI_API_KEY": "sk-not-to-be-seen", "OPENAI_BASE_URL": "http://me:secret@localhost/v1"}
    ran = perdure("models", "list", "agent:app", "--json", cwd=folder, env=env)
    assert ran.code == 0, ran.err
    told = {(one["type"], one["name"], one.get("agent")): one for one in ran.objects}
    openai = told["provider", "openai", None]
    assert (openai["status"], openai["key_from"], openai["address"]) == (
        "ready",
        "OPENAI_API_KEY",
        "http://localhost/v1",
    )
    assert told["provider", "anthropic", None]["status"] == "no_key"
    assert told["provider", "anthropic", None]["hint"] == "export ANTHROPIC_API_KEY=…"
    assert told["provider", "openai-compatible", None]["status"] == "no_address"
    assert told["provider", "ollama", None]["status"] == "ready"
    assert (told["model", "sim:echo", "plain"]["origin"], told["model", None, "open"]["origin"]) == ("agent", "nobody")
    house = told["model", "openai:gpt-5.2", "house"]
    assert (house["status"], house["input_usd_per_million"], house["output_usd_per_million"]) == ("ready", "1.75", "14")
    for shown in (ran, perdure("models", "list", "agent:app", cwd=folder, env=env)):
        assert "not-to-be-seen" not in shown.out + shown.err
        assert "secret" not in shown.out + shown.err
    assert not (folder / ".perdure").exists(), "nothing is made to look at models"


def test_the_default_and_the_keys_of_a_host_are_told(folder: Path) -> None:
    env = {**NO_KEYS, "OPENAI_API_KEY": "sk-of-the-environment"}
    ran = perdure("models", "list", "agent:hosted", "--json", cwd=folder, env=env)
    told = {(one["type"], one["name"], one.get("agent")): one for one in ran.objects}
    assert told["model", "anthropic:claude-haiku-4-5", "open"]["origin"] == "host"
    assert told["model", "anthropic:claude-haiku-4-5", "open"]["status"] == "ready"
    assert told["provider", "anthropic", None]["key_from"] == "the application"
    assert told["provider", "openai", None]["status"] == "no_key", "a missing credential is not searched for"
    assert "sk-" not in ran.out + ran.err


def test_a_model_is_asked_once_to_see_whether_it_answers(folder: Path) -> None:
    with beside(Loopback(always=lambda _: spoken.reply("openai", "ready"))) as server:
        env = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{server.url}/v1"}
        ran = perdure("models", "test", "openai:gpt-5.2", "--json", cwd=folder, env=env)
    assert ran.code == 0, ran.err
    [told] = ran.objects
    assert (told["ok"], told["text"], len(server.asked)) == (True, "ready", 1)
    missing = perdure("models", "test", "openai:gpt-5.2", cwd=folder, env=NO_KEYS)
    assert (missing.code, 'no API key for provider "openai"' in missing.err) == (2, True)
    assert perdure("models", "test", "opanai:gpt-5.2", cwd=folder).code == 2
    assert perdure("models", "test", "sim:echo", cwd=folder).code == 0


def test_a_model_that_gives_no_reply_fails_with_why(folder: Path) -> None:
    nobody = "http://127.0.0.1:9/v1"
    ran = perdure("models", "test", "openai-compatible:m", "--base-url", nobody, cwd=folder)
    assert ran.code == 1
    assert "openai-compatible:m gave no reply" in ran.err


def test_a_provider_that_is_not_installed_says_how_to_get_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.models.providers import building

    real = building.find_spec

    def without_anthropic(name: str) -> object:
        return None if name == "anthropic" else real(name)

    monkeypatch.setattr(building, "find_spec", without_anthropic)
    monkeypatch.chdir(folder)
    told = {one["name"]: one for one in in_this_process("models", "list", "--json").objects}
    assert (told["anthropic"]["status"], told["anthropic"]["installed"]) == ("not_installed", False)
    assert told["anthropic"]["hint"] == "pip install 'perdure[anthropic]'"
    assert told["openai"]["installed"] is True
