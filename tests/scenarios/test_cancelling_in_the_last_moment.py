"""A turn is cancelled in the very moment in which a call of it ends: what is known of the call is told all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from perdure import RetryPolicy, ToolContext, ToolError, tool
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.runtime.calls.runners import Runner
from perdure.runtime.internals import ref_of
from perdure.runtime.sessions.session import Session
from perdure.runtime.turns.in_flight import InFlight
from perdure.runtime.turns.loop import TurnDriver
from perdure.testing.validity import complaints
from perdure.tools.toolbox import ToolSource
from perdure.vocab.outcomes import PendingCompletion
from perdure.vocab.records import CancelRequested, EffectStarted, TurnEnded
from tests.scenarios.conftest import App
from tests.scenarios.test_interrupting import codes
from tests.scenarios.verbs import Gate

InTheLastMoment = Callable[[str], None]


@pytest.fixture
def cancelled_with(monkeypatch: pytest.MonkeyPatch) -> InTheLastMoment:
    """Cancels the turn when this effect has completed, before its outcome is read."""

    def arm(effect: str) -> None:
        fly = TurnDriver._run_effect  # pyright: ignore[reportPrivateUsage] - between two ticks there is no public moment

        async def and_cancel(self: TurnDriver, flight: InFlight, runner: Runner) -> None:
            await fly(self, flight, runner)
            if flight.id == effect:
                assert flight.outcome is not None
                self.interrupt(CancelRequested(turn=self.turn.id, request="r", reason="enough"))

        monkeypatch.setattr(TurnDriver, "_run_effect", and_cancel)

    return arm


async def told(app: App, *tools: ToolSource, names: tuple[str, ...]) -> tuple[list[object], Session]:
    """Run one turn that is cancelled, and say what the model is told of its calls."""
    made = calls(*(call(name) for name in names))
    rt = await app.open(ScriptedModel.by_input({"go": [made], "and now?": [say("on", exact=True)]}), *tools)
    session = await rt.session("s", agent="a")
    ended = await (await session.send("go")).result(10)
    assert (ended.status, ended.reason) == ("stopped", "cancelled")
    history = await session.messages()
    assert complaints(history) == []
    assert await session.ask("and now?") == "on"
    ends = [row.record.reason for row in await session.journal() if isinstance(row.record, TurnEnded)]
    assert ends == ["cancelled", None]
    return codes(history), session


async def test_cancelled_turn_reports_a_once_result_and_a_doubt(app: App, cancelled_with: InTheLastMoment) -> None:
    cancelled_with("c1.1.1")
    gate, ran = Gate(), list[str]()

    @tool
    async def refund() -> str:
        """Refund."""
        await gate.entered.wait()
        ran.append("refund")
        return "receipt 77"

    @tool(sequential=True)
    async def never() -> str:
        """Never."""
        ran.append("never")
        return "never"

    answers, _ = await told(app, gate.pay, refund, never, names=("pay", "refund", "never"))
    assert answers == ["outcome_unknown", "receipt 77", "cancelled"]
    assert (ran, gate.world) == (["refund"], ["pay ann"])


async def test_the_failure_of_a_once_call_is_told(app: App, cancelled_with: InTheLastMoment) -> None:
    cancelled_with("c1.0.1")

    @tool
    async def refund() -> str:
        """Refund."""
        raise ToolError("closed", code="bank_closed")

    assert (await told(app, refund, names=("refund",)))[0] == ["bank_closed"]


async def test_cancelled_turn_reports_the_result_of_a_body(app: App, cancelled_with: InTheLastMoment) -> None:
    cancelled_with("c1.0.1")
    ran: list[str] = []

    async def pay() -> str:
        ran.append("paid")
        return "receipt"

    @tool(effect="resumable")
    async def order(ctx: ToolContext) -> str:
        """Order."""
        return await ctx.step("pay", pay) + " 78"

    assert (await told(app, order, names=("order",)))[0] == ["receipt 78"]
    assert ran == ["paid"]


async def test_a_failed_attempt_is_told_as_one_and_not_made_again(app: App, cancelled_with: InTheLastMoment) -> None:
    cancelled_with("c1.0.1")
    ran: list[int] = []

    @tool(effect="idempotent", retries=RetryPolicy(kind="idempotent", max_attempts=3, base_delay_ms=0))
    async def flaky(ctx: ToolContext) -> str:
        """Flaky."""
        ran.append(ctx.attempt)
        raise ToolError("not now", retry_safe=True)

    assert (await told(app, flaky, names=("flaky",)))[0] == ["tool_cancelled"]
    assert ran == [1]


async def test_externally_pending_call_is_reported_as_completion_cancelled(
    app: App, cancelled_with: InTheLastMoment
) -> None:
    cancelled_with("c1.0.1")

    @tool
    async def order(ctx: ToolContext) -> PendingCompletion:
        """Order."""
        await ctx.completion_key()
        return ctx.pending()

    answers, session = await told(app, order, names=("order",))
    assert answers == ["tool_completion_cancelled"]
    assert await ref_of(session).runtime.approvals.list() == ()


@pytest.mark.parametrize("policy", ["tell", "ask"])
async def test_result_returned_during_cancellation_is_reported(app: App, policy: str) -> None:
    entered = asyncio.Event()

    @tool(in_doubt="ask" if policy == "ask" else "tell")
    async def refund() -> str:
        """Refund."""
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if policy == "ask":
                raise
        return "receipt 79"

    rt = await app.open(ScriptedModel(call("refund"), say("on", exact=True)), refund)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await entered.wait()
    assert await session.cancel() == "requested"
    assert (await sent.result(10)).reason == "cancelled"
    history = await session.messages()
    assert complaints(history) == []
    assert codes(history) == (["outcome_unknown"] if policy == "ask" else ["receipt 79"])
    assert await rt.approvals.list() == ()
    rows = [row.record for row in await session.journal()]
    assert not [one for one in rows if isinstance(one, EffectStarted) and one.id.endswith(".doubt")]
