"""A model call that nobody wants any more was bought all the same: it is in the ledger once, exactly where its provider
told what it cost, and by an estimate where it did not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Literal

import pytest

from perdure import Agent, Runtime, RuntimeOptions, Session, ToolContext, ToolError, UsageLimits, tool
from perdure.codec import Json
from perdure.commit.plan import Plan, Receipt
from perdure.ids import EffectId
from perdure.models.protocol import JobBegun, ModelError, ModelEvent, ModelReply, ModelRequest, TextPiece
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.calls.runners import Runner
from perdure.runtime.turns.in_flight import InFlight
from perdure.runtime.turns.loop import TurnDriver
from perdure.store.protocol import Store
from perdure.testing import CrashReport, World, every_boundary
from perdure.tools.clients.completions import DirectRequest
from perdure.tools.context import completions_of
from perdure.vocab.messages import Text
from perdure.vocab.outcomes import DirectOutcome, LlmError
from perdure.vocab.records import CancelRequested
from perdure.vocab.tools import EffectClass
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import App, NewStore

TEN = Usage(input=6, output=4, calls=1)
THIRTY = "thirty characters are written."


class Writer:
    """Writes thirty characters, then nothing for ever; or the reply, if it is stubborn and stopped, or has no time."""

    name = "writer"

    def __init__(self, *, stubborn: bool = False, job: Json = None, waits: bool = True) -> None:
        self.wrote = asyncio.Event()
        self._stubborn = stubborn
        self._job = job
        self._waits = waits

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if self._job is not None:
            yield JobBegun(self._job)
        yield TextPiece(THIRTY)
        self.wrote.set()
        try:
            await asyncio.sleep(3600 if self._waits else 0)
        except asyncio.CancelledError:
            if not self._stubborn:
                raise
        yield ModelReply(parts=(Text(text=THIRTY),), finish="stop", usage=TEN, model="writer")


async def bought(session: Session) -> list[tuple[str, Usage]]:
    """The ledger of a session, which adds up to its usage."""
    ledger = await session.usage_entries()
    assert sum((one.usage for one in ledger), Usage()) == await session.usage()
    return [(one.effect, one.usage) for one in ledger]


@pytest.mark.parametrize("job", [None, "job_1"])
async def test_a_call_that_is_cancelled_while_it_writes_is_estimated(app: App, job: Json) -> None:
    model = Writer(job=job)
    session = await (await app.open(model)).session("s", agent="a")
    sent = await session.send("go")
    await model.wrote.wait()
    await session.cancel()
    result = await sent.result(30)
    assert (result.status, result.reason) == ("stopped", "cancelled")
    [(effect, used)] = await bought(session)
    assert (effect, used.output, used.calls, used.estimated) == ("m1.1", 10, 1, 1)
    assert used.input > 0
    assert result.usage == used
    assert [message.role for message in await session.messages()] == ["user"], "text of a cancelled call is no reply"


async def test_reply_during_cancellation_has_its_reported_usage(app: App) -> None:
    model = Writer(stubborn=True)
    session = await (await app.open(model)).session("s", agent="a")
    sent = await session.send("go")
    await model.wrote.wait()
    await session.cancel()
    assert (await sent.result(30)).usage == TEN
    assert await bought(session) == [("m1.1", TEN)]


async def test_completed_reply_of_a_cancelled_turn_has_reported_usage(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    fly = TurnDriver._run_effect  # pyright: ignore[reportPrivateUsage] - between two ticks there is no public moment

    async def and_cancel(self: TurnDriver, flight: InFlight, runner: Runner) -> None:
        await fly(self, flight, runner)
        self.interrupt(CancelRequested(turn=self.turn.id, request="r"))

    monkeypatch.setattr(TurnDriver, "_run_effect", and_cancel)
    session = await (await app.open(ScriptedModel(say("hi", usage=TEN)))).session("s", agent="a")
    result = await (await session.send("go")).result(30)
    assert (result.reason, result.usage) == ("cancelled", TEN)
    assert await bought(session) == [("m1.1", TEN)]


async def test_reply_losing_to_a_cancel_has_its_reported_usage(
    new_store: NewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store()
    append = store.append
    cancelled: list[str] = []

    async def too_late(plan: Plan) -> Receipt:
        cancelled.append(await session.cancel())
        return await append(plan)

    def submitted(plan: Plan) -> Awaitable[Receipt]:
        last = any(entry.kind == "turn_ended" for entry in plan.entries)
        return asyncio.ensure_future(too_late(plan)) if last and not cancelled else append(plan)

    monkeypatch.setattr(store, "append", submitted)
    model = ScriptedModel(say("hi", usage=TEN))
    async with Runtime(store, agents=[Agent("a", model=model)]) as rt:
        session = await rt.session("s", agent="a")
        result = await (await session.send("go")).result(30)
        assert cancelled == ["requested"]
        assert (result.reason, result.usage) == ("cancelled", TEN)
        assert await bought(session) == [("m1.1", TEN)]
        assert len(model.requests) == 1


async def test_unsent_model_call_costs_nothing(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    start = TurnDriver.start

    def and_cancel(self: TurnDriver, *given: object) -> bool:
        request = CancelRequested(turn=self.turn.id, request="r")
        asyncio.get_running_loop().call_soon(self.interrupt, request)  # before what is begun here runs
        return start(self, *given)  # pyright: ignore[reportArgumentType] - passed on as they came

    monkeypatch.setattr(TurnDriver, "start", and_cancel)
    model = ScriptedModel(say("hi", usage=TEN))
    session = await (await app.open(model)).session("s", agent="a")
    result = await (await session.send("go")).result(30)
    assert (result.reason, result.usage) == ("cancelled", Usage())
    assert (await bought(session), model.requests) == ([], [])


async def test_limits_count_what_was_cancelled(app: App) -> None:
    model = Writer()
    rt = await app.add([Agent("a", model=model, limits=UsageLimits(session_tokens=20))])
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await model.wrote.wait()
    await session.cancel()
    assert (await sent.result(30)).usage.tokens >= 20
    over = await (await session.send("again")).result(30)
    assert (over.status, over.reason) == ("stopped", "limit_reached")


async def test_a_worker_that_leaves_counts_what_it_has_bought(app: App, new_store: NewStore) -> None:
    model = Writer()
    async with Runtime(new_store(), agents=[Agent("a", model=model)], options=RuntimeOptions(drain_s=0.05)) as first:
        sent = await (await first.session("s", agent="a")).send("go", key="k")
        await model.wrote.wait()
    rt = await app.open(Writer(waits=False))
    session = rt.get_session("s")
    again = await session.send("go", key="k")
    assert again.turn_id == sent.turn_id
    assert (await again.result(30)).status == "finished"
    (first_call, lost), second = await bought(session)
    assert (first_call, lost.output, lost.estimated) == ("m1.1", 10, 1)
    assert second == ("m1.2", TEN)


async def test_a_reply_that_comes_while_its_worker_leaves_is_kept(app: App, new_store: NewStore) -> None:
    model = Writer(stubborn=True)
    async with Runtime(new_store(), agents=[Agent("a", model=model)], options=RuntimeOptions(drain_s=0.05)) as first:
        await (await first.session("s", agent="a")).send("go", key="k")
        await model.wrote.wait()
    rt = await app.open(Writer())
    result = await (await rt.get_session("s").send("go", key="k")).result(30)
    assert (result.status, result.text) == ("finished", THIRTY)
    assert await bought(rt.get_session("s")) == [("m1.1", TEN)]


class Judge:
    """Makes one call; answers the first question of it, and writes at the second without an end, or until it is cut."""

    name = "judge"

    def __init__(self, *, cut: bool = False, waits: bool = True) -> None:
        self.writer = Writer(waits=waits)
        self._cut = cut

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        said = request.messages[-1].parts[-1]
        asked = said.text if isinstance(said, Text) else "done"
        if asked == "second" and self._cut:
            yield TextPiece(THIRTY)
            raise ModelError(LlmError(kind="stream_cut", message="cut"))
        if asked == "done":
            yield ModelReply(parts=(Text(text="done"),), finish="stop", usage=TEN, model="judge")
            return
        scripts = {"go": call("judge"), "first": say("yes", usage=TEN)}
        model = self.writer if asked == "second" else ScriptedModel(scripts[asked])
        async for event in model.stream(request):
            yield event


def judging(effect: EffectClass) -> object:
    @tool(effect=effect)
    async def judge(ctx: ToolContext) -> str:
        """Judge."""
        await ctx.complete("first", source="one")
        try:
            return await ctx.complete("second", source="two")
        except ToolError:
            return "cut"

    return judge


@pytest.mark.parametrize("effect", ["once", "pure", "resumable"])
async def test_completions_of_a_cancelled_tool_are_counted(app: App, effect: EffectClass) -> None:
    model = Judge()
    session = await (await app.open(model, judging(effect))).session("s", agent="a")  # pyright: ignore[reportArgumentType]
    sent = await session.send("go")
    await model.writer.wrote.wait()
    await session.cancel()
    assert (await sent.result(30)).reason == "cancelled"
    _, *asked = await session.usage_entries()
    assert [(one.source, one.usage.output, one.usage.estimated) for one in asked] == [
        ("direct:one", 4, 0),
        ("direct:two", 10, 1),
    ]
    await bought(session)


@pytest.mark.parametrize("effect", ["once", "resumable"])
async def test_failed_completion_of_a_tool_is_estimated(app: App, effect: EffectClass) -> None:
    session = await (await app.open(Judge(cut=True), judging(effect))).session("s", agent="a")  # pyright: ignore[reportArgumentType]
    assert (await (await session.send("go")).result(30)).status == "finished"
    asked = [one for one in await session.usage_entries() if one.source == "direct:two"]
    assert [(one.usage.output, one.usage.estimated) for one in asked] == [(10, 1)]
    await bought(session)


@pytest.mark.parametrize("effect", ["resumable", "idempotent"])
async def test_completion_interrupted_by_a_drain_is_counted_and_repeated(
    app: App, new_store: NewStore, effect: EffectClass
) -> None:
    model = Judge()
    agents = [Agent("a", model=model, tools=[judging(effect)])]  # pyright: ignore[reportArgumentType]
    async with Runtime(new_store(), agents=agents, options=RuntimeOptions(drain_s=0.05)) as first:
        await (await first.session("s", agent="a")).send("go", key="k")
        await model.writer.wrote.wait()
    session = (await app.open(Judge(waits=False), judging(effect))).get_session("s")  # pyright: ignore[reportArgumentType]
    assert (await (await session.send("go", key="k")).result(30)).status == "finished"
    await bought(session)
    asked = [one for one in await session.usage_entries() if one.source != "turn"]
    again = [] if effect == "resumable" else [("direct:one", 4, 0)]
    assert [(one.source, one.usage.output, one.usage.estimated) for one in asked] == [
        ("direct:one", 4, 0),
        ("direct:two", 10, 1),
        *again,
        ("direct:two", 4, 0),
    ]


class Working:
    """Works on what a tool asks by itself, until it is asked for that again."""

    name = "working"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.sold = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        said = request.messages[-1].parts[-1]
        if isinstance(said, Text) and said.text == "second" and request.job is None:
            self.sold += 1
            yield JobBegun("job_1")
            self.begun.set()
            await asyncio.sleep(3600)
        async for event in Judge(waits=False).stream(request):
            yield event


@pytest.mark.parametrize("effect", ["resumable", "idempotent"])
async def test_provider_job_of_a_tool_is_awaited_after_a_drain(
    app: App, new_store: NewStore, effect: EffectClass
) -> None:
    model = Working()
    agents = [Agent("a", model=model, tools=[judging(effect)])]  # pyright: ignore[reportArgumentType]
    async with Runtime(new_store(), agents=agents, options=RuntimeOptions(drain_s=0.05)) as first:
        await (await first.session("s", agent="a")).send("go", key="k")
        await model.begun.wait()
    session = (await app.open(model, judging(effect))).get_session("s")  # pyright: ignore[reportArgumentType]
    assert (await (await session.send("go", key="k")).result(30)).status == "finished"
    await bought(session)
    second = [one.usage for one in await session.usage_entries() if one.source == "direct:two"]
    assert (model.sold, second) == (1, [TEN])


class Slow(Judge):
    """Takes its time to find out what it costs."""

    async def priced(self, usage: Usage) -> Usage:
        await asyncio.sleep(3600)
        return usage


@pytest.mark.parametrize("effect", ["once", "resumable"])
async def test_completion_of_a_cancelled_tool_is_counted_without_price(app: App, effect: EffectClass) -> None:
    model = Slow()
    session = await (await app.open(model, judging(effect))).session("s", agent="a")  # pyright: ignore[reportArgumentType]
    sent = await session.send("go")
    await model.writer.wrote.wait()
    await session.cancel()
    assert (await sent.result(30)).reason == "cancelled"
    asked = [one for one in await session.usage_entries() if one.source == "direct:two"]
    assert [(one.usage.output, one.usage.estimated, one.usage.priced) for one in asked] == [(10, 1, 0)]
    await bought(session)


def consulting(store: Store, world: World) -> Runtime:
    @tool(effect="resumable")
    async def consult(ctx: ToolContext) -> str:
        """Ask."""
        return (await completions_of(ctx).complete(DirectRequest("sure?", key="opinion"), "one")).text

    model = ScriptedModel.by_input({"go": [call("consult"), say("done")], "sure?": [say("yes", usage=TEN, exact=True)]})
    return Runtime(store, agents=[Agent("a", model=model, tools=[consult])])


async def go(rt: Runtime) -> None:
    assert (await (await rt.session("s", agent="a")).ask("go", key="k")).startswith("done")


OPINION, AGAIN = EffectId("c1.0/direct:opinion"), EffectId("c1.0/again:2.opinion")


@pytest.mark.crash
@pytest.mark.parametrize("mode", ["memory", "sqlite"])
def test_wherever_the_process_dies_each_question_of_a_tool_has_one_end(mode: Literal["memory", "sqlite"]) -> None:
    def counted(crash: CrashReport) -> None:
        [story] = crash.stories
        answers = {id: one for (_, id), one in story.settled.items() if isinstance(one, DirectOutcome)}
        if len(answers) == 2:
            assert (answers[OPINION].lost, answers[OPINION].bought.estimated) == (True, 1)
            assert answers[AGAIN].bought == TEN
            lost_once.append(str(crash.boundary))
        else:
            assert [one.bought for one in answers.values()] == [TEN]

    lost_once: list[str] = []
    assert every_boundary(consulting, go, mode=mode, check=counted)
    assert lost_once
