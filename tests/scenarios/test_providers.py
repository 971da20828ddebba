"""Tools of a provider, in the one loop there is: offered, prepared, run, retried and recovered like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from perdure import Agent, DidNotHappen, OutcomeUnknown, Runtime, RuntimeOptions, ToolError, tool
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.tools.prepare import ToolPrepareContext
from perdure.tools.provider import ProviderContext, ToolProvider
from perdure.tools.verdicts import Verdict
from perdure.vocab.effects import CallTool, PreparedToolCall
from perdure.vocab.messages import Message, ToolCall, ToolResultPart
from perdure.vocab.outcomes import Failed, FailureDetail, Success
from perdure.vocab.records import EffectStarted
from perdure.vocab.tools import Durability, EffectClass, RetryPolicy, ToolContract, ToolManifest
from tests.scenarios.conftest import App, NewStore

pytestmark = pytest.mark.any_store

CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

Hook = Callable[[ToolPrepareContext, PreparedToolCall], object]


class Weather(ToolProvider):
    """A source of one or more tools; what it does is up to the test."""

    def __init__(
        self,
        *manifests: ToolManifest,
        hook: Hook | None = None,
        run: Callable[[str, Json, ProviderContext[object]], Awaitable[object]] | None = None,
    ) -> None:
        self.manifests = list(manifests or (ToolManifest(name="look", durability=Durability(effect="pure")),))
        self.schemas: dict[str, Json] = {one.name: CITY for one in self.manifests}
        self.hook = hook
        self.run = run
        self.ran: list[tuple[str, Json, Json, str]] = []

    def tool_manifests(self) -> Sequence[ToolManifest]:
        return self.manifests

    def resolve_contract(self, name: str) -> ToolContract | None:
        manifest = next((one for one in self.manifests if one.name == name), None)
        schema = self.schemas.get(name)
        return manifest.contract(schema) if manifest and schema else None

    async def execute(self, name: str, args: Json, ctx: ProviderContext[object]) -> object:
        self.ran.append((name, args, ctx.prepared_payload, ctx.idempotency_key))
        return await self.run(name, args, ctx) if self.run else f"{name} in {args['city']}"


class Preparing(Weather):
    """The same, with a hook."""

    def prepare_tool_call(self, ctx: ToolPrepareContext, call: PreparedToolCall) -> Json:
        assert self.hook
        return self.hook(ctx, call)


def durable(effect: EffectClass, **how: Json) -> Durability:
    return Durability(effect=effect, **how)


def results(history: tuple[Message, ...]) -> list[ToolResultPart]:
    return [part for message in history for part in message.parts if isinstance(part, ToolResultPart)]


async def asked(rt: Runtime, text: str = "go", **plugin_input: Json) -> list[ToolResultPart]:
    session = await rt.session("s", agent="a")
    sent = await session.send(text, plugin_input=plugin_input)
    assert (await sent.result(20)).status == "finished"
    return results(await session.messages())


async def test_a_providers_tools_stand_where_it_stands_among_the_others(app: App) -> None:
    @tool(effect="pure")
    def first() -> str:
        """First."""
        return "1"

    @tool(effect="pure")
    def last() -> str:
        """Last."""
        return "9"

    offer = Weather(ToolManifest(name="look", description="Look."), ToolManifest(name="ask", id="weather/ask"))
    model = ScriptedModel(calls(call("look", city="Rome"), call("ask", city="Oslo")), say("ok"))
    rt = await app.open(model, first, offer, last)
    found = await asked(rt)
    assert [definition.name for definition in model.requests[0].tools] == ["first", "look", "ask", "last"]
    assert [result.output for result in found] == ["look in Rome", "ask in Oslo"]
    session = await rt.session("s")
    started = [row.record for row in await session.journal() if isinstance(row.record, EffectStarted)]
    assert [one.effect for one in started if one.id.startswith("c")] == ["once", "once"], "unmarked is once"


async def test_arguments_that_break_the_schema_are_told_and_nothing_runs(app: App) -> None:
    offer = Weather()
    rt = await app.open(ScriptedModel(calls(call("look"), call("look", city=7)), say("ok")), offer)
    found = await asked(rt)
    assert [result.output["code"] for result in found] == ["invalid_tool_args"] * 2
    assert "'city' is a required property" in found[0].output["error"]
    assert "$.city: 7 is not of type 'string'" in found[1].output["error"]
    assert offer.ran == []


async def test_membership_and_a_contract_are_what_makes_a_tool_callable(app: App) -> None:
    offer = Weather(
        ToolManifest(name="look"), ToolManifest(name="vague"), ToolManifest(name="hidden", activation="internal")
    )
    del offer.schemas["vague"]
    model = ScriptedModel(calls(call("vague", city="x"), call("hidden", city="x"), call("nothing")), say("ok"))
    found = await asked(await app.open(model, offer))
    assert [definition.name for definition in model.requests[0].tools] == ["look"]
    codes = [result.output["code"] for result in found]
    assert codes == ["tool_contract_unavailable", "tool_unavailable", "tool_unavailable"]
    assert offer.ran == []


async def test_a_provider_that_fails_costs_its_own_tools_and_nothing_else(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    class Fragile(Weather):
        broken = False

        def tool_manifests(self) -> Sequence[ToolManifest]:
            if self.broken:
                raise RuntimeError("the server is away")
            return super().tool_manifests()

    @tool(effect="pure")
    def here() -> str:
        """Here."""
        return "yes"

    offer = Fragile()
    model = ScriptedModel(calls(call("look", city="Rome"), call("here")), say("ok"))
    rt = await app.open(model, offer, here)
    offer.broken = True
    found = await asked(rt)
    assert [definition.name for definition in model.requests[0].tools] == ["here"]
    assert found[0].output["code"] == "tool_unavailable"
    assert found[1].output == "yes"
    assert "listing tools failed" in caplog.text


async def test_a_provider_that_is_away_for_a_moment_is_asked_again(app: App) -> None:
    class Flaky(Weather):
        asked = 0

        def resolve_manifest(self, name: str) -> ToolManifest | None:
            self.asked += 1
            if self.asked <= 2:
                raise ConnectionError("secret address")
            return super().resolve_manifest(name)

    retry = RetryPolicy(kind="safe", max_attempts=3, base_delay_ms=1)
    offer = Flaky(ToolManifest(name="look", durability=Durability(retry=retry)))
    found = await asked(await app.open(ScriptedModel(call("look", city="Rome"), say("ok")), offer))
    assert found[0].output == "look in Rome"
    assert offer.asked == 3
    assert len(offer.ran) == 1


async def test_provider_errors_are_handled_like_tool_errors(app: App) -> None:
    async def run(name: str, args: Json, ctx: ProviderContext[object]) -> object:
        match args["city"]:
            case "told":
                raise ToolError("no such city", code="no_city")
            case "unknown":
                raise OutcomeUnknown("the line went dead")
            case _:
                raise ValueError("secret")

    offer = Weather(ToolManifest(name="look"), run=run)
    steps = calls(*(call("look", city=city) for city in ("told", "unknown", "secret")))
    found = await asked(await app.open(ScriptedModel(steps, say("ok")), offer))
    assert [result.output["code"] for result in found] == ["no_city", "outcome_unknown", "internal_error"]
    assert "secret" not in found[2].output["error"]


# --- preparation ---------------------------------------------------------------------------------------------------


class Trip:
    """The payload that the hook of `reserving` prepares."""

    @staticmethod
    def hook(ctx: ToolPrepareContext, call: PreparedToolCall) -> object:
        return sealed(call, {"city": call.args["city"].upper(), "for": ctx.plugin_input("crm", dict[str, int])})


def sealed(call: PreparedToolCall, payload: Json) -> PreparedToolCall:
    return PreparedToolCall(
        call_id=call.call_id, tool_id=call.tool_id, tool_name=call.tool_name, args=call.args, prepared_payload=payload
    )


@pytest.mark.parametrize("is_async", [False, True])
async def test_prepared_payload_reaches_the_tool_and_the_log(app: App, is_async: bool) -> None:
    async def later(ctx: ToolPrepareContext, call: PreparedToolCall) -> object:
        snapshot = await ctx.session_snapshot()
        names = [one["name"] for one in await ctx.tool_catalog()]
        assert (snapshot.session_id, snapshot.turns, names) == ("s", 1, ["look"])
        assert ctx.turn_context.turn_id == snapshot.open_turn
        return Trip.hook(ctx, call)

    offer = Preparing(ToolManifest(name="look"), hook=later if is_async else Trip.hook)
    rt = await app.open(ScriptedModel(call("look", city="Rome"), say("ok")), offer)
    await asked(rt, crm={"id": 7})
    [(_, _, payload, _)] = offer.ran
    assert payload == {"city": "ROME", "for": {"id": 7}}
    rows = await (await rt.session("s")).journal()
    [start] = [row.record for row in rows if isinstance(row.record, EffectStarted) and row.record.id == "c1.0.1"]
    assert isinstance(start.command, CallTool)
    assert start.command.call.prepared_payload == payload


async def test_async_hook_runs_after_its_reply_is_durable(app: App) -> None:
    seen: list[str] = []

    async def later(ctx: ToolPrepareContext, call: PreparedToolCall) -> object:
        seen.extend(part.id for part in (await ctx.session_snapshot()).messages[1].parts if isinstance(part, ToolCall))
        return call

    offer = Preparing(ToolManifest(name="look"), hook=later)
    await asked(await app.open(ScriptedModel(call("look", city="Rome"), say("ok")), offer))
    assert len(seen) == len(offer.ran) == 1


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Success(value="known"), "known"),
        (Failed(failure=FailureDetail(code="closed", message="no")), {"code": "closed", "error": "no"}),
    ],
)
async def test_preparation_may_answer_without_running_anything(app: App, answer: Success | Failed, told: Json) -> None:
    offer = Preparing(ToolManifest(name="look"), hook=lambda ctx, call: answer)
    found = await asked(await app.open(ScriptedModel(call("look", city="Rome"), say("ok")), offer))
    assert found[0].output == told
    assert offer.ran == []


def drift(ctx: ToolPrepareContext, call: PreparedToolCall) -> object:
    return PreparedToolCall(call_id=call.call_id, tool_id="tool:refund", tool_name="refund", args=call.args)


def visible(ctx: ToolPrepareContext, call: PreparedToolCall) -> object:
    raise ToolError("ask again tomorrow", code="closed")


def hidden(ctx: ToolPrepareContext, call: PreparedToolCall) -> object:
    raise ValueError("secret")


async def hidden_later(ctx: ToolPrepareContext, call: PreparedToolCall) -> object:
    raise ValueError("secret")


def nonsense(ctx: ToolPrepareContext, call: PreparedToolCall) -> object:
    return "yes"


def unstorable(ctx: ToolPrepareContext, call: PreparedToolCall) -> object:
    return sealed(call, {"at": float("nan")})


def other_args(ctx: ToolPrepareContext, call: PreparedToolCall) -> object:
    return PreparedToolCall(call_id=call.call_id, tool_id=call.tool_id, tool_name=call.tool_name, args={"city": 7})


@pytest.mark.parametrize(
    ("hook", "code"),
    [
        (drift, "prepared_tool_id_mismatch"),
        (visible, "closed"),
        (hidden, "tool_prepare_failed"),
        (hidden_later, "tool_prepare_failed"),
        (nonsense, "tool_prepare_failed"),
        (unstorable, "tool_prepare_failed"),
        (other_args, "invalid_tool_args"),
    ],
)
async def test_a_preparation_that_goes_wrong_is_a_known_failure(app: App, hook: Hook, code: str) -> None:
    offer = Preparing(ToolManifest(name="look"), hook=hook)
    rt = await app.open(ScriptedModel(call("look", city="Rome"), say("ok")), offer)
    found = await asked(rt)
    assert found[0].output["code"] == code
    assert "secret" not in found[0].output["error"]
    assert offer.ran == []
    rows = await (await rt.session("s")).journal()
    assert not [row for row in rows if isinstance(row.record, EffectStarted) and row.record.id.startswith("c")]


async def test_a_retried_attempt_gets_the_payload_that_was_sealed_first(app: App) -> None:
    tickets = iter(range(9))

    async def run(name: str, args: Json, ctx: ProviderContext[object]) -> object:
        if ctx.attempt < 3:
            raise ToolError("busy", retry_safe=True)
        return ctx.decode_prepared_payload(int)

    retry = RetryPolicy(kind="safe", max_attempts=3, base_delay_ms=1)
    offer = Preparing(
        ToolManifest(name="look", durability=Durability(retry=retry)),
        hook=lambda ctx, call: sealed(call, next(tickets)),
        run=run,
    )
    found = await asked(await app.open(ScriptedModel(call("look", city="Rome"), say("ok")), offer))
    assert found[0].output == 0
    assert [payload for _, _, payload, _ in offer.ran] == [0, 0, 0]
    assert len({key for *_, key in offer.ran}) == 1


async def test_a_cancelled_turn_does_not_wait_for_a_preparation(app: App) -> None:
    reached = asyncio.Event()

    async def never(ctx: ToolPrepareContext, call: PreparedToolCall) -> object:
        reached.set()
        await asyncio.Event().wait()
        return call

    offer = Preparing(ToolManifest(name="look"), hook=never)
    rt = await app.open(ScriptedModel(call("look", city="Rome"), say("ok")), offer)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await reached.wait()
    await session.cancel()
    assert (await sent.result(10)).reason == "cancelled"
    assert results(await session.messages())[0].output["code"] == "cancelled", "the call was never dispatched"
    assert offer.ran == []


async def handed_over(new_store: NewStore, first: ToolProvider, second: ToolProvider, begun: asyncio.Event) -> Json:
    """A worker stops in the middle of the call; another one goes on."""
    steps = (call("look", city="Rome"), say("ok"))
    agent = Agent("a", model=ScriptedModel(*steps), tools=[first])
    async with Runtime(new_store(), agents=[agent], options=RuntimeOptions(drain_s=0)) as rt:
        session = await rt.session("s", agent="a")
        await session.send("go", key="k")
        await asyncio.wait_for(begun.wait(), 10)
    agent = Agent("a", model=ScriptedModel(*steps), tools=[second])
    async with Runtime(new_store(), agents=[agent]) as rt:
        session = await rt.session("s")
        await (await session.send("go", key="k")).result(10)
        return results(await session.messages())[0].output


async def test_repeated_call_receives_the_first_prepared_payload(new_store: NewStore) -> None:
    begun = asyncio.Event()

    async def hang(name: str, args: Json, ctx: ProviderContext[object]) -> object:
        begun.set()
        await asyncio.Event().wait()
        return None

    look = ToolManifest(name="look", durability=durable("idempotent"))
    first = Preparing(look, hook=lambda ctx, call: sealed(call, "first"), run=hang)
    second = Preparing(look, hook=lambda ctx, call: sealed(call, "second"))
    assert await handed_over(new_store, first, second, begun) == "look in Rome"
    assert [payload for _, _, payload, _ in second.ran] == ["first"]


async def test_tool_with_a_changed_id_does_not_run(new_store: NewStore) -> None:
    begun = asyncio.Event()

    async def hang(name: str, args: Json, ctx: ProviderContext[object]) -> object:
        begun.set()
        await asyncio.Event().wait()
        return None

    first = Weather(ToolManifest(name="look", durability=durable("idempotent")), run=hang)
    second = Weather(ToolManifest(name="look", id="elsewhere/look", durability=durable("idempotent")))
    told = await handed_over(new_store, first, second, begun)
    assert told["code"] == "prepared_tool_id_mismatch"
    assert second.ran == []


async def test_a_providers_probe_settles_its_doubt_with_the_sealed_payload(app: App) -> None:
    class Probed(Preparing):
        async def probe(self, tool_id: str, ctx: ProviderContext[object]) -> Verdict:
            asked_about.append((tool_id, ctx.prepared_payload, ctx.idempotency_key))
            return DidNotHappen()

    asked_about: list[tuple[str, Json, str]] = []

    async def run(name: str, args: Json, ctx: ProviderContext[object]) -> object:
        raise OutcomeUnknown("the line went dead")

    offer = Probed(
        ToolManifest(name="look", durability=durable("once", doubt="probe")),
        hook=lambda ctx, call: sealed(call, "ticket"),
        run=run,
    )
    found = await asked(await app.open(ScriptedModel(call("look", city="Rome"), say("ok")), offer))
    assert found[0].output["code"] == "outcome_unknown", "this very process may still do it"
    assert asked_about == [("tool:look", "ticket", offer.ran[0][3])]
