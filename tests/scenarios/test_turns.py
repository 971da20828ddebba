"""Turns as users live them: tools of every kind, failures, retries, budgets, cancels, on every store."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from perdure import (
    Agent,
    Code,
    DidNotHappen,
    Error,
    OutcomeUnknown,
    RetryPolicy,
    Runtime,
    RuntimeOptions,
    ToolContext,
    ToolError,
    tool,
)
from perdure.ids import TurnId
from perdure.models.scripted import ScriptedModel, call, calls, fail, malformed, refuse, say
from perdure.runtime.internals import core_of
from perdure.vocab.effects import EffectKind, Sleep
from perdure.vocab.messages import Message, ToolResultPart
from perdure.vocab.outcomes import Success, into_tool_call
from perdure.vocab.records import EffectSettled, EffectStarted, TurnEnded
from tests.scenarios.conftest import App


def results(history: tuple[Message, ...]) -> list[ToolResultPart]:
    return [part for message in history for part in message.parts if isinstance(part, ToolResultPart)]


async def test_asking_is_answered_and_remembered(app: App) -> None:
    rt = await app.open(ScriptedModel(say("hello", exact=True)))
    session = await rt.session("s", agent="a")
    assert await session.ask("hi") == "hello"
    assert [message.role for message in await session.messages()] == ["user", "assistant"]


async def test_sync_tool_runs_in_a_thread_with_the_call_context(app: App) -> None:
    seen: list[tuple[str, str, int]] = []

    @tool
    def charge(ctx: ToolContext, cents: int) -> dict[str, int]:
        """Charge."""
        seen.append((threading.current_thread().name, ctx.idempotency_key, ctx.attempt))
        return {"cents": cents}

    rt = await app.open(ScriptedModel(call("charge", cents=5), say("ok")), charge)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert results(await session.messages())[0].output == {"cents": 5}
    [(thread, key, attempt)] = seen
    assert thread != threading.main_thread().name
    assert key.startswith("perdure-tool:default:s:")
    assert attempt == 1


async def test_deps_reach_a_tool(app: App) -> None:
    @tool
    def look(ctx: ToolContext[dict[str, int]]) -> int:
        """Look."""
        return ctx.deps["answer"]

    rt = await app.open(ScriptedModel(call("look"), say("ok")), look, deps={"answer": 42})
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert results(await session.messages())[0].output == 42


async def test_results_come_in_the_models_order_whatever_finishes_first(app: App) -> None:
    @tool(effect="pure")
    async def wait(ms: int) -> int:
        """Wait."""
        await asyncio.sleep(ms / 1000)
        return ms

    rt = await app.open(
        ScriptedModel(calls(call("wait", ms=40), call("wait", ms=1), call("wait", ms=20)), say("ok")), wait
    )
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert [result.output for result in results(await session.messages())] == [40, 1, 20]


async def test_at_most_thirty_two_calls_run_at_once(app: App) -> None:
    running = most = 0
    full = asyncio.Event()

    @tool(effect="pure")
    async def one(n: int) -> int:
        """One."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running >= 32:
            full.set()
        await full.wait()
        await asyncio.sleep(0.01)  # for others who might come in too
        running -= 1
        return n

    rt = await app.open(ScriptedModel(calls(*(call("one", n=n) for n in range(40))), say("ok")), one)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert most == 32
    assert [result.output for result in results(await session.messages())] == list(range(40))


async def test_a_wrong_argument_is_told_to_the_model_and_nothing_runs(app: App) -> None:
    ran: list[int] = []

    @tool
    def charge(cents: int) -> None:
        """Charge."""
        ran.append(cents)

    script = calls(call("charge", cents="many"), malformed("charge", '{"cents": '), call("nothing"))
    rt = await app.open(ScriptedModel(script, say("ok")), charge)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    codes = [result.output["code"] for result in results(await session.messages())]
    assert codes == ["invalid_tool_args", "invalid_tool_args", "tool_unavailable"]
    assert ran == []


async def test_a_tools_own_error_is_told_and_an_internal_one_is_hidden(app: App) -> None:
    @tool
    def own() -> None:
        """Own."""
        raise ToolError("the card was declined", code="declined")

    @tool
    def internal() -> None:
        """Internal."""
        raise RuntimeError("password=hunter2")

    @tool
    def panics() -> None:
        """Panic."""
        raise SystemExit(3)

    rt = await app.open(
        ScriptedModel(calls(call("own"), call("internal"), call("panics")), say("ok")), own, internal, panics
    )
    session = await rt.session("s", agent="a")
    await session.ask("go")
    told = results(await session.messages())
    assert told[0].output == {"error": "the card was declined", "code": "declined"}
    assert told[1].output == {"error": "An internal error occurred while executing the tool", "code": "internal_error"}
    assert told[2].output["code"] == "tool_panicked"
    assert all(b"hunter2" not in row.data for row in await session.journal())


async def test_a_result_json_cannot_carry_says_that_the_tool_did_run(app: App) -> None:
    @tool
    def odd() -> object:
        """Odd."""
        return {"a": [1.0, float("nan")]}

    rt = await app.open(ScriptedModel(call("odd"), say("ok")), odd)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    output = results(await session.messages())[0].output
    assert output["code"] == "tool_result_invalid"
    assert "a[1]" in output["error"]


async def test_a_large_result_is_stored_whole_and_shown_in_part(app: App) -> None:
    @tool(effect="pure")
    def big() -> str:
        """Big."""
        return "é" * 300_000

    rt = await app.open(ScriptedModel(calls(*(call("big") for _ in range(20))), say("ok")), big)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    told = results(await session.messages())
    assert len(told) == 20
    assert told[0].output["truncated"] is True
    assert told[0].output["bytes_total"] == 600_000
    settled = next(r.record for r in await session.journal() if r.kind == "effect_settled" and b"c1.0.1" in r.data)
    assert isinstance(settled, EffectSettled)
    output = into_tool_call(settled.outcome).output
    assert isinstance(output, Success)
    assert output.spilled is not None
    assert len((await core_of(rt).store.blob(output.spilled.hash)).data) == 600_000


async def test_an_idempotent_tool_is_retried_and_each_attempt_is_in_the_log(app: App) -> None:
    attempts: list[int] = []

    @tool(effect="idempotent", retries=RetryPolicy(kind="idempotent", max_attempts=3, base_delay_ms=1))
    def put(ctx: ToolContext) -> str:
        """Put."""
        attempts.append(ctx.attempt)
        if len(attempts) < 3:
            raise RuntimeError("not yet")
        return "put"

    rt = await app.open(ScriptedModel(call("put"), say("ok")), put)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert attempts == [1, 2, 3]
    ids = [row.record.id for row in await session.journal() if isinstance(row.record, EffectSettled)]
    assert ids == ["m1.1", "c1.0.1", "c1.0.1.sleep", "c1.0.2", "c1.0.2.sleep", "c1.0.3", "m2.1"]


async def test_once_tool_is_retried_under_a_safe_policy_only(app: App) -> None:
    ran: list[str] = []

    @tool(retries=3)
    def unsafe(ctx: ToolContext) -> None:
        """Unsafe."""
        ran.append("unsafe")
        raise ToolError("no")

    @tool(retries=RetryPolicy(kind="safe", max_attempts=3, base_delay_ms=1))
    def safe(ctx: ToolContext) -> str:
        """Safe."""
        ran.append("safe")
        if ctx.attempt == 1:
            raise ToolError("busy", retry_safe=True, retry_after_ms=5)
        return "ok"

    rt = await app.open(ScriptedModel(calls(call("unsafe"), call("safe")), say("ok")), unsafe, safe)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert sorted(ran) == ["safe", "safe", "unsafe"]


async def test_a_tool_that_does_not_know_leaves_the_call_in_doubt(app: App) -> None:
    @tool
    def charge() -> None:
        """Charge."""
        raise OutcomeUnknown("the line went dead")

    rt = await app.open(ScriptedModel(call("charge"), say("ok")), charge)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    output = results(await session.messages())[0].output
    assert output["code"] == "outcome_unknown"
    assert output["reason"] == "declared"


async def test_busy_provider_is_retried_after_its_requested_delay(app: App) -> None:
    rt = await app.open(ScriptedModel(fail(status=429, retry_after_ms=700), say("ok", exact=True)))
    session = await rt.session("s", agent="a")
    assert await session.ask("go") == "ok"
    sleep = next(
        row
        for row in await session.journal()
        if isinstance(row.record, EffectStarted) and row.record.kind is EffectKind.SLEEP
    )
    assert isinstance(sleep.record, EffectStarted)
    assert sleep.record.due_at is not None
    assert sleep.record.command == Sleep(duration_ms=700)
    again = [row.at for row in await session.journal() if row.seq > sleep.seq]
    assert min(again) >= sleep.record.due_at


async def test_refused_key_stops_the_turn_and_not_the_session(app: App) -> None:
    model = ScriptedModel.by_input({"bad": [fail(status=401)], "good": [say("fine", exact=True)]})
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    with pytest.raises(Error) as caught:
        await session.ask("bad")
    assert caught.value.code is Code.TURN_FAILED
    assert caught.value.details["reason"] == "provider_error"
    assert await session.ask("good") == "fine"


async def test_a_refusal_is_a_stop_of_its_own(app: App) -> None:
    rt = await app.open(ScriptedModel(refuse("I would rather not.")))
    session = await rt.session("s", agent="a")
    result = await (await session.send("go")).result(timeout=10)
    assert (result.status, result.reason) == ("stopped", "refused")


async def test_a_turn_that_leads_nowhere_is_stopped_after_twelve_fruitless_replies(app: App) -> None:
    rt = await app.open(ScriptedModel(*(call("nothing") for _ in range(30))))
    session = await rt.session("s", agent="a")
    result = await (await session.send("go")).result(timeout=20)
    assert (result.status, result.reason) == ("stopped", "no_progress")
    replies = [
        r for r in await session.journal() if isinstance(r.record, EffectSettled) and r.record.id.startswith("m")
    ]
    assert len(replies) == 12


async def test_the_iteration_budget_ends_with_a_last_reply_without_tools() -> None:
    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return "seen"

    model = ScriptedModel(call("look"), call("look"), say("enough", exact=True))
    async with Runtime("memory://", agents=[Agent("a", model=model, tools=[look], max_iterations=2)]) as rt:
        session = await rt.session("s", agent="a")
        assert await session.ask("go") == "enough"
        assert [request.tool_choice for request in model.requests] == ["auto", "auto", "none"]


async def test_cancelling_answers_every_call_and_leaves_a_usable_session(app: App) -> None:
    started = asyncio.Event()

    @tool
    async def charge() -> None:
        """Charge."""
        started.set()
        await asyncio.sleep(3600)

    @tool(sequential=True)
    async def after() -> None:
        """Never reached."""

    model = ScriptedModel.by_input({"go": [calls(call("charge"), call("after"))]}, default=[say("fine", exact=True)])
    rt = await app.open(model, charge, after)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await started.wait()
    assert await session.cancel(reason="changed my mind") == "requested"
    assert await session.cancel(sent.turn_id) in ("already_requested", "unknown")
    result = await sent.result(timeout=10)
    assert (result.status, result.reason, result.message) == ("stopped", "cancelled", "changed my mind")
    codes = [r.output["code"] for r in results(await session.messages())]
    assert codes == ["outcome_unknown", "cancelled"]
    assert await session.ask("next") == "fine"
    assert await session.cancel(sent.turn_id) == "already_requested"


async def test_a_finished_turn_cannot_be_cancelled(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await sent.result(timeout=10)
    assert await session.cancel(sent.turn_id) == "completion_won"
    ends = [row for row in await session.journal() if isinstance(row.record, TurnEnded)]
    assert len(ends) == 1


async def test_a_queued_input_can_be_cancelled_before_its_turn_begins(app: App) -> None:
    release = asyncio.Event()

    @tool(effect="pure")
    async def hold() -> None:
        """Hold."""
        await release.wait()

    model = ScriptedModel.by_input({"first": [call("hold"), say("one")]}, default=[say("two")])
    rt = await app.open(model, hold)
    session = await rt.session("s", agent="a")
    first = await session.send("first")
    second = await session.send("second")
    assert await session.cancel(second.turn_id) == "requested"
    release.set()
    assert (await first.result(timeout=10)).status == "finished"
    assert (await second.result(timeout=10)).reason == "cancelled"


async def test_inputs_are_answered_in_the_order_they_were_sent(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    sents = [await session.send(f"input {n}") for n in range(6)]
    for sent in sents:
        await sent.result(timeout=10)
    asked = [message.parts[0].text for message in await session.messages() if message.role == "user"]  # type: ignore[union-attr]
    assert asked == [f"input {n}" for n in range(6)]


async def test_a_sync_tool_that_ignores_its_timeout_does_not_block_the_turn(app: App) -> None:
    release = threading.Event()

    @tool(effect="pure", timeout="30ms")
    def stuck() -> None:
        """Stuck."""
        release.wait(20)

    rt = await app.open(ScriptedModel(call("stuck"), say("ok")), stuck)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert results(await session.messages())[0].output["code"] == "tool_timeout"
    release.set()


async def test_a_runtime_that_closes_hands_its_running_call_over_as_in_doubt(tmp_path: Path) -> None:
    started = asyncio.Event()

    @tool
    async def charge() -> None:
        """Charge."""
        started.set()
        await asyncio.sleep(3600)

    url = f"sqlite:///{tmp_path / 's.db'}"
    agent = Agent("a", model=ScriptedModel(call("charge"), say("told", exact=True)), tools=[charge])
    async with Runtime(url, agents=[agent], options=RuntimeOptions(drain_s=0.05)) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go", key="k")
        await started.wait()
    async with Runtime(url, agents=[agent]) as rt:
        session = rt.get_session("s")
        result = await (await session.send("go", key="k")).result(timeout=10)
        assert result.turn_id == sent.turn_id
        assert result.text == "told"
        output = results(await session.messages())[0].output
        assert output["reason"] == "drained"


async def test_did_not_happen_is_ignored_while_the_thread_runs(app: App) -> None:
    release = threading.Event()
    ran: list[int] = []

    @tool(timeout="250ms", probe=lambda ctx: DidNotHappen())
    def charge(ctx: ToolContext) -> None:
        """Charge, some time."""
        ran.append(ctx.attempt)
        release.wait(20)

    rt = await app.open(ScriptedModel(call("charge"), say("ok")), charge)
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=10)
    release.set()
    assert ran == [1]
    assert results(await session.messages())[0].output["code"] == "outcome_unknown"


async def test_did_not_happen_is_not_believed_of_a_cancelled_body_either(app: App) -> None:
    """The coroutine is gone at the timeout; the thread it started is not."""
    charged = list[int]()

    def blocking(attempt: int) -> None:
        release.wait(20)
        charged.append(attempt)

    release = threading.Event()

    @tool(timeout="250ms", probe=lambda ctx: DidNotHappen())
    async def charge(ctx: ToolContext) -> None:
        """Charge, in a thread of its own making."""
        await asyncio.to_thread(blocking, ctx.attempt)

    rt = await app.open(ScriptedModel(call("charge"), say("ok")), charge)
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=10)
    release.set()
    async with asyncio.timeout(5):
        while not charged:  # noqa: ASYNC110 - a thread decides
            await asyncio.sleep(0.01)
    assert charged == [1]
    assert results(await session.messages())[0].output["code"] == "outcome_unknown"


async def test_a_turn_is_shown_the_same_conversation_after_a_restart(tmp_path: Path) -> None:
    """Messages omitted by the view budget at the start of the turn stay omitted until it ends."""
    started = asyncio.Event()
    hold = True

    @tool(effect="idempotent")
    async def put() -> str:
        """Put."""
        started.set()
        if hold:
            await asyncio.sleep(3600)
        return "put"

    script = {"go": [call("put"), say("done", exact=True)]}
    before = ScriptedModel.by_input(script, default=[say("x" * 200, exact=True)])
    after = ScriptedModel.by_input(script)
    url = f"sqlite:///{tmp_path / 's.db'}"
    agent = Agent("a", model=before, tools=[put], view_bytes=700)
    async with Runtime(url, agents=[agent], options=RuntimeOptions(drain_s=0.01)) as rt:
        session = await rt.session("s", agent="a")
        for n in range(8):
            await session.ask(f"input {n}")
        await session.send("go", key="k")
        await started.wait()
    shown = len(before.requests[-1].messages)
    assert shown < 10
    hold = False
    async with Runtime(url, agents=[Agent("a", model=after, tools=[put], view_bytes=700)]) as rt:
        await (await rt.get_session("s").send("go", key="k")).result(timeout=10)
    assert len(after.requests[-1].messages) == shown + 2, "the same, and the call with its result"


async def test_unknown_turn_is_not_cancelled(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    await session.ask("go")
    before = len(await session.journal())
    assert await session.cancel(TurnId("bogus")) == "unknown"
    assert len(await session.journal()) == before
