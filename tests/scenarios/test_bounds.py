"""S16: what a model or a client may ask for is bounded, each bound is told, and nothing that was accepted is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from perdure import (
    Agent,
    Code,
    Error,
    ProcessContext,
    Runtime,
    RuntimeOptions,
    Session,
    ToolContext,
    client_tool,
    process,
    tool,
)
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.runtime.input_limits import InputLimits
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.tasks.background import message_to
from perdure.vocab.messages import Message, Text, ToolResultPart
from perdure.vocab.records import EffectSettled, TurnEnded
from tests.scenarios.conftest import App, NewStore, until

ran: list[int] = []
events: dict[str, asyncio.Event] = {}


@tool(effect="once")
async def count(n: int = 0) -> str:
    """Count."""
    ran.append(n)
    return "counted"


@pytest.fixture(autouse=True)
def none_ran() -> None:
    ran.clear()
    events.update(begun=asyncio.Event(), gate=asyncio.Event())


def results(messages: tuple[Message, ...]) -> list[object]:
    parts = [part for message in messages for part in message.parts]
    return [part.output for part in parts if isinstance(part, ToolResultPart)]


async def test_s16_calls_above_the_limit_ask_again(app: App) -> None:
    model = ScriptedModel(calls(*(call("count", n=n) for n in range(70))), say("ok"))
    rt = await app.add([Agent("a", model=model, tools=[count])])
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=30)
    assert sorted(ran) == list(range(64))
    told = results(await session.messages())
    assert len(told) == 70
    assert told[:64] == ["counted"] * 64
    refusal = {
        "error": "A reply may make at most 64 calls. This one was not run: ask again",
        "code": "too_many_calls",
    }
    assert told[64:] == [refusal] * 6


async def test_s16_calls_of_a_turn_are_limited_across_its_replies(app: App) -> None:
    model = ScriptedModel(*(calls(call("count", n=2 * n), call("count", n=2 * n + 1)) for n in range(3)), say("ok"))
    rt = await app.add([Agent("a", model=model, tools=[count], max_calls_per_reply=2, max_calls_per_turn=5)])
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=30)
    assert sorted(ran) == [0, 1, 2, 3, 4]
    assert results(await session.messages())[-1] == {
        "error": "A turn may make at most 5 calls. This one was not run: give your answer",
        "code": "too_many_calls",
    }


MANY = 4000


@tool(effect="pure")
async def blocked() -> str:
    """Wait for a gate."""
    events["begun"].set()
    await events["gate"].wait()
    return "passed"


async def test_s16_4000_calls_of_one_reply_hold_no_step(app: App) -> None:
    model = ScriptedModel(calls(*(call("count", n=n) if n < 64 else call("count") for n in range(MANY))), say("ok"))
    rt = await app.add([Agent("a", model=model, tools=[count])])
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=50)
    assert sorted(ran) == list(range(64))
    told = results(await session.messages())
    assert len(told) == MANY
    assert all(isinstance(one, dict) for one in told[64:])
    settled = [row.record.id for row in await session.journal() if isinstance(row.record, EffectSettled)]
    assert settled[65:-1] == [f"c1.{n}.1" for n in range(64, MANY)]


@pytest.mark.parametrize("limit", [2, 64], ids=["refused", "waiting"])
async def test_s16_cancelled_turn_with_4000_calls_holds_no_step(app: App, limit: int) -> None:
    model = ScriptedModel(calls(*(call("blocked") for _ in range(MANY))), say("ok"))
    rt = await app.add([Agent("a", model=model, tools=[blocked], max_calls_per_reply=limit)])
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await events["begun"].wait()
    await session.cancel()
    assert (await sent.result(30)).status == "stopped"
    assert len(results(await session.messages())) == MANY


async def test_s16_turn_with_4000_calls_holds_no_step_on_another_worker(app: App) -> None:
    model = ScriptedModel(calls(*(call("blocked") for _ in range(MANY))), say("ok"))
    agent = Agent("a", model=model, tools=[blocked], max_calls_per_reply=2)
    async with Runtime(app.new_store(), agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        await session.send("go", key="k")

        async def all_refused() -> bool:
            return len(await session.journal()) > MANY

        await until(all_refused, seconds=30)
        await rt.drain(0)
    events["gate"].set()
    session = await (await app.add([agent])).session("s", agent="a")
    assert (await (await session.send("go", key="k")).result(30)).status == "finished"
    assert results(await session.messages())[:2] == ["passed"] * 2


@tool(effect="pure")
async def add(numbers: list[int]) -> int:
    """Add numbers."""
    return sum(numbers)


@pytest.mark.any_store
@pytest.mark.parametrize(("count", "values"), [(1, 120_000), (60, 1_900)], ids=["one", "many"])
async def test_t_tool_03_wrong_arguments_hold_no_step(app: App, count: int, values: int) -> None:
    model = ScriptedModel(calls(*[call("add", numbers=["x"] * values)] * count), say("ok"))
    rt = await app.add([Agent("a", model=model, tools=[add])])
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=30)
    told = results(await session.messages())
    assert len(told) == count
    assert all(f"- and {values - 10} more" in str(one) for one in told)


@pytest.mark.any_store
async def test_t_tool_03_many_valid_arguments_are_converted(app: App) -> None:
    model = ScriptedModel(call("add", numbers=[1, "2"] * 30_000), say("ok"))
    rt = await app.add([Agent("a", model=model, tools=[add])])
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=30)
    assert results(await session.messages()) == [90_000]


@pytest.mark.any_store
@pytest.mark.parametrize("name", ["max_calls_per_reply", "max_calls_per_turn"])
@pytest.mark.parametrize("wrong", [0, -1, "5", 1.5])
def test_s16_limits_of_calls_are_checked(name: str, wrong: object) -> None:
    with pytest.raises(Error) as caught:
        Agent("a", model="sim:echo", **{name: wrong})  # type: ignore[arg-type]
    assert caught.value.code is Code.AGENT_INVALID


# --- values of clients

PICK = client_tool("pick", "Pick.", {"type": "object"})
WIDE: Json = list(range(600_000))


@process
async def waits(ctx: ProcessContext, given: Json) -> Json:
    return await ctx.wait_for_signal("go", timeout=60)


@tool(effect="once", needs_approval=True)
async def guarded(given: Json) -> str:
    """Wait for an approval."""
    return "ran"


CLIENTS: dict[str, tuple[Code, Callable[[Runtime, Session], Awaitable[object]]]] = {
    "key": (Code.EVENT_KEY_INVALID, lambda rt, s: rt.resolve("nonsense", WIDE)),
    "resolve": (Code.INPUT_TOO_LARGE, lambda rt, s: s.resolve("event", WIDE)),
    "emit": (Code.INPUT_TOO_LARGE, lambda rt, s: rt.triggers.emit("mail.received", WIDE, source="box")),
    "start": (Code.INPUT_TOO_LARGE, lambda rt, s: rt.start(waits, WIDE)),
    "plugin": (Code.INPUT_TOO_LARGE, lambda rt, s: s.send("x", plugin_input={"p": WIDE})),
    "tags": (Code.INVALID_ARGUMENT, lambda rt, s: s.set_tags([str(n) for n in range(400_000)])),
}


@pytest.mark.any_store
@pytest.mark.parametrize("name", CLIENTS)
async def test_t_tool_03_large_values_of_clients_hold_no_step(new_store: NewStore, name: str) -> None:
    code, use = CLIENTS[name]
    agent = Agent("a", model=ScriptedModel(say("ok")))
    async with Runtime(new_store(), agents=[agent], processes=[waits]) as rt:
        rt.triggers.declare("mail.received")
        session = await rt.session("s", agent="a")
        with pytest.raises(Error) as caught:
            await use(rt, session)
    assert caught.value.code is code


@pytest.mark.any_store
async def test_t_tool_03_large_signals_and_edits_hold_no_step(new_store: NewStore) -> None:
    agent = Agent("a", model=ScriptedModel(call("guarded", given=1), call("pick"), say("ok")), tools=[guarded, PICK])
    async with Runtime(new_store(), agents=[agent], processes=[waits]) as rt:
        handle = await rt.start(waits, 1)
        session = await rt.session("s", agent="a")
        await session.send("go")

        async def asks() -> bool:
            return bool(await session.pending())

        await until(asks)
        [asked] = await session.pending()
        for large in (handle.signal("go", WIDE), rt.approvals.approve(asked.id, by="ann", args={"given": WIDE})):
            with pytest.raises(Error) as caught:
                await large
            assert caught.value.code is Code.INPUT_TOO_LARGE
        await rt.approvals.approve(asked.id, by="ann")

        async def picks() -> bool:
            return bool(pending := await session.pending()) and pending[0].id != asked.id

        await until(picks)
        [picked] = await session.pending()
        with pytest.raises(Error) as caught:
            await session.post_result(picked.id, WIDE)
        assert caught.value.code is Code.INPUT_TOO_LARGE


# --- inputs that wait


async def paused(app: App, limits: InputLimits, **options: InputLimits) -> Runtime:
    """Open a runtime with a paused session `s`."""
    tuning = RuntimeOptions(inputs=limits, tenant_inputs=options)
    model = ScriptedModel(say("ok"))
    rt = await app.add([Agent("a", model=model)], tuning=tuning)
    session = await rt.session("s", agent="a")
    await session.ask("first", timeout=30)
    await session.pause(by="test")
    return rt


async def refused(sending: object) -> Error:
    with pytest.raises(Error) as caught:
        await sending  # type: ignore[misc]  # any send
    assert caught.value.code is Code.QUEUE_FULL
    return caught.value


async def test_s16_a_full_queue_refuses_inputs_and_loses_none(app: App) -> None:
    rt = await paused(app, InputLimits(session_inputs=3))
    session = rt.get_session("s")
    sent = [await session.send(f"q{n}", key=f"k{n}") for n in range(3)]
    told = await refused(session.send("one more", key="k3"))
    assert "3 inputs" in told.message
    assert "the limit is 3 inputs" in told.because
    for mode in ("steer", "interrupt"):
        await refused(session.send("one more", mode=mode))
    assert (await session.send("q1", key="k1")).is_duplicate
    assert [one.key for one in await session.queued_inputs()] == ["k0", "k1", "k2"]
    await session.resume()
    assert [(await one.result(30)).status for one in sent] == ["finished"] * 3
    assert await session.ask("one more", key="k3", timeout=30)


async def test_s16_a_queued_input_can_be_replaced_in_a_full_queue(app: App) -> None:
    rt = await paused(app, InputLimits(session_inputs=2))
    session = rt.get_session("s")
    await session.send("draft", replace_key="d")
    await session.send("other")
    await session.send("final", replace_key="d")
    assert [one.replace_key for one in await session.queued_inputs()] == ["", "d"]
    await refused(session.send("one more", replace_key="e"))


async def test_s16_waiting_bytes_are_limited(app: App) -> None:
    rt = await paused(app, InputLimits(session_bytes=50_000))
    session = rt.get_session("s")
    for _ in range(4):
        await session.send("x" * 11_000)
    await refused(session.send("x" * 11_000))
    await session.send("short")


@pytest.mark.any_store
@pytest.mark.slow
async def test_t_tool_03_many_large_waiting_inputs_hold_no_step(app: App) -> None:
    rt = await paused(app, InputLimits())
    session = rt.get_session("s")
    text = 'é"x\n' * 32_000
    for n in range(240):
        await session.send(text, key=f"k{n}")
        await asyncio.sleep(0)  # a store in memory ends no step
    await session.resume()
    assert len(await ends(rt, 4)) >= 4
    await session.pause()


async def test_s16_the_queues_of_a_tenant_are_limited_together(app: App) -> None:
    rt = await paused(app, InputLimits(tenant_inputs=3))
    others = [await rt.session(f"o{n}", agent="a") for n in range(2)]
    for session in others:
        await session.ask("hello", timeout=30)
        await session.pause(by="test")
    sent = [await session.send("waits") for session in (rt.get_session("s"), *others)]
    told = await refused(others[0].send("one more"))
    assert told.message.startswith("the tenant has 3 inputs")
    await others[1].resume()
    assert (await sent[2].result(30)).status == "finished"
    await others[1].ask("one more", timeout=30)
    await others[0].send("one more")


async def test_s16_limits_are_set_per_tenant(app: App) -> None:
    rt = await paused(app, InputLimits(session_inputs=1), default=InputLimits(session_inputs=2))
    session = rt.get_session("s")
    await session.send("one")
    await session.send("two")
    await refused(session.send("three"))
    limits = core_of(rt).queues
    assert limits.limits(ref_of(session).tenant).session_inputs == 2


@pytest.mark.any_store
@pytest.mark.parametrize("name", ["session_inputs", "session_bytes", "tenant_inputs", "tenant_bytes", "own_turns"])
@pytest.mark.parametrize("wrong", [0, -1, "5", 1.5, True])
def test_s16_limits_of_inputs_are_checked(name: str, wrong: object) -> None:
    with pytest.raises(Error) as caught:
        InputLimits(**{name: wrong})  # type: ignore[arg-type]
    assert caught.value.code is Code.INVALID_ARGUMENT


# --- turns that a session causes itself


@tool(effect="once")
async def again(ctx: ToolContext, n: int) -> str:
    """Send an input to this session."""
    await ctx.sessions.get(ctx.session_id).send("go on by yourself")
    return "sent"


async def ends(rt: Runtime, count: int) -> list[tuple[str, str]]:
    """Wait until the session has ended this many turns, and return status and reason of each."""
    session = rt.get_session("s")
    found: list[tuple[str, str]] = []

    async def enough() -> bool:
        rows = [row.record for row in await session.journal()]
        found[:] = [(one.status, one.reason or "") for one in rows if isinstance(one, TurnEnded)]
        return len(found) >= count

    await until(enough, seconds=30)
    return found


async def test_s16_turns_caused_by_the_session_itself_are_limited(app: App) -> None:
    model = ScriptedModel(call("again", n=0), say("ok"))
    tuning = RuntimeOptions(inputs=InputLimits(own_turns=3))
    rt = await app.add([Agent("a", model=model, tools=[again])], tuning=tuning)
    session = await rt.session("s", agent="a")
    await session.send("go")
    stopped = ("stopped", "own_turns_exceeded")
    assert await ends(rt, 5) == [("finished", "")] * 4 + [stopped]
    why = await session.why()
    assert "own_turns_exceeded: the session caused 3 turns in a row" in why.summary
    assert why.hint.startswith("send the input again")
    # A person's input begins the count anew, and the model sees what it was not run for.
    await session.send("go on, all of you")
    assert await ends(rt, 10) == ([("finished", "")] * 4 + [stopped]) * 2
    seen = [part.text for message in model.requests[8].messages for part in message.parts if isinstance(part, Text)]
    assert seen.count("go on by yourself") == 4


@pytest.mark.any_store
async def test_s16_news_of_own_work_is_counted_and_inputs_of_others_are_not(app: App) -> None:
    rt = await app.add(
        [Agent("a", model=ScriptedModel(say("ok")))],
        tuning=RuntimeOptions(inputs=InputLimits(own_turns=2)),
    )
    session = await rt.session("s", agent="a")
    await session.ask("hello", timeout=30)
    stream = ref_of(session).stream
    for n in range(3):
        await core_of(rt).store.admit(message_to(stream, f"n{n}", "news", source="task:t", now=5))
    core_of(rt).notify(stream)
    assert await ends(rt, 4) == [("finished", "")] * 3 + [("stopped", "own_turns_exceeded")]
    for n in range(4):
        await session.ask(f"hello {n}", timeout=30)
