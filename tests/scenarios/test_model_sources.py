"""Choice of the model: the input's, the agent's, the host's; with the host's keys and no others."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from perdure import Agent, Error, Runtime, ToolContext, tool
from perdure.errors import Code
from perdure.models.protocol import Model
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.models import ModelSources
from perdure.services.llm import ModelWithProvider, ProviderCredentials
from perdure.services.secrets import Secret
from perdure.vocab.records import EffectSettled, TurnEnded
from tests.providers import spoken
from tests.providers.loopback import Loopback
from tests.scenarios.conftest import NewStore

pytestmark = pytest.mark.any_store


@dataclass
class Host:
    """The models and keys of an application."""

    models: dict[str, ModelWithProvider] = field(default_factory=dict[str, ModelWithProvider])
    default: ModelWithProvider | None = None
    keys: dict[str, ProviderCredentials] = field(default_factory=dict[str, ProviderCredentials])

    async def get_model_with_provider(self, model_id: str) -> ModelWithProvider | None:
        return self.models.get(model_id)

    async def get_default_model(self) -> ModelWithProvider | None:
        return self.default

    async def get_default_provider_credentials(self, provider_type: str) -> ProviderCredentials | None:
        return self.keys.get(provider_type)


async def models_of(rt: Runtime, session: str) -> list[str]:
    rows = await core_of(rt).store.read(ref_of(rt.get_session(session)).stream)
    outcomes = [row.record.outcome for row in rows if isinstance(row.record, EffectSettled)]
    return [reply.model for one in outcomes if (reply := getattr(one, "reply", None))]


async def test_the_inputs_model_then_the_agents_then_the_hosts(new_store: NewStore) -> None:
    async with Loopback(always=lambda _: spoken.reply("openai-chat", "Hello")).running() as server:
        url = f"{server.url}/v1"
        host = Host(
            models={"house": ModelWithProvider("gpt-4o", "openai-chat", Secret("k-house"), url)},
            default=ModelWithProvider("gpt-4o-mini", "openai-chat", Secret("k-default"), url),
        )
        agents = [Agent("none", model=None), Agent("own", model="sim:echo")]
        sources = ModelSources(providers=host, credentials=host)
        async with Runtime(new_store(), agents=agents, model_sources=sources) as rt:
            none, own = await rt.session("n", agent="none"), await rt.session("o", agent="own")
            await none.ask("hi")
            await none.ask("hi", model="house")
            await own.ask("hi")
            await own.ask("hi", model="house")
            assert await models_of(rt, "n") == ["openai-chat:gpt-4o-mini", "house"]
            assert await models_of(rt, "o") == ["sim:echo", "house"]
            with pytest.raises(Error) as caught:
                await own.send("hi", model="nobody")
            assert caught.value.code is Code.MODEL_UNKNOWN
    used = [asked.headers["authorization"].removeprefix("Bearer ") for asked in server.asked]
    assert used == ["k-default", "k-house", "k-house"]
    assert [asked.json["model"] for asked in server.asked] == ["gpt-4o-mini", "gpt-4o", "gpt-4o"]


async def test_turn_without_any_model_names_the_remedy(new_store: NewStore) -> None:
    async with Runtime(new_store(), agents=[Agent("shop", model=None)]) as rt:
        ended = await (await (await rt.session("s", agent="shop")).send("hi")).result(10)
    assert (ended.status, ended.reason) == ("stopped", "provider_error")
    assert ended.hint == "Runtime(..., model_sources=ModelSources(providers=...)), or Agent(..., model='openai:...')"


async def test_host_without_a_key_uses_no_environment_key(new_store: NewStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-platform")
    host = Host()
    agents = [Agent("a", model="openai:gpt-5.2"), Agent("none", model=None)]
    async with Runtime(new_store(), agents=agents, model_sources=ModelSources(credentials=host)) as rt:
        for name, because in (("a", "no API key"), ("none", "no default")):
            session = await rt.session(name, agent=name)
            result = await (await session.send("hi")).result(30)
            assert (result.status, result.reason) == ("stopped", "provider_error")
            assert because in result.message


async def test_small_work_is_done_by_the_hosts_own_model(new_store: NewStore) -> None:
    @tool(effect="resumable")
    async def judge(ctx: ToolContext) -> str:
        """Judge."""
        return await ctx.complete("good?", source="judge", utility=True)

    small: Model = ScriptedModel(say("yes", exact=True), name="small")
    agent = Agent("a", model=ScriptedModel(call("judge"), say("done")), tools=[judge])
    async with Runtime(new_store(), agents=[agent], model_sources=ModelSources(utility=small)) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go")
        ledger = await session.usage_entries()
        assert [(one.source, one.model) for one in ledger] == [
            ("turn", "scripted"),
            ("direct:judge", "small"),
            ("turn", "scripted"),
        ]
        ended = [row.record for row in await session.journal() if isinstance(row.record, TurnEnded)]
        assert ended[0].usage == await session.usage()


async def test_without_such_a_model_a_tool_is_told(new_store: NewStore) -> None:
    @tool(effect="pure")
    async def judge(ctx: ToolContext) -> str:
        """Judge."""
        return await ctx.complete("good?", source="judge", utility=True)

    model = ScriptedModel(call("judge"), say("done"))
    async with Runtime(new_store(), agents=[Agent("a", model=model, tools=[judge])]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go")
    assert "no utility model" in str(model.requests[1].messages[-1].parts[0])


async def test_the_sessions_model_stands_between_the_inputs_and_the_agents(new_store: NewStore) -> None:
    agents = [Agent("a", model=ScriptedModel(say("by the agent's", exact=True)))]
    async with Runtime(new_store(), agents=agents) as rt, Runtime(new_store(), agents=agents, worker=False) as other:
        session = await rt.session("s", agent="a")
        assert await session.ask("one") == "by the agent's"
        await session.set_model("sim:echo")
        assert (await session.info()).model == "sim:echo"
        assert await session.ask("two") != "by the agent's"
        assert await session.ask("three", model="scripted") == "by the agent's"
        await session.ask("four")
        await other.get_session("s").set_model(None)
        sent = await other.get_session("s").send("five")
        assert (await sent.result(30)).text == "by the agent's", "also if another runtime sets it"
        await session.set_model("sim:echo")
    async with Runtime(new_store(), agents=agents) as rt:
        await rt.get_session("s").ask("six")
        assert await models_of(rt, "s") == ["scripted", "sim:echo", "scripted", "sim:echo", "scripted", "sim:echo"]
        with pytest.raises(Error) as caught:
            await rt.get_session("s").set_model("nobody:knows")
        assert caught.value.code is Code.MODEL_UNKNOWN
        with pytest.raises(Error) as caught:
            await rt.get_session("never").set_model("sim:echo")
        assert caught.value.code is Code.SESSION_UNKNOWN


async def test_a_turn_without_a_key_names_the_remedy(new_store: NewStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of `ask`, the result and `why` tell the reason and what to do, until another turn finishes."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with Runtime(new_store(), agents=[Agent("a", model="openai:gpt-5.2")]) as rt:
        session = await rt.session("s", agent="a")
        with pytest.raises(Error) as caught:
            await session.ask("hi")
        assert caught.value.code is Code.TURN_FAILED
        assert 'no API key for provider "openai"' in caught.value.because
        assert caught.value.hint == "export OPENAI_API_KEY=…; or stay offline with the model sim:echo"
        why = await session.why()
        assert why.status == "idle"
        assert why.summary.startswith("the last turn was stopped: provider_error: auth: no API key for provider")
        assert why.hint == f"{caught.value.hint}; then send the input again, with a new key"
        with pytest.raises(Error) as refused:
            await session.retry()
        assert (refused.value.code, refused.value.hint) == (Code.TURN_NOT_RETRYABLE, "await session.send(...)")
        await session.ask("hi", model="sim:echo")
        assert (await session.why()).summary == "nothing is waiting"
