"""Regressions found by hostile reviews."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from perdure import (
    Agent,
    Code,
    DidNotHappen,
    Error,
    Happened,
    RetryPolicy,
    Runtime,
    RuntimeOptions,
    ToolContext,
    ToolError,
    tool,
)
from perdure.commit.plan import Entry
from perdure.ids import CallId, EffectId, InputId, TurnId
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.sessions.results import wait_for
from perdure.runtime.worker.orphans import Orphans
from perdure.vocab.messages import Text, ToolResultPart
from perdure.vocab.outcomes import CompletedToolCall, Done, Success, ToolCallOutcome
from perdure.vocab.records import EffectSettled, EffectStarted, InputAdmitted
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import App, until


async def test_nothing_is_written_that_cannot_be_read_again(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    await session.ask("hi")
    bad: list[Callable[[], object]] = [
        lambda: session.cancel(reason=None),  # type: ignore[arg-type]
        lambda: session.cancel(by=7),  # type: ignore[arg-type]
        lambda: session.cancel(7),  # type: ignore[arg-type]
        lambda: session.cancel(reason="\ud800"),
        lambda: session.cancel(reason="x" * 10_000),
        lambda: session.send("x", key=5),  # type: ignore[arg-type]
        lambda: session.send("x", key="k" * 2_000_000),
        lambda: session.send("x", key="\ud800"),
    ]
    before = len(await session.journal())
    for wrong in bad:
        with pytest.raises(Error):
            await wrong()  # type: ignore[misc]
    assert len(await session.journal()) == before
    assert (await session.ask("still there?")).startswith("ok")


def test_a_record_of_the_wrong_shape_is_refused_before_it_is_written() -> None:
    wrong = InputAdmitted(input=InputId("i"), turn=TurnId("t"), parts=(Text(text="x"),), key=5)  # type: ignore[arg-type]
    with pytest.raises(Error) as caught:
        Entry.of(wrong, at=0)
    assert caught.value.code is Code.INVALID_ARGUMENT


class Odd:
    """A model that misbehaves in one way."""

    name = "odd"

    def __init__(self, misbehave: Callable[[], ModelReply]) -> None:
        self._misbehave = misbehave
        self.asked = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.asked += 1
        yield self._misbehave()


def cancels_itself() -> ModelReply:
    raise asyncio.CancelledError


def leaves() -> ModelReply:
    raise GeneratorExit


def unknown_finish() -> ModelReply:
    return ModelReply((Text(text="hi"),), "end_turn", Usage(), "odd")  # type: ignore[arg-type]


def no_usage() -> ModelReply:
    return ModelReply((Text(text="hi"),), "stop", None, "odd")  # type: ignore[arg-type]


@pytest.mark.parametrize("misbehave", [cancels_itself, leaves, unknown_finish, no_usage])
async def test_a_model_that_misbehaves_stops_its_turn_and_is_asked_once(
    app: App, misbehave: Callable[[], ModelReply]
) -> None:
    model = Odd(misbehave)
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    result = await (await session.send("go")).result(timeout=10)
    assert (result.status, model.asked) in (("stopped", 1), ("finished", 1))
    assert await session.messages()


async def test_draining_keeps_the_lease(tmp_path: Path) -> None:
    """A draining worker is alive: no other worker takes its turns over."""
    started, ran = asyncio.Event(), list[str]()
    url = f"sqlite:///{tmp_path / 's.db'}"

    def agent(name: str) -> Agent:
        @tool(effect="idempotent")
        async def put() -> str:
            """Put."""
            ran.append(name)
            started.set()
            await asyncio.sleep(3)
            return "put"

        return Agent("a", model=ScriptedModel(call("put"), say("ok")), tools=[put])

    tuning = RuntimeOptions(lease_s=1, drain_s=20)
    async with Runtime(url, agents=[agent("other")], options=tuning):
        async with Runtime(url, agents=[agent("first")], options=tuning) as rt:
            await (await rt.session("s", agent="a")).send("go")
            await started.wait()
        assert ran == ["first"]


async def test_closing_runtime_starts_no_turn_and_fails_its_waiters(app: App) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def hold() -> None:
        """Hold."""
        started.set()
        await release.wait()

    agent = Agent(
        "a", model=ScriptedModel.by_input({"one": [call("hold"), say("1")]}, default=[say("2")]), tools=[hold]
    )
    async with Runtime(app.new_store(), agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        await session.send("one")
        queued = await session.send("two")
        waiting = asyncio.create_task(queued.result())
        await started.wait()
        asyncio.get_running_loop().call_later(0.1, release.set)
    with pytest.raises(Error) as caught:
        await asyncio.wait_for(waiting, 5)
    assert caught.value.code is Code.RUNTIME_CLOSED
    with pytest.raises(Error) as caught:
        await rt.__aenter__()
    assert caught.value.code is Code.RUNTIME_CLOSED


async def test_a_file_that_is_removed_takes_no_more_inputs(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with Runtime(
        f"sqlite:///{path}", agents=[Agent("a", model="sim:echo")], options=RuntimeOptions(drain_s=0.1)
    ) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("hi")
        path.rename(tmp_path / "elsewhere.db")
        with pytest.raises(Error) as caught:
            await session.send("lost?")
        assert caught.value.code is Code.STORE_UNAVAILABLE
        (tmp_path / "elsewhere.db").rename(path)


async def test_a_worker_without_the_agent_does_not_keep_the_session(app: App) -> None:
    async with Runtime(app.new_store(), agents=[Agent("a", model=ScriptedModel(say("ok", exact=True)))]) as first:
        await (await first.session("s", agent="a")).ask("hi")
    async with Runtime(app.new_store(), agents=[Agent("b", model="sim:echo")]) as stranger:
        await stranger.get_session("s").send("one")
        sent = await stranger.get_session("s").send("two")
        async with Runtime(app.new_store(), agents=[Agent("a", model=ScriptedModel(say("ok", exact=True)))]):
            assert (await sent.result(timeout=10)).text == "ok"


async def test_a_worker_serves_its_own_tenant_only(app: App) -> None:
    store = app.new_store()
    async with Runtime(store, tenant="evil", worker=False, agents=[Agent("a", model="sim:echo")]) as evil:
        sent = await (await evil.session("s", agent="a")).send("go")
        async with Runtime(app.new_store(), tenant="acme", agents=[Agent("a", model="sim:echo")]):
            with pytest.raises(Error) as caught:
                await sent.result(timeout=0.8)
            assert caught.value.code is Code.RESULT_TIMEOUT


async def test_a_call_cancelled_between_two_attempts_is_not_told_as_never_run(app: App) -> None:
    @tool(effect="idempotent", retries=RetryPolicy(kind="idempotent", max_attempts=2, base_delay_ms=20_000))
    async def put() -> None:
        """Put."""
        raise ToolError("busy")

    rt = await app.open(ScriptedModel(call("put"), say("ok")), put)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")

    async def pauses() -> bool:
        begun = [row.record.id for row in await session.journal() if isinstance(row.record, EffectStarted)]
        return "c1.0.1.sleep" in begun

    await until(pauses)
    await session.cancel()
    await sent.result(timeout=10)
    told = [p for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)]
    assert told[0].output["code"] == "tool_cancelled"


async def test_a_turn_cancelled_during_a_probe_settles_each_effect_once(app: App) -> None:
    probing = asyncio.Event()

    async def ask(ctx: ToolContext) -> DidNotHappen:
        probing.set()
        await asyncio.sleep(20)
        return DidNotHappen()

    @tool(timeout="250ms", probe=ask)
    async def charge() -> None:
        """Charge."""
        await asyncio.sleep(20)

    rt = await app.open(ScriptedModel(call("charge"), say("ok")), charge)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await probing.wait()
    await session.cancel()
    assert (await sent.result(timeout=10)).reason == "cancelled"
    settled = [row.record.id for row in await session.journal() if isinstance(row.record, EffectSettled)]
    assert sorted(settled) == sorted(set(settled))
    told = [p for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)]
    assert told[0].output["code"] == "outcome_unknown"


async def test_a_late_outcome_of_a_deleted_session_does_not_reach_its_namesake(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    await session.ask("hi")
    orphans = Orphans(core_of(rt).store, core_of(rt).clock)
    result = CompletedToolCall(call_id=CallId("gone.1.0"), tool_name="pay", output=Success(value="SECRET"))
    outcome = ToolCallOutcome(launch=Done(result=result))
    await orphans.post(ref_of(session).stream, TurnId("gone"), EffectId("c1.0.1"), outcome)
    assert (await session.ask("next")).startswith("ok")
    assert all(b"SECRET" not in row.data for row in await session.journal())


@pytest.mark.parametrize("wrong", [{"lease_s": 0}, {"lease_s": -1}, {"lease_s": float("nan")}, {"drain_s": -1}])
def test_a_tuning_that_cannot_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(Error) as caught:
        RuntimeOptions(**wrong)  # type: ignore[arg-type]
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.any_store
async def test_wait_for_an_unknown_turn_or_session_is_refused(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    await session.ask("hi")
    with pytest.raises(Error) as caught:
        await wait_for(ref_of(session), TurnId("bogus"))
    assert caught.value.code is Code.TURN_UNKNOWN
    with pytest.raises(Error) as caught:
        await anext(aiter(rt.get_session("typo").events()))
    assert caught.value.code is Code.SESSION_UNKNOWN


@pytest.mark.parametrize("interrupted", [False, True])
async def test_a_call_that_goes_on_after_its_runtime_is_not_made_again(tmp_path: Path, interrupted: bool) -> None:
    """The runtime closes, its process lives on with the call in a thread, and a truthful probe says "not yet"."""
    release, charged, started = threading.Event(), list[int](), threading.Event()

    @tool(probe=lambda ctx: Happened() if charged else DidNotHappen())
    def charge(ctx: ToolContext) -> None:
        """Charge, some time."""
        started.set()
        release.wait(20)
        charged.append(ctx.attempt)

    agent = Agent("a", model=ScriptedModel(call("charge"), say("ok")), tools=[charge])
    url = f"sqlite:///{tmp_path / 's.db'}"

    async def first() -> None:
        async with Runtime(url, agents=[agent], options=RuntimeOptions(drain_s=5 if interrupted else 0.05)) as rt:
            await (await rt.session("s", agent="a")).send("go", key="k")
            await asyncio.to_thread(started.wait, 10)

    closing = asyncio.create_task(first())
    if interrupted:
        await asyncio.to_thread(started.wait, 10)
        await asyncio.sleep(0.1)
        closing.cancel()
    await asyncio.wait([closing])
    async with Runtime(url, agents=[agent]) as rt:
        result = await (await rt.get_session("s").send("go", key="k")).result(timeout=15)
        assert result.status == "finished"
        release.set()
        async with asyncio.timeout(5):
            while not charged:  # noqa: ASYNC110 - a thread decides
                await asyncio.sleep(0.01)
    assert charged == [1]


async def test_a_drained_runtime_that_still_sends_does_not_keep_the_session(app: App) -> None:
    agent = Agent("a", model=ScriptedModel(say("ok", exact=True)))
    async with Runtime(app.new_store(), agents=[agent]) as old:
        session = await old.session("s", agent="a")
        await session.ask("hi")
        await old.drain(0.1)
        async with Runtime(app.new_store(), agents=[agent]):
            assert (await (await session.send("after the drain")).result(timeout=10)).text == "ok"


async def test_draining_begins_nothing_new_however_many_calls_wait_for_a_thread(tmp_path: Path) -> None:
    release, ran = threading.Event(), list[str]()

    @tool
    def charge(ctx: ToolContext) -> None:
        """Charge."""
        ran.append(ctx.session_id)
        release.wait(10)

    agent = Agent("a", model=ScriptedModel(call("charge"), say("ok")), tools=[charge])
    async with Runtime(f"sqlite:///{tmp_path / 's.db'}", agents=[agent], options=RuntimeOptions(drain_s=0.1)) as rt:
        for n in range(40):
            await (await rt.session(f"s{n}", agent="a")).send("go")
        async with asyncio.timeout(10):
            while len(ran) < 32:  # noqa: ASYNC110 - threads decide
                await asyncio.sleep(0.01)
    assert len(ran) == 32, "the threads that were given up must not take up what waited"
    release.set()


async def test_the_result_of_a_turn_that_was_deleted_is_not_waited_for(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await sent.result(timeout=10)
    await session.delete()
    await (await rt.session("s", agent="a")).ask("somebody else")
    with pytest.raises(Error) as caught:
        await sent.result(timeout=10)
    assert caught.value.code is Code.TURN_UNKNOWN
