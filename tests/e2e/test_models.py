"""Models of providers from the command line: what is missing is said, and with a key (and a provider on this machine)
it works.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure import Agent, Runtime
from tests.e2e.command import perdure
from tests.providers import spoken
from tests.providers.loopback import Answer, Asked, Loopback, answer, beside, events

NO_KEYS = {
    "OPENAI_API_KEY": "",
    "ANTHROPIC_API_KEY": "",
    "GOOGLE_API_KEY": "",
    "GEMINI_API_KEY": "",
    "AWS_BEARER_TOKEN_BEDROCK": "",
    "AWS_ACCESS_KEY_ID": "",
    "AWS_PROFILE": "",
}
AGENT = 'from perdure import Agent, Runtime\napp = Runtime(agents=[Agent("hello", model="sim:echo")])\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    return tmp_path


def test_a_missing_key_is_an_answer(folder: Path) -> None:
    ran = perdure("run", "agent:app", "--model", "openai:gpt-5.2", "hi", cwd=folder, env=NO_KEYS)
    assert ran.code == 2
    assert ran.err == (
        'error: no API key for provider "openai"\n'
        "  because  OPENAI_API_KEY is not set and perdure.toml has no [providers.openai]\n"
        "  hint     export OPENAI_API_KEY=…; or stay offline with the model sim:echo\n"
    )


async def test_a_turn_that_was_stopped_names_the_next_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with Runtime(folder / "app.db", agents=[Agent("a", model="openai:gpt-5.2")]) as rt:
        await (await (await rt.session("trip", agent="a")).send("hi")).result(10)
    why = perdure("why", "trip", "--db", "app.db", cwd=folder)
    assert "the last turn was stopped: provider_error" in why.out
    assert "then send the input again, with a new key" in why.out
    refused = perdure("sessions", "retry", "trip", "--db", "app.db", cwd=folder)
    assert refused.code == 4
    assert 'perdure run TARGET "…" --session trip --db app.db' in refused.err


@pytest.mark.parametrize(
    "model", ["openai:gpt-5.2", "anthropic:claude-haiku-4-5", "google:gemini-2.5-flash", "bedrock:x"]
)
def test_the_demo_says_what_is_missing(folder: Path, model: str) -> None:
    ran = perdure("demo", "--auto", "--model", model, cwd=folder, env=NO_KEYS)
    assert ran.code == 2
    assert f'error: no API key for provider "{model.partition(":")[0]}"' in ran.err
    assert perdure("demo", "--model", model, cwd=folder, env=NO_KEYS).code == 2
    assert not (folder / ".perdure" / "demo.db").exists()


def test_an_unknown_model_lists_what_there_is(folder: Path) -> None:
    ran = perdure("run", "agent:app", "--model", "opanai:gpt-5.2", "hi", cwd=folder)
    assert ran.code == 2
    assert "unknown model 'opanai:gpt-5.2'" in ran.err
    assert "did you mean openai:gpt-5.2?" in ran.err


def test_with_a_key_it_answers(folder: Path) -> None:
    with beside(Loopback(always=lambda _: spoken.reply("openai", "Hello", " there"))) as server:
        env = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{server.url}/v1"}
        ran = perdure("run", "agent:app", "--model", "openai:gpt-5.2", "hi", cwd=folder, env=env)
    assert ran.code == 0, ran.err
    assert "Hello there" in ran.out
    assert server.asked[0].headers["authorization"] == "Bearer sk-test"


def test_a_compatible_server_needs_an_address_and_no_key(folder: Path) -> None:
    model = ("--model", "openai-compatible:llama3.2")
    missing = perdure("run", "agent:app", *model, "hi", cwd=folder)
    assert missing.code == 2
    assert 'no address for provider "openai-compatible"' in missing.err
    with beside(Loopback(always=lambda _: spoken.reply("openai-compatible", "Hello"))) as server:
        ran = perdure("run", "agent:app", *model, "--base-url", f"{server.url}/v1", "hi", cwd=folder)
    assert ran.code == 0, ran.err
    assert "Hello" in ran.out


@pytest.mark.slow
def test_a_key_in_the_file_is_found(folder: Path) -> None:
    with beside(Loopback(always=lambda _: spoken.reply("anthropic", "Hello"))) as server:
        (folder / "perdure.toml").write_text(f'[providers.anthropic]\napi_key = "k1"\nbase_url = "{server.url}"\n')
        ran = perdure("run", "agent:app", "--model", "anthropic:claude-haiku-4-5", "hi", cwd=folder, env=NO_KEYS)
    assert ran.code == 0, ran.err
    assert any(value.endswith("k1") for value in server.asked[0].headers.values())


def test_s06_a_cloned_folder_gets_neither_key_nor_conversation(folder: Path) -> None:
    with beside(Loopback(always=lambda _: spoken.reply("openai", "Hello"))) as server:
        (folder / "perdure.toml").write_text(f'[providers.openai]\nbase_url = "{server.url}/v1"\n')
        env = {"OPENAI_API_KEY": "sk-canary"}
        ran = perdure("run", "agent:app", "--model", "openai:gpt-5.2", "my private question", cwd=folder, env=env)
        listed = perdure("models", "list", cwd=folder, env=env)
    assert "is not used with the key of OPENAI_API_KEY" in ran.err
    assert ran.code != 0
    assert not server.asked
    assert listed.code == 0
    assert "refused" in listed.out


def traveller(asked: Asked) -> Answer:
    """A model that books: it searches, pays, mails and reports, by what has happened so far."""
    done = [one for one in asked.json["messages"] if one["role"] == "tool"]
    steps = (
        ("search_flights", {"city": "Lisbon"}),
        ("charge_card", {"amount_cents": 18_900, "description": "Lisbon"}),
        ("send_email", {"to": "you@example.com", "subject": "Lisbon"}),
    )
    if len(done) == len(steps):
        return spoken.reply("openai-chat", "Booked.")
    name, args = steps[len(done)]
    function = {"name": name, "arguments": json.dumps(args)}
    call = {"index": 0, "id": f"call_{len(done)}", "type": "function", "function": function}
    piece = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    said = {"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}
    return events({**piece, "choices": [said]}, done=True)


@pytest.mark.slow
@pytest.mark.crash
def test_the_demo_survives_its_kills_with_a_model_of_a_provider(folder: Path) -> None:
    with beside(Loopback(always=traveller)) as server:
        env = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{server.url}/v1"}
        ran = perdure("demo", "--auto", "--model", "openai-chat:gpt-4o", cwd=folder, env=env)
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.count("OK") == 2


@pytest.mark.slow
def test_the_demo_says_what_the_provider_said(folder: Path) -> None:
    wrong = spoken.error("openai", "Incorrect API key provided", code="invalid_api_key", status=401)
    with beside(Loopback(always=lambda _: answer(wrong, status=401))) as server:
        env = {"OPENAI_API_KEY": "sk-wrong\n", "OPENAI_BASE_URL": f"{server.url}/v1"}
        ran = perdure("demo", "--auto", "--kill-at", "pre-charge", "--model", "openai:gpt-5.2", cwd=folder, env=env)
    assert ran.code == 1
    assert "FAIL: the booking ended as stopped (provider_error): auth: Incorrect API key provided\n" in ran.out
    assert server.asked[0].headers["authorization"] == "Bearer sk-wrong", "a key from a file ends with its line"


def test_a_blank_key_is_none(folder: Path) -> None:
    ran = perdure("demo", "--auto", "--model", "openai:gpt-5.2", cwd=folder, env={"OPENAI_API_KEY": "  "})
    assert ran.code == 2
    assert 'error: no API key for provider "openai"' in ran.err
