"""Bodies that wait: steps, sleeps, events and completions, in memory and parked, on every store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from perdure import (
    Agent,
    Code,
    Error,
    OutcomeUnknown,
    RetryPolicy,
    Runtime,
    RuntimeOptions,
    ToolContext,
    ToolError,
    tool,
)
from perdure.codec import Json
from perdure.effects.promises import unsigned_key
from perdure.ids import EffectId, PromiseId
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.observe.verify import verify
from perdure.runtime.clock import SystemClock
from perdure.runtime.core import RuntimeCore
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.runtime import Runtime as AnyRuntime
from perdure.runtime.sessions.session import Session
from perdure.session.fold import CODE
from perdure.store.protocol import Store
from perdure.store.shapes import Accepted, AlreadyResolved
from perdure.tools.durable import event_of_key
from perdure.tools.step_outcomes import EventFailed, EventTimedOut, StepFailed
from perdure.vocab.messages import Message, ToolResultPart
from perdure.vocab.outcomes import PendingCompletion
from perdure.vocab.promises import Cancelled, Custom, EventKey, Failure, Ok, PromiseState, TimedOut
from perdure.vocab.records import EffectSettled, EffectStarted
from tests.scenarios.conftest import App, until

HURRIED = RuntimeOptions(idle_timeout_s=0.0)


def outputs(history: tuple[Message, ...]) -> list[Json]:
    return [part.output for message in history for part in message.parts if isinstance(part, ToolResultPart)]


async def parked(rt: AnyRuntime | RuntimeCore, session: Session) -> None:
    """Until the session's turn is parked in the store and nothing of it is left in memory."""
    core = rt if isinstance(rt, RuntimeCore) else core_of(rt)

    async def is_parked() -> bool:
        info = await core.store.stream(ref_of(session).stream)
        return info is not None and info.parked and info.owner is None and not core.has_in_hand(ref_of(session).stream)

    await until(is_parked)


async def status(session: Session, wanted: str) -> None:
    """Until the session says so of itself."""

    async def says() -> bool:
        return (await session.why()).status == wanted

    await until(says)


async def recorded(session: Session, mark: str) -> None:
    """Until an effect has begun (`>id`) or ended (`<id>`)."""

    async def there() -> bool:
        return mark in await ids(session)

    await until(there)


async def ids(session: Session) -> list[str]:
    found = (row.record for row in await session.journal())
    return [
        f"{'>' if isinstance(record, EffectStarted) else '<'}{record.id}"
        for record in found
        if isinstance(record, EffectStarted | EffectSettled)
    ]


# --- steps ------------------------------------------------------------------------------------------------------


async def test_steps_are_recorded_in_order(app: App) -> None:
    @tool(effect="resumable")
    async def publish(ctx: ToolContext, doc: str) -> str:
        """Publish."""
        page = await ctx.step("render", str.upper, doc)
        return await ctx.step("upload", "url/{}".format, page)

    rt = await app.open(ScriptedModel(call("publish", doc="a"), say("ok")), publish)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert outputs(await session.messages()) == ["url/A"]
    assert await ids(session) == [
        ">m1.1", "<m1.1", ">c1.0.1", ">c1.0/step:render", "<c1.0/step:render", ">c1.0/step:upload",
        "<c1.0/step:upload", "<c1.0.1", ">m2.1", "<m2.1",
    ]  # fmt: skip


async def test_reentered_body_does_not_repeat_finished_steps(app: App) -> None:
    log: list[str] = []

    def upload(text: str) -> str:
        log.append("upload")
        return f"published: {text}"

    @tool(effect="resumable")
    async def publish(ctx: ToolContext) -> str:
        """Publish."""
        log.append("enter")
        await ctx.step("render", lambda: log.append("render"))
        verdict = await ctx.wait_for_event("reviewed")
        return await ctx.step("upload", upload, verdict)

    rt = await app.open(ScriptedModel(call("publish"), say("ok")), publish, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    assert await session.resolve("reviewed", "fine") == Accepted()
    await sent.result(5)
    assert outputs(await session.messages()) == ["published: fine"]
    assert log == ["enter", "render", "enter", "upload"]


async def test_an_answer_given_while_the_body_waits_in_memory_arrives_at_once(app: App) -> None:
    entered: list[int] = []

    @tool(effect="resumable")
    async def publish(ctx: ToolContext) -> object:
        """Publish."""
        entered.append(1)
        return await ctx.wait_for_event("reviewed")

    rt = await app.open(ScriptedModel(call("publish"), say("ok")), publish)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await recorded(session, ">c1.0/event:reviewed")
    await session.resolve("reviewed", {"by": "ann"})
    await sent.result(5)
    assert (outputs(await session.messages()), entered) == ([{"by": "ann"}], [1])


async def test_an_answer_given_before_the_wait_is_kept_for_it(app: App) -> None:
    gate = asyncio.Event()

    @tool(effect="resumable")
    async def publish(ctx: ToolContext) -> object:
        """Publish."""
        await gate.wait()
        return await ctx.wait_for_event("reviewed")

    rt = await app.open(ScriptedModel(call("publish"), say("ok")), publish, tuning=HURRIED)
    other = await rt.session("t", agent="a")
    later = await other.send("go")
    await status(other, "running")
    assert await other.resolve("reviewed", 1) == Accepted()
    assert await other.resolve("reviewed", 2) == AlreadyResolved(Ok(value=1))
    gate.set()
    await later.result(5)
    assert outputs(await other.messages()) == [1]


async def test_a_worker_elsewhere_carries_a_parked_body_on(app: App) -> None:
    @tool(effect="resumable")
    async def publish(ctx: ToolContext) -> object:
        """Publish."""
        first = ctx.uuid()
        await ctx.wait_for_event("reviewed")
        return [str(first), str(ctx.uuid())]

    model = ScriptedModel(call("publish"), say("ok"))
    rt = await app.open(model, publish, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await parked(rt, session)
    await rt.drain()
    sender = await app.open(model, publish, worker=False)
    await (await sender.session("s")).resolve("reviewed")
    other = await app.open(model, publish, tuning=HURRIED)
    there = await other.session("s", agent="a")
    await status(there, "idle")
    [[one, two]] = outputs(await there.messages())
    assert UUID(one) != UUID(two)


async def test_the_time_and_chance_are_the_same_on_every_entry(app: App) -> None:
    seen: list[tuple[object, ...]] = []

    @tool(effect="resumable")
    async def look(ctx: ToolContext) -> None:
        """Look."""
        seen.append((ctx.now(), ctx.uuid(), ctx.random(), ctx.random()))
        await ctx.wait_for_event("go")

    rt = await app.open(ScriptedModel(call("look"), say("ok")), look, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    await session.resolve("go")
    await sent.result(5)
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][2] != seen[0][3]


async def test_a_failed_step_raises_the_same_live_and_on_replay(app: App) -> None:
    runs: list[str] = []
    caught: list[tuple[str, str, str, str]] = []

    def refuse() -> None:
        runs.append("refuse")
        raise ToolError("no such page", code="page_gone", retry_safe=True)

    def crash() -> None:
        runs.append("crash")
        raise KeyError("secret")

    @tool(effect="resumable")
    async def publish(ctx: ToolContext) -> str:
        """Publish."""
        for name, fn in (("refuse", refuse), ("crash", crash)):
            try:
                await ctx.step(name, fn)
            except StepFailed as failed:
                caught.append((failed.step, failed.code, failed.message, failed.error_type))
        await ctx.wait_for_event("go")
        return "done"

    rt = await app.open(ScriptedModel(call("publish"), say("ok")), publish, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    await session.resolve("go")
    await sent.result(5)
    assert runs == ["refuse", "crash"]
    once = [
        ("refuse", "page_gone", "no such page", "ToolError"),
        ("crash", "internal_error", "An internal error occurred in the step", "KeyError"),
    ]
    assert caught == [*once, *once]


async def test_step_with_unknown_outcome_leaves_the_call_in_doubt(app: App) -> None:
    @tool(effect="resumable")
    async def pay(ctx: ToolContext) -> None:
        """Pay."""

        def send() -> None:
            raise OutcomeUnknown("502 from the bank")

        await ctx.step("send", send)

    rt = await app.open(ScriptedModel(call("pay"), say("ok")), pay)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    [output] = outputs(await session.messages())
    assert output["code"] == "outcome_unknown"
    assert "502 from the bank" in str(output["error"])


async def test_changed_step_input_fails_the_call_and_not_the_session(app: App) -> None:
    entries: list[int] = []
    runs: list[int] = []

    @tool(effect="resumable")
    async def publish(ctx: ToolContext) -> str:
        """Publish."""
        entries.append(1)
        with contextlib.suppress(Error):  # whatever a body does about it
            await ctx.step("render", runs.append, len(entries))
        await ctx.wait_for_event("go")
        return "published"

    rt = await app.open(ScriptedModel(call("publish"), say("ok")), publish, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    await session.resolve("go")
    await sent.result(5)
    [output] = outputs(await session.messages())
    assert output["code"] == "replay_mismatch"
    assert output["error"].endswith("(at $.command.input[0])")
    assert runs == [1]
    again = await session.send("and now?")
    await parked(rt, session)
    await session.resolve("go")
    assert (await again.result(5)).status == "finished"


async def test_misuse_is_refused_before_anything_runs(app: App) -> None:
    refused: list[Code] = []
    runs: list[str] = []

    @tool(effect="resumable")
    async def publish(ctx: ToolContext) -> None:
        """Publish."""

        async def attempt(name: str, *args: object) -> None:
            try:
                await ctx.step(name, lambda *_: runs.append(name), *args)
            except Error as problem:
                refused.append(problem.code)

        await attempt("a")
        await attempt("a")
        await attempt(" ")
        await attempt("b", {1, 2})
        await attempt("c", {1: "one"})
        await attempt("d", object())
        await attempt("e", "x" * 600_000)
        try:
            await ctx.wait_for_event("")
        except Error as problem:
            refused.append(problem.code)

    rt = await app.open(ScriptedModel(call("publish"), say("ok")), publish)
    await (await rt.session("s", agent="a")).ask("go")
    assert refused == [
        Code.DURABLE_EFFECT_DUPLICATE_STEP_ID,
        Code.DURABLE_EFFECT_EMPTY_STEP_ID,
        Code.INVALID_JSON,
        Code.INVALID_JSON,
        Code.INVALID_JSON,
        Code.INPUT_TOO_LARGE,
        Code.DURABLE_EFFECT_EMPTY_EVENT_KEY,
    ]
    assert runs == ["a"]


async def test_a_step_in_a_tool_that_is_not_resumable_names_the_fix(app: App) -> None:
    @tool
    async def publish(ctx: ToolContext) -> None:
        """Publish."""
        await ctx.step("render", print)

    rt = await app.open(ScriptedModel(call("publish"), say("ok")), publish)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    [output] = outputs(await session.messages())
    assert output["code"] == "durable_effects_unavailable"
    assert "publish is not resumable" in str(output["error"])


async def test_a_retried_attempt_replays_the_steps_of_the_one_before(app: App) -> None:
    runs: list[str] = []

    @tool(effect="resumable", retries=2)
    async def publish(ctx: ToolContext) -> str:
        """Publish."""
        await ctx.step("render", runs.append, "render")
        if ctx.attempt == 1:
            raise ToolError("flaky", retry_safe=True)
        return await ctx.step("upload", lambda: runs.append("upload") or "done")

    rt = await app.open(ScriptedModel(call("publish"), say("ok")), publish)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert (outputs(await session.messages()), runs) == (["done"], ["render", "upload"])


async def test_map_runs_one_step_per_item_and_keeps_their_order(app: App) -> None:
    runs: list[int] = []

    async def double(n: int) -> int:
        await asyncio.sleep(0.01 * (3 - n))
        runs.append(n)
        return 2 * n

    @tool(effect="resumable")
    async def work(ctx: ToolContext) -> list[int]:
        """Work."""
        first = await ctx.map("double", double, [1, 2, 3], key=lambda n: n)
        await ctx.wait_for_event("go")
        return first

    rt = await app.open(ScriptedModel(call("work"), say("ok")), work, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    await session.resolve("go")
    await sent.result(5)
    assert outputs(await session.messages()) == [[2, 4, 6]]
    assert sorted(runs) == [1, 2, 3]


async def test_steps_left_running_by_a_body_are_waited_for(app: App) -> None:
    done: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.05)
        done.append("slow")

    async def fast() -> None:
        raise ToolError("no")

    @tool(effect="resumable")
    async def work(ctx: ToolContext) -> None:
        """Work."""
        await asyncio.gather(ctx.step("slow", slow), ctx.step("fast", fast))

    rt = await app.open(ScriptedModel(call("work"), say("ok")), work)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert done == ["slow"]
    assert (await ids(session)).index("<c1.0/step:slow") < (await ids(session)).index("<c1.0.1")


# --- sleeps and events ------------------------------------------------------------------------------------------


async def test_a_sleep_ends_where_it_would_have_ended_without_the_restart(app: App) -> None:
    @tool(effect="resumable")
    async def nap(ctx: ToolContext) -> str:
        """Nap."""
        await ctx.sleep("short", "400ms")
        return "woken"

    model = ScriptedModel(call("nap"), say("ok"))
    rt = await app.open(model, nap, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await parked(rt, session)
    await rt.drain()
    other = await app.open(model, nap, tuning=HURRIED)
    there = await other.session("s", agent="a")
    await status(there, "idle")
    assert outputs(await there.messages()) == ["woken"]
    [started] = [
        row for row in await there.journal() if isinstance(row.record, EffectStarted) and "sleep" in row.record.id
    ]
    [settled] = [
        row for row in await there.journal() if isinstance(row.record, EffectSettled) and "sleep" in row.record.id
    ]
    assert isinstance(started.record, EffectStarted)
    assert started.record.due_at is not None
    assert settled.at >= started.record.due_at
    assert await core_of(other).store.next_due() is None


async def test_a_parked_session_is_told_and_verified_as_what_it_is(app: App) -> None:
    slowly = RetryPolicy(kind="idempotent", max_attempts=2, base_delay_ms=60_000, max_delay_ms=60_000)

    @tool(effect="resumable", retries=slowly)
    async def ask(ctx: ToolContext, fails: bool) -> object:
        """Ask."""
        if fails:
            raise ToolError("not now")
        return await ctx.wait_for_event("answer")

    model = ScriptedModel(calls(call("ask", fails=True), call("ask", fails=False)), say("ok"))
    rt = await app.open(model, ask, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await parked(rt, session)
    why = await session.why()
    until_when = {item.what: item.until for item in why.waiting}
    assert (why.status, len(until_when)) == ("waiting", 2)
    assert until_when["event 'answer' of tool ask"] is None
    assert until_when["the pause before the next attempt of ask"] is not None
    assert "session.resolve('answer', ...)" in why.hint
    info = await core_of(rt).store.stream(ref_of(session).stream)
    assert info is not None
    loaded = await core_of(rt).store.load(ref_of(session).stream, code=CODE)
    assert verify(info, await session.journal(), loaded).problems == ()
    await session.cancel()


async def test_step_concurrent_with_a_wait_prevents_parking(app: App) -> None:
    async def pay() -> str:
        await asyncio.sleep(1.2)
        return "paid"

    @tool(effect="resumable")
    async def both(ctx: ToolContext) -> object:
        """Both."""
        waiting = asyncio.create_task(ctx.wait_for_event("never"))
        await asyncio.sleep(0.3)
        paid = await ctx.step("pay", pay)
        waiting.cancel()
        return paid

    rt = await app.open(ScriptedModel(call("both"), say("ok")), both, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await sent.result(10)
    assert outputs(await session.messages()) == ["paid"]


async def test_nothing_is_parked_while_one_of_its_waits_is_being_set_up(app: App) -> None:
    class Slow:
        def __init__(self, store: Store) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Json:
            return getattr(self._store, name)

        async def peek(self, promise: PromiseId) -> PromiseState | None:
            await asyncio.sleep(0.1)
            return await self._store.peek(promise)

    @tool(effect="resumable")
    async def both(ctx: ToolContext) -> object:
        """Both."""
        found, late = asyncio.create_task(ctx.wait_for_event("answer")), asyncio.create_task(ctx.sleep("late", "1h"))
        done, _ = await asyncio.wait({found, late}, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()

    store = cast(Store, Slow(app.new_store()))
    agent = Agent("a", model=ScriptedModel(call("both"), say("ok")), tools=[both])
    async with Runtime(store, agents=[agent], options=HURRIED) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go")
        await parked(rt, session)
        await session.resolve("answer", 42)
        await sent.result(10)
        assert outputs(await session.messages()) == [42]


async def test_a_sleep_keeps_its_moment(app: App) -> None:
    asked: list[int] = []

    class Watching(SystemClock):
        async def sleep_until(self, wall_ms: int) -> None:
            asked.append(wall_ms)
            await super().sleep_until(wall_ms)

    @tool(effect="resumable")
    async def nap(ctx: ToolContext) -> None:
        """Nap."""
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.wait_for_event("stir"))
            group.create_task(ctx.sleep("long", "1h"))

    rt = await app.open(
        ScriptedModel(call("nap"), say("ok")), nap, tuning=RuntimeOptions(clock=Watching(), idle_timeout_s=0.05)
    )
    session = await rt.session("s", agent="a")
    await session.send("go")
    await parked(rt, session)
    await asyncio.sleep(0.02)
    await session.resolve("stir")
    await recorded(session, "<c1.0/event:stir")
    await parked(rt, session)
    assert len(asked) >= 2
    assert len(set(asked)) == 1
    await session.cancel()


async def test_an_event_ends_as_it_was_answered(app: App) -> None:
    caught: list[tuple[str, str]] = []

    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> None:
        """Ask."""
        for name, timeout in (("refused", None), ("late", "50ms")):
            try:
                await ctx.wait_for_event(name, timeout=timeout)
            except EventFailed as failed:
                caught.append((type(failed).__name__, failed.code))

    rt = await app.open(ScriptedModel(call("ask"), say("ok")), ask, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    await session.resolve("refused", error=Failure(code="no_budget", message="not this year"))
    await sent.result(5)
    once = [("EventFailed", "no_budget"), ("EventTimedOut", "durable_effect_event_timeout")]
    assert caught[-2:] == once
    assert EventTimedOut.__mro__[1] is EventFailed
    with pytest.raises(Error) as unknown:
        await session.resolve("late", "too late")
    assert unknown.value.code is Code.EVENT_KEY_INVALID


async def test_event_of_a_cancelled_turn_is_resolved_as_cancelled(app: App) -> None:
    keys: list[EventKey] = []

    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> None:
        """Ask."""
        keys.append(await ctx.event_key("reviewed"))
        await ctx.step("send", lambda: None)
        await event_of_key(ctx, keys[0])

    rt = await app.open(ScriptedModel(call("ask"), say("ok")), ask, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    assert await session.cancel() == "requested"
    result = await sent.result(5)
    assert (result.status, result.reason) == ("stopped", "cancelled")
    assert await rt.resolve(keys[0], 1) == AlreadyResolved(Cancelled())
    [output] = outputs(await session.messages())
    assert output["code"] == "tool_cancelled"


async def test_a_key_works_from_anywhere_and_a_forged_one_nowhere(app: App) -> None:
    keys: list[EventKey] = []

    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> object:
        """Ask."""
        key = await ctx.event_key("reviewed")
        assert key == await ctx.event_key("reviewed")
        keys.append(key)
        return await event_of_key(ctx, key)

    rt = await app.open(ScriptedModel(call("ask"), say("ok")), ask, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    sender = await app.open(ScriptedModel(), worker=False)
    key, text = keys[0], keys[0].text
    other = unsigned_key(key.scope, Custom(key="other"))
    for forged in (
        "nonsense",
        "",
        text[:-8],
        replace(key, signature="0" * 64),
        replace(key, signature=""),
        replace(other, signature=key.signature),
        replace(key, key_id=other.key_id),
    ):
        with pytest.raises(Error) as refused:
            await sender.resolve(forged, 0)
        assert refused.value.code is Code.EVENT_KEY_INVALID
    assert await sender.resolve(text, "yes") == Accepted()
    assert await sender.resolve(text, "no") == AlreadyResolved(Ok(value="yes"))
    await sent.result(5)
    assert outputs(await session.messages()) == ["yes"]
    assert keys[0].signature not in str([row.data for row in await session.journal()])


async def test_event_stays_open_after_the_timeout_of_one_call(app: App) -> None:
    @tool(effect="resumable")
    async def ask(ctx: ToolContext, seconds: float) -> object:
        """Ask."""
        try:
            return await ctx.wait_for_event("verdict", timeout=seconds)
        except EventTimedOut:
            return "gave up"

    model = ScriptedModel(calls(call("ask", seconds=0.1), call("ask", seconds=60)), say("ok"))
    rt = await app.open(model, ask, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await recorded(session, "<c1.0.1")
    assert await session.resolve("verdict", "yes") == Accepted()
    await sent.result(5)
    assert outputs(await session.messages()) == ["gave up", "yes"]


async def test_a_retried_attempt_may_wait_for_the_event_of_the_first(app: App) -> None:
    @tool(effect="resumable", retries=1)
    async def ask(ctx: ToolContext) -> object:
        """Ask."""
        waiting = asyncio.create_task(ctx.wait_for_event("verdict"))
        if ctx.attempt == 1:
            await asyncio.sleep(0.05)
            raise ToolError("flaky", retry_safe=True)
        return await waiting

    rt = await app.open(ScriptedModel(call("ask"), say("ok")), ask)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await recorded(session, ">c1.0.2")
    assert await session.resolve("verdict", "yes") == Accepted()
    await sent.result(5)
    assert outputs(await session.messages()) == ["yes"]


async def test_an_input_queues_behind_a_parked_turn(app: App) -> None:
    entries: list[int] = []

    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> None:
        """Ask."""
        entries.append(1)
        await ctx.wait_for_event("go")

    rt = await app.open(ScriptedModel(call("ask"), say("ok")), ask, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    first = await session.send("one")
    await parked(rt, session)
    second = await session.send("two")
    await parked(rt, session)
    await asyncio.sleep(0.6)  # two scans of the worker: a queued input must not make it enter the body again and again
    assert entries == [1]
    await session.resolve("go")
    assert (await first.result(5)).status == "finished"
    await parked(rt, session)
    await session.resolve("go")
    assert (await second.result(5)).status == "finished"


async def test_a_body_that_swallows_everything_is_parked_all_the_same(app: App) -> None:
    cleaned: list[str] = []

    @tool(effect="resumable")
    async def stubborn(ctx: ToolContext) -> object:
        """Be stubborn."""
        try:
            return await ctx.wait_for_event("go")
        except BaseException:  # noqa: BLE001 - the point of this test
            try:
                await ctx.step("more", cleaned.append, "never")
            except BaseException:  # noqa: BLE001
                cleaned.append("refused")
            return "not an outcome"
        finally:
            cleaned.append("finally")

    rt = await app.open(ScriptedModel(call("stubborn"), say("ok")), stubborn, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    assert cleaned == ["refused", "finally"]
    await session.resolve("go", "answer")
    await sent.result(5)
    assert outputs(await session.messages()) == ["answer"]


async def test_return_value_of_a_cancelled_body_is_ignored(app: App) -> None:
    @tool(effect="resumable")
    async def stubborn(ctx: ToolContext) -> object:
        """Be stubborn."""
        try:
            return await ctx.wait_for_event("go")
        except BaseException:  # noqa: BLE001 - the point of this test
            return "not an outcome"

    rt = await app.open(ScriptedModel(call("stubborn"), say("ok")), stubborn)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await recorded(session, ">c1.0/event:go")
    await session.cancel()
    assert (await sent.result(5)).reason == "cancelled"
    [output] = outputs(await session.messages())
    assert output["code"] == "tool_cancelled"


async def test_a_body_in_a_task_group_parks_and_resumes(app: App) -> None:
    @tool(effect="resumable")
    async def both(ctx: ToolContext) -> list[object]:
        """Both."""
        async with asyncio.TaskGroup() as group:
            one, two = group.create_task(ctx.wait_for_event("one")), group.create_task(ctx.wait_for_event("two"))
        return [one.result(), two.result()]

    rt = await app.open(ScriptedModel(call("both"), say("ok")), both, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    await session.resolve("two", 2)
    await asyncio.sleep(0.1)
    await parked(rt, session)
    await session.resolve("one", 1)
    await sent.result(5)
    assert outputs(await session.messages()) == [[1, 2]]


async def test_unsettled_once_call_keeps_the_turn_in_memory(app: App) -> None:
    go = asyncio.Event()
    charged: list[int] = []

    @tool
    async def charge() -> str:
        """Charge."""
        charged.append(1)
        await go.wait()
        return "charged"

    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> object:
        """Ask."""
        return await ctx.wait_for_event("go")

    rt = await app.open(ScriptedModel(calls(call("ask"), call("charge")), say("ok")), ask, charge, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await recorded(session, ">c1.0/event:go")

    async def is_charging() -> bool:
        return charged == [1]

    await until(is_charging)
    await asyncio.sleep(0.1)  # twice as long as it takes to park what only waits
    info = await core_of(rt).store.stream(ref_of(session).stream)
    assert info is not None
    assert not info.parked
    go.set()
    await parked(rt, session)
    await session.resolve("go", "yes")
    await sent.result(5)
    assert (outputs(await session.messages()), charged) == (["yes", "charged"], [1])


async def test_closing_runtime_does_not_wait_for_waiting_bodies(app: App) -> None:
    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> None:
        """Ask."""
        await ctx.wait_for_event("go")

    model = ScriptedModel(call("ask"), say("ok"))
    rt = Runtime(app.new_store(), agents=[Agent("a", model=model, tools=[ask])], options=RuntimeOptions(drain_s=30))
    async with rt, asyncio.timeout(5):
        session = await rt.session("s", agent="a")
        await session.send("go")
        await recorded(session, ">c1.0/event:go")
        await rt.drain()
        info = await core_of(rt).store.stream(ref_of(session).stream)
        assert info is not None
        assert info.parked


async def test_tool_timeout_of_an_agent_excludes_waiting_bodies(app: App) -> None:
    @tool(effect="resumable")
    async def nap(ctx: ToolContext) -> str:
        """Nap."""
        await ctx.sleep("short", "120ms")
        return "woken"

    agent = Agent("a", model=ScriptedModel(call("nap"), say("ok")), tools=[nap], tool_timeout="50ms")
    async with Runtime(app.new_store(), agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go")
        assert outputs(await session.messages()) == ["woken"]


async def test_many_more_waiting_turns_than_slots_are_parked_without_a_fuss(app: App) -> None:
    entries: list[str] = []

    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> object:
        """Ask."""
        entries.append(ctx.session_id)
        return await ctx.wait_for_event("go")

    rt = await app.open(
        ScriptedModel(call("ask"), say("ok")), ask, tuning=RuntimeOptions(idle_timeout_s=30, max_waiting=2)
    )
    sessions = [await rt.session(f"s{n}", agent="a") for n in range(12)]
    sent = list(await asyncio.gather(*(session.send("go") for session in sessions)))

    async def all_but_two_parked() -> bool:
        found = [await core_of(rt).store.stream(ref_of(session).stream) for session in sessions]
        return sum(info is not None and info.parked for info in found) == 10

    await until(all_but_two_parked)
    assert len(entries) == 12
    await asyncio.gather(*(session.resolve("go", 1) for session in sessions))
    assert {(await one.result(10)).status for one in sent} == {"finished"}


async def test_a_runtime_without_any_slot_parks_at_once(app: App) -> None:
    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> object:
        """Ask."""
        return await ctx.wait_for_event("go")

    rt = await app.open(ScriptedModel(call("ask"), say("ok")), ask, tuning=RuntimeOptions(max_waiting=0))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    await session.resolve("go", 7)
    await sent.result(5)
    assert outputs(await session.messages()) == [7]


async def test_a_body_that_outlives_its_cancelled_turn_writes_into_no_other(app: App) -> None:
    ran: list[str] = []

    async def pay(turn: str) -> str:
        ran.append(turn)
        if len(ran) > 1:
            return "second"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.4)  # ignores that it should stop
        return "first"

    @tool(effect="resumable")
    async def work(ctx: ToolContext) -> object:
        """Work."""
        paid = await ctx.step("pay", pay, "same")
        await ctx.step("after", ran.append, "after")
        return paid

    rt = await app.open(ScriptedModel(call("work"), say("ok")), work)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await recorded(session, ">c1.0/step:pay")
    while not ran:  # noqa: ASYNC110 - a list has no event
        await asyncio.sleep(0.01)
    await session.cancel()
    assert (await sent.result(5)).reason == "cancelled"
    await (await session.send("again")).result(5)
    await asyncio.sleep(0.5)
    assert ran == ["same", "same", "after"]
    assert outputs(await session.messages())[-1] == "second"
    settled = [row.record.id for row in await session.journal() if isinstance(row.record, EffectSettled)]
    assert settled.count(EffectId("c1.0/step:pay")) == 2  # one in doubt, one of the second turn


async def test_an_answer_that_comes_while_a_body_is_unwound_finds_one_body(app: App) -> None:
    ran: list[str] = []

    @tool(effect="resumable")
    async def work(ctx: ToolContext) -> object:
        """Work."""
        try:
            verdict = await ctx.wait_for_event("go")
            await ctx.step("pay", ran.append, "paid")
            return verdict
        finally:
            await asyncio.sleep(0.3)

    rt = await app.open(ScriptedModel(call("work"), say("ok")), work, tuning=RuntimeOptions(idle_timeout_s=0.05))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await recorded(session, ">c1.0/event:go")
    await asyncio.sleep(0.1)
    await session.resolve("go", "yes")
    await sent.result(10)
    assert (outputs(await session.messages()), ran) == (["yes"], ["paid"])
    assert await core_of(rt).store.next_due() is None


async def test_an_answer_that_could_not_be_recorded_is_refused(app: App) -> None:
    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> object:
        """Ask."""
        return await ctx.wait_for_event("go")

    rt = await app.open(ScriptedModel(call("ask"), say("ok")), ask)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await recorded(session, ">c1.0/event:go")
    wrong: list[tuple[Json, Code]] = [
        ("x" * 300_000, Code.INPUT_TOO_LARGE),
        ({1, 2}, Code.INVALID_JSON),
        ({1: 2}, Code.INVALID_JSON),
        (float("nan"), Code.INVALID_JSON),
    ]
    for value, code in wrong:
        with pytest.raises(Error) as refused:
            await session.resolve("go", value)
        assert refused.value.code is code
    await session.resolve("go", "small")
    await sent.result(5)
    assert outputs(await session.messages()) == ["small"]


async def test_wait_for_an_event_of_a_deleted_session_is_cancellable(app: App) -> None:
    keys: dict[str, EventKey] = {}

    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> object:
        """Ask."""
        if ctx.session_id == "other":
            keys["other"] = await ctx.event_key("go")
            return await ctx.wait_for_event("go")
        return await event_of_key(ctx, keys["other"], timeout=60)

    rt = await app.open(ScriptedModel(call("ask"), say("ok")), ask, tuning=HURRIED)
    other, session = await rt.session("other", agent="a"), await rt.session("s", agent="a")
    await other.send("go")
    await parked(rt, other)
    sent = await session.send("go")
    await parked(rt, session)
    await other.delete()
    await session.cancel()
    assert (await sent.result(5)).reason == "cancelled"


async def test_signature_of_an_event_key_is_not_recorded_in_steps(app: App) -> None:
    mailed: list[EventKey] = []

    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> None:
        """Ask."""
        await ctx.step("mail", mailed.append, await ctx.event_key("go"))

    rt = await app.open(ScriptedModel(call("ask"), say("ok")), ask)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert mailed[0].signature
    assert mailed[0].signature not in str([row.data for row in await session.journal()])


# --- completions ------------------------------------------------------------------------------------------------


async def test_pending_call_ends_with_its_external_completion(app: App) -> None:
    keys: dict[int, EventKey] = {}

    @tool
    async def order(ctx: ToolContext, n: int) -> PendingCompletion:
        """Order."""
        keys[n] = await ctx.completion_key()
        assert await ctx.completion_key() == keys[n]
        return ctx.pending()

    model = ScriptedModel(calls(call("order", n=1), call("order", n=2)), say("ok"))
    rt = await app.open(model, order, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    assert keys[1] != keys[2]
    assert await rt.resolve(keys[2], error=Failure(code="sold_out", message="none left")) == Accepted()
    assert await rt.resolve(keys[1], {"order": 7}) == Accepted()
    await sent.result(5)
    assert outputs(await session.messages()) == [{"order": 7}, {"error": "none left", "code": "sold_out"}]


async def test_pending_call_times_out_without_completion(app: App) -> None:
    keys: list[EventKey] = []

    @tool
    async def order(ctx: ToolContext) -> PendingCompletion:
        """Order."""
        keys.append(await ctx.completion_key())
        return ctx.pending(deadline="100ms")

    rt = await app.open(ScriptedModel(call("order"), say("ok")), order, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await (await session.send("go")).result(5)
    [output] = outputs(await session.messages())
    assert output["code"] == "tool_completion_timeout"
    assert await rt.resolve(keys[0], 1) == AlreadyResolved(TimedOut())


async def test_silence_may_end_the_turn(app: App) -> None:
    @tool
    async def order(ctx: ToolContext) -> PendingCompletion:
        """Order."""
        await ctx.completion_key()
        return ctx.pending(deadline="50ms", on_timeout="fail_turn")

    rt = await app.open(ScriptedModel(call("order"), say("never said")), order, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    for text in ("go", "again"):
        result = await (await session.send(text)).result(5)
        assert (result.status, result.reason, result.text) == ("stopped", "completion_timeout", "")


async def test_pending_without_a_key_is_a_failure(app: App) -> None:
    @tool
    async def order(ctx: ToolContext) -> PendingCompletion:
        """Order."""
        return ctx.pending()

    rt = await app.open(ScriptedModel(call("order"), say("ok")), order)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    [output] = outputs(await session.messages())
    assert output["code"] == "pending_tool_missing_completion_key"


async def test_a_completion_that_was_accepted_before_the_cancel_is_told(app: App) -> None:
    keys: list[EventKey] = []

    @tool
    async def order(ctx: ToolContext) -> PendingCompletion:
        """Order."""
        keys.append(await ctx.completion_key())
        return ctx.pending()

    model = ScriptedModel(call("order"), say("ok"))
    rt = await app.open(model, order, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    await rt.drain()
    sender = await app.open(model, order, worker=False)
    assert await sender.resolve(keys[0], "shipped") == Accepted()
    await sender.get_session("s").cancel()
    other = await app.open(model, order)
    there = await other.session("s", agent="a")
    await status(there, "idle")
    assert outputs(await there.messages()) == ["shipped"]
    assert sent.turn_id


async def test_the_key_of_a_call_that_ended_by_itself_is_over(app: App) -> None:
    keys: list[EventKey] = []
    go = asyncio.Event()

    @tool
    async def order(ctx: ToolContext) -> str:
        """Order."""
        keys.append(await ctx.completion_key())
        return "done at once"

    @tool(effect="pure")
    async def hold() -> None:
        """Hold."""
        await go.wait()

    rt = await app.open(ScriptedModel(calls(call("order"), call("hold")), say("ok")), order, hold)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await recorded(session, "<c1.0.1")
    assert await rt.resolve(keys[0], 1) == AlreadyResolved(Cancelled())
    go.set()
    await sent.result(5)


async def test_a_pending_call_of_a_cancelled_turn_is_over(app: App) -> None:
    keys: list[EventKey] = []

    @tool
    async def order(ctx: ToolContext) -> PendingCompletion:
        """Order."""
        keys.append(await ctx.completion_key())
        return ctx.pending()

    rt = await app.open(ScriptedModel(call("order"), say("ok")), order, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    await session.cancel()
    assert (await sent.result(5)).reason == "cancelled"
    assert await rt.resolve(keys[0], 1) == AlreadyResolved(Cancelled())


# --- what a step may give, and how many run at once


@pytest.mark.parametrize(
    ("given", "code"), [("x" * 1_100_000, "step_result_too_large"), (object(), "step_result_invalid")]
)
async def test_step_with_an_unstorable_result_fails_once(app: App, given: object, code: str) -> None:
    ran: list[int] = []

    @tool(effect="resumable")
    async def act(ctx: ToolContext) -> str:
        """Give too much."""

        def give() -> object:
            ran.append(1)
            return given

        try:
            await ctx.step("give", give)
        except ToolError as problem:
            await ctx.sleep("a little", 0.001)  # parks: the body is entered again
            return problem.code
        return "kept"

    rt = await app.open(ScriptedModel(call("act"), say("done")), act, tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="a")
    await session.ask("go")
    results = [
        part for message in await session.messages() for part in message.parts if isinstance(part, ToolResultPart)
    ]
    assert [one.output for one in results] == [code]
    assert len(ran) == 1


async def test_a_map_runs_no_more_at_once_than_it_may(app: App) -> None:
    at_once = most = 0

    @tool(effect="resumable")
    async def act(ctx: ToolContext) -> list[int]:
        """Do many things."""

        async def one(n: int) -> int:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.005)
            at_once -= 1
            return n

        return await ctx.map("one", one, list(range(12)), limit=3, effect="pure")

    rt = await app.open(ScriptedModel(call("act"), say("done")), act)
    await (await rt.session("s", agent="a")).ask("go")
    assert most == 3


async def _cyclic(ctx: ToolContext) -> object:
    ring: list[object] = []
    ring.append(ring)
    return await ctx.step("ring", str, ring)


MISUSES: list[tuple[Callable[[ToolContext], Awaitable[object]], str]] = [
    (lambda ctx: ctx.step(5, str), "invalid_id"),  # type: ignore[arg-type]
    (lambda ctx: ctx.wait_for_event(7), "invalid_id"),  # type: ignore[arg-type]
    (lambda ctx: ctx.step("five", 5), "internal_error"),  # type: ignore[arg-type]
    (lambda ctx: ctx.sleep("back", -5), "internal_error"),  # the log has the words
    (_cyclic, "invalid_json"),
]


@pytest.mark.parametrize(("misuse", "code"), MISUSES)
async def test_misuse_of_the_context_fails_with_a_code(
    app: App, misuse: Callable[[ToolContext], Awaitable[object]], code: str
) -> None:
    @tool(effect="resumable")
    async def act(ctx: ToolContext) -> str:
        """Do it wrongly."""
        await misuse(ctx)
        return "done"

    rt = await app.open(ScriptedModel(call("act"), say("done")), act)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    [told] = [
        part for message in await session.messages() for part in message.parts if isinstance(part, ToolResultPart)
    ]
    assert f"'code': '{code}'" in str(told.output)
    settled = [row.record.id for row in await session.journal() if isinstance(row.record, EffectSettled)]
    assert not [one for one in settled if "/" in one], "a refused call was recorded"


async def test_a_map_takes_whatever_yields_its_items(app: App) -> None:
    @tool(effect="resumable")
    async def act(ctx: ToolContext) -> list[int]:
        """Double them."""
        return await ctx.map("double", lambda n: 2 * n, (n for n in (1, 2, 3)))

    rt = await app.open(ScriptedModel(call("act"), say("done")), act)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    results = [
        part for message in await session.messages() for part in message.parts if isinstance(part, ToolResultPart)
    ]
    assert [one.output for one in results] == [[2, 4, 6]]


@pytest.mark.parametrize(
    "given", [{"max_iterations": "x"}, {"max_iterations": None}, {"tools": 5}, {"tools": "look"}, {"tools": [5]}]
)
def test_an_agent_that_cannot_be_is_refused_in_our_words(given: dict[str, object]) -> None:
    with pytest.raises(Error) as refused:
        Agent("a", model=ScriptedModel(say("x")), **given)  # type: ignore[arg-type]
    assert refused.value.code in (Code.AGENT_INVALID, Code.TOOL_INVALID)
