"""Calls that need a person's leave: asked, decided, expired, superseded, granted; on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from perdure import Agent, Code, Error, OutcomeUnknown, Runtime, RuntimeOptions, Session, ToolContext, ToolHints, tool
from perdure.codec import Json
from perdure.commit.plan import Entry
from perdure.compat.seeds import SeedToolContext
from perdure.effects.promises import unsigned_key
from perdure.ids import CallId, PromiseId
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.observe.pending import PendingDecision
from perdure.observe.verify import verify
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.sessions.approvals import Outcome
from perdure.session.fold import CODE
from perdure.tools.decorator import AnyTool, ToolOptions
from perdure.tools.prepare import ToolPrepareContext
from perdure.vocab.approvals import consent_to
from perdure.vocab.messages import Message, ToolCall, ToolResultPart
from perdure.vocab.records import ApprovalGranted, EffectStarted
from tests.scenarios.conftest import App, until

HURRIED = RuntimeOptions(idle_timeout_s=0.0)
DAY_MS = 24 * 3_600_000


def refunds(paid: list[int], **options: object) -> AnyTool:
    def refund(cents: int) -> str:
        paid.append(cents)
        return f"refunded {cents}"

    given: ToolOptions = {"needs_approval": True, **options}  # type: ignore[typeddict-item]
    return tool(**given)(refund)


def outputs(history: tuple[Message, ...]) -> list[Json]:
    return [part.output for message in history for part in message.parts if isinstance(part, ToolResultPart)]


async def asked(rt: Runtime, count: int = 1) -> tuple[PendingDecision, ...]:
    async def there() -> bool:
        return len(await rt.approvals.list()) >= count

    await until(there)
    return await rt.approvals.list()


async def parked(rt: Runtime, session: Session) -> None:
    async def is_parked() -> bool:
        info = await core_of(rt).store.stream(ref_of(session).stream)
        return (
            info is not None
            and info.parked
            and info.owner is None
            and not core_of(rt).has_in_hand(ref_of(session).stream)
        )

    await until(is_parked)


async def contradictions(session: Session) -> tuple[str, ...]:
    store = ref_of(session).runtime.store
    info = await store.stream(ref_of(session).stream)
    assert info is not None
    return verify(info, await session.journal(), await store.load(ref_of(session).stream, code=CODE)).problems


async def code_of(work: Callable[[], object]) -> Code:
    with pytest.raises(Error) as caught:
        await work()  # type: ignore[misc]
    return caught.value.code


# --- asking and deciding


@pytest.mark.parametrize("idle_timeout_s", [0.0, 30.0], ids=["parked", "in memory"])
async def test_a_call_runs_once_it_is_approved_and_not_before(app: App, idle_timeout_s: float) -> None:
    paid: list[int] = []
    model = ScriptedModel(call("refund", cents=700), say("done"))
    rt = await app.open(model, refunds(paid), tuning=RuntimeOptions(idle_timeout_s=idle_timeout_s))
    session = await rt.session("s", agent="a")
    before = core_of(rt).clock.wall_ms()
    sent = await session.send("refund it")
    (question,) = await asked(rt)
    if not idle_timeout_s:
        await parked(rt, session)
    assert paid == []
    assert (question.kind, question.tool, question.args, question.session) == (
        "approval",
        "refund",
        {"cents": 700},
        "s",
    )
    assert question.until is not None
    assert 0 <= question.until - before - DAY_MS < 60_000
    assert await session.pending() == (question,)
    why = await session.why()
    assert "approval of tool refund" in why.summary
    assert question.id in why.waiting[0].who

    decision = await rt.approvals.approve(question.id, by="ana", reason="is fine")
    assert (await sent.result(20)).text.startswith("done")
    assert paid == [700]
    assert outputs(await session.messages()) == ["refunded 700"]
    told = await rt.approvals.get(question.id)
    assert (told.status, told.decision) == ("approved", decision)
    assert told.used_at is not None
    assert await rt.approvals.list() == ()
    assert await contradictions(session) == ()


async def test_a_denied_call_does_not_run_and_the_model_is_told_why(app: App) -> None:
    paid: list[int] = []
    rt = await app.open(ScriptedModel(call("refund", cents=700), say("I see")), refunds(paid), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("refund it")
    (question,) = await asked(rt)
    await rt.approvals.deny(question.id, by="ana", reason="order 7 was used")
    assert (await sent.result(20)).text.startswith("I see")
    assert paid == []
    expected = {"error": "ana did not approve this call: order 7 was used. It was not run.", "code": "approval_denied"}
    assert outputs(await session.messages()) == [expected]
    assert await contradictions(session) == ()


async def test_edited_call_reports_its_new_arguments_to_the_model(app: App) -> None:
    paid: list[int] = []
    rt = await app.open(ScriptedModel(call("refund", cents=700), say("done")), refunds(paid), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("refund it")
    (question,) = await asked(rt)
    assert await code_of(lambda: rt.approvals.approve(question.id, by="ana", args={"cents": "all"})) is (
        Code.INVALID_ARGUMENT
    )
    assert await code_of(lambda: rt.approvals.approve(question.id, by="ana", args={})) is Code.INVALID_ARGUMENT
    await rt.approvals.approve(question.id, by="ana", args={"cents": 400})
    assert (await sent.result(20)).text.startswith("done")
    assert paid == [400]
    (told,) = outputs(await session.messages())
    assert isinstance(told, dict)
    assert (told["arguments"], told["result"]) == ({"cents": 400}, "refunded 400")
    starts = [
        r.record for r in await session.journal() if isinstance(r.record, EffectStarted) and r.record.id == "c1.0.1"
    ]
    assert [getattr(getattr(start.command, "call", None), "args", None) for start in starts] == [{"cents": 400}]
    assert await contradictions(session) == ()


async def test_the_second_decision_is_told_of_the_first(app: App) -> None:
    paid: list[int] = []
    rt = await app.open(ScriptedModel(call("refund", cents=7), say("done")), refunds(paid))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    (question,) = await asked(rt)
    await rt.approvals.deny(question.id, by="ana", via="slack")
    with pytest.raises(Error, match=r"already decided by ana: denied at 20\d\d-.*Z \(slack\)") as caught:
        await rt.approvals.approve(question.id, by="bob")
    assert caught.value.code is Code.APPROVAL_ALREADY_DECIDED
    await sent.result(20)
    assert paid == []


async def test_a_batch_is_decided_in_part(app: App) -> None:
    paid: list[int] = []
    model = ScriptedModel(
        calls(call("refund", cents=1), call("refund", cents=2), call("refund", cents=3), call("look")), say("done")
    )

    @tool(effect="pure")
    def look() -> str:
        return "seen"

    rt = await app.open(model, refunds(paid), look, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    by_cents = {str(question.args): question for question in await asked(rt, 3)}
    await rt.approvals.approve(by_cents["{'cents': 2}"].id, by="ana")

    async def one() -> bool:
        return paid == [2]

    await until(one)
    await parked(rt, session)
    assert len(await rt.approvals.list()) == 2
    await rt.approvals.deny(by_cents["{'cents': 1}"].id, by="ana")
    await rt.approvals.approve(by_cents["{'cents': 3}"].id, by="bob")
    await sent.result(20)
    assert paid == [2, 3]
    told = outputs(await session.messages())
    assert (told[1:], isinstance(told[0], dict)) == (["refunded 2", "refunded 3", "seen"], True)


async def test_s17_approval_needs_its_whole_id(app: App) -> None:
    paid: list[int] = []
    rt = await app.open(ScriptedModel(call("refund", cents=1), say("ok")), refunds(paid))
    await (await rt.session("s", agent="a")).send("x")
    (question,) = await asked(rt)
    bare = question.id.removeprefix("apr_")
    for short in (bare[0], bare[:8], bare, f"apr_{bare[:-1]}", f"dbt_{bare}", f"apr_{question.promise}"):
        for use in (rt.approvals.get, partial(rt.approvals.approve, by="x"), partial(rt.approvals.deny, by="x")):
            assert await code_of(partial(use, short)) is Code.APPROVAL_UNKNOWN, short
    assert (await rt.approvals.approve(question.id, by="x")).verdict == "approve"


async def test_a_decision_needs_a_name(app: App) -> None:
    rt = await app.open(ScriptedModel())
    assert await code_of(lambda: rt.approvals.approve("apr_1", by=" ")) is Code.INVALID_ARGUMENT
    assert await code_of(lambda: rt.approvals.approve("apr_1", by="ana")) is Code.APPROVAL_UNKNOWN
    assert await code_of(lambda: rt.approvals.get("")) is Code.APPROVAL_UNKNOWN


# --- predicates


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_approval_predicate_receives_validated_arguments(app: App, kind: str) -> None:
    paid: list[int] = []

    def large(a: SimpleNamespace) -> bool:
        return a.cents > 500

    async def large_async(a: SimpleNamespace, ctx: ToolPrepareContext) -> bool:
        await asyncio.sleep(0)
        return a.cents > 500 and ctx.session_id == "s"

    model = ScriptedModel(call("refund", cents=400), call("refund", cents="600"), say("done"))
    rt = await app.open(model, refunds(paid, needs_approval=large if kind == "sync" else large_async))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    (question,) = await asked(rt)
    assert (paid, question.args) == ([400], {"cents": "600"})
    await rt.approvals.approve(question.id, by="ana")
    await sent.result(20)
    assert paid == [400, 600]


def _raises(_: object) -> bool:
    raise RuntimeError("the list of customers is down")


def _says_nothing(_: object) -> None: ...


def _says_no(_: object) -> str:
    return "no"


@pytest.mark.parametrize("predicate", [_raises, _says_nothing, _says_no])
async def test_a_predicate_that_cannot_tell_asks(app: App, predicate: Callable[[object], object]) -> None:
    paid: list[int] = []
    rt = await app.open(ScriptedModel(call("refund", cents=1), say("ok")), refunds(paid, needs_approval=predicate))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    (question,) = await asked(rt)
    await rt.approvals.deny(question.id, by="ana")
    await sent.result(20)
    assert paid == []


@pytest.mark.parametrize(
    ("hints", "asks"),
    [
        (ToolHints(readonly=True), False),
        (ToolHints(destructive=False, open_world=False), False),
        (ToolHints(destructive=True), True),
        (ToolHints(open_world=True, destructive=False), True),
        (ToolHints(), True),
    ],
)
def test_the_policy_of_hints(hints: ToolHints, asks: bool) -> None:
    made = refunds([], needs_approval="policy", hints=hints)
    assert made.contract.definition.policy == ("requires_approval" if asks else "auto")


def test_other_arguments_are_another_question() -> None:
    def promise(args: Json, *, call: str = "t.1.0", tool: str = "refund", scope: str = "s") -> str:
        return unsigned_key(scope, consent_to(CallId(call), tool, args)).key_id

    asked = promise({"cents": 5})
    others = [
        promise({"cents": 6}),
        promise({"cents": "5"}),
        promise({"cents": 5, "to": None}),
        promise({"cents": 5}, call="t.1.1"),
        promise({"cents": 5}, tool="charge"),
        promise({"cents": 5}, scope="other"),
    ]
    assert len({asked, *others}) == 7


# --- what does not approve


async def test_silence_never_approves(app: App) -> None:
    paid: list[int] = []
    model = ScriptedModel(call("refund", cents=1), say("ok"))
    rt = await app.open(model, refunds(paid, approval_timeout="300ms"), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    (question,) = await asked(rt)
    await sent.result(20)
    assert paid == []
    expected = {
        "error": "The approval request expired without a decision. The call was not run.",
        "code": "approval_expired",
    }
    assert outputs(await session.messages()) == [expected]
    assert (await rt.approvals.get(question.id)).status == "expired"
    assert await code_of(lambda: rt.approvals.approve(question.id, by="ana")) is Code.APPROVAL_STALE


class AheadClock(SystemClock):
    """A clock that is moved forward by hand."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


async def test_approval_expired_before_the_start_allows_nothing(app: App) -> None:
    if app.new_store.__name__ != "<lambda>" or "Postgres" in type(app.new_store()).__name__:
        pytest.skip("the server's clock is not ours to move")
    paid: list[int] = []
    tools = refunds(paid, approval_timeout="1h")
    rt = await app.open(ScriptedModel(call("refund", cents=1), say("ok")), tools, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await session.send("go")
    (question,) = await asked(rt)
    await parked(rt, session)
    await core_of(rt).worker.drain(1, retiring=False)  # type: ignore[union-attr]
    await rt.approvals.approve(question.id, by="ana")  # no worker is there to act on it
    clock = AheadClock()
    clock.ahead_ms = 2 * 3_600_000
    store = app.new_store()
    store._clock = clock  # type: ignore[attr-defined]
    app.new_store = lambda: store
    later = await app.open(ScriptedModel(say("ok")), tools, tuning=RuntimeOptions(clock=clock, idle_timeout_s=0.0))

    async def over() -> bool:
        return (await later.get_session("s").why()).status == "idle"

    await until(over)
    assert paid == []
    message = "ana approved this call, but the approval had expired before it began. It was not run."
    assert outputs(await later.get_session("s").messages()) == [{"error": message, "code": "approval_expired"}]


async def test_a_cancelled_turn_takes_its_questions_back(app: App) -> None:
    paid: list[int] = []
    rt = await app.open(ScriptedModel(call("refund", cents=1), say("ok")), refunds(paid), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    (question,) = await asked(rt)
    await parked(rt, session)
    assert await session.cancel() == "requested"
    assert await code_of(lambda: rt.approvals.approve(question.id, by="ana")) is Code.APPROVAL_STALE
    assert (await sent.result(20)).reason == "cancelled"
    assert (paid, await rt.approvals.list()) == ([], ())
    assert (await rt.approvals.get(question.id)).status == "withdrawn"
    assert await contradictions(session) == ()


async def test_a_decision_that_races_a_cancel_never_releases_the_call_after_it(app: App) -> None:
    for round in range(6):
        paid: list[int] = []
        agent = Agent("a", model=ScriptedModel(call("refund", cents=1), say("ok")), tools=[refunds(paid)])
        async with Runtime(app.new_store(), agents=[agent], options=HURRIED) as rt:
            session = await rt.session(f"s{round}", agent="a")
            sent = await session.send("go")
            (question,) = await asked(rt)

            async def approve(id: str = question.id, rt: Runtime = rt) -> bool:
                try:
                    await rt.approvals.approve(id, by="ana")
                except Error:
                    return False
                return True

            approved, cancelled = await asyncio.gather(approve(), session.cancel())
            result = await sent.result(20)
            if cancelled == "requested" and not approved:
                assert paid == []
            if result.reason != "cancelled":
                assert paid == [1]
            assert await contradictions(session) == ()


async def test_deleting_a_session_revokes_what_it_asked(app: App) -> None:
    paid: list[int] = []
    rt = await app.open(ScriptedModel(call("refund", cents=1), say("ok")), refunds(paid), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await session.send("go")
    (question,) = await asked(rt)
    await session.delete()
    assert await rt.approvals.list() == ()
    assert await code_of(lambda: rt.approvals.approve(question.id, by="ana")) is Code.APPROVAL_UNKNOWN
    assert paid == []


async def test_approval_keeps_its_status_after_redaction(app: App) -> None:
    rt = await app.open(ScriptedModel(call("refund", cents=5), say("done")), refunds([]))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    (question,) = await asked(rt)
    await rt.approvals.approve(question.id, by="ana")
    await sent.result(10)
    for row in await session.journal():
        if row.kind in ("effect_started", "effect_settled"):
            await session.redact(row.seq)
    found = await rt.approvals.get(question.id)
    assert (found.status, found.decision, found.question.args) == ("approved", None, {})
    assert found.used_at is not None


async def test_another_tenant_sees_nothing(app: App) -> None:
    rt = await app.open(ScriptedModel(call("refund", cents=1), say("ok")), refunds([]), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await session.send("go")
    (question,) = await asked(rt)
    async with Runtime(app.new_store(), worker=False, tenant="other") as other:
        assert await other.approvals.list() == ()
        assert await code_of(lambda: other.approvals.approve(question.id, by="eve")) is Code.APPROVAL_UNKNOWN


async def test_batched_child_call_without_approval_is_refused(app: App) -> None:
    paid: list[int] = []

    @tool(effect="pure")
    async def sneaky(ctx: ToolContext) -> Json:
        (answer,) = await ctx.tools.batch([("refund", {"cents": 1})])
        return answer.error_code

    rt = await app.open(ScriptedModel(call("sneaky"), say("ok")), sneaky, refunds(paid, effect="pure"))
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert (paid, outputs(await session.messages())) == ([], ["approval_required"])


# --- outages


async def test_approval_without_worker_counts_and_keeps_its_first_expiry(app: App) -> None:
    paid: list[int] = []
    tools = refunds(paid)
    agent = Agent("a", model=ScriptedModel(call("refund", cents=1), say("ok")), tools=[tools])
    async with Runtime(app.new_store(), agents=[agent], options=HURRIED) as rt:
        session = await rt.session("s", agent="a")
        await session.send("go")
        (before,) = await asked(rt)
        await parked(rt, session)
    async with Runtime(app.new_store(), worker=False) as rt:
        assert await rt.approvals.list() == (before,)
        await rt.approvals.approve(before.id, by="ana")
        assert paid == []
    rt = await app.open(ScriptedModel(call("refund", cents=1), say("ok")), tools, tuning=HURRIED)

    async def over() -> bool:
        return (await rt.get_session("s").why()).status == "idle"

    await until(over)
    assert paid == [1]


async def test_takeover_does_not_repeat_an_approval_request(app: App) -> None:
    paid: list[int] = []
    tools = refunds(paid)
    agent = Agent("a", model=ScriptedModel(call("refund", cents=1), say("ok")), tools=[tools])
    async with Runtime(app.new_store(), agents=[agent]) as rt:  # in memory: it is handed over, not parked
        session = await rt.session("s", agent="a")
        await session.send("go")
        (before,) = await asked(rt)
    later = await app.open(ScriptedModel(say("ok")), tools, tuning=HURRIED)
    await parked(later, later.get_session("s"))
    assert await later.approvals.list() == (before,)


# --- doubts that people settle


async def doubtful(app: App, told: list[str]) -> tuple[Runtime, Session, AnyTool]:
    """A session with a call in doubt, whose worker has ended."""

    @tool(in_doubt="ask")
    async def wire(ctx: ToolContext, cents: int) -> str:
        told.append(ctx.idempotency_key)
        if len(told) == 1:
            raise OutcomeUnknown("the line went dead")
        return "wired"

    agent = Agent("a", model=ScriptedModel(call("wire", cents=1), say("ok")), tools=[wire])
    async with Runtime(app.new_store(), agents=[agent], options=HURRIED) as rt:
        session = await rt.session("s", agent="a")
        await session.send("go")
        (question,) = await asked(rt)
        assert question.kind == "doubt"
        with pytest.raises(Error) as caught:
            await rt.approvals.settle(question.id, "did_not_happen", by="ana")
        assert caught.value.code is Code.ORIGINAL_CALL_MAY_STILL_RUN
        assert await code_of(lambda: rt.approvals.approve(question.id, by="ana")) is Code.INVALID_ARGUMENT
    rt = await app.open(ScriptedModel(call("wire", cents=1), say("ok")), wire, tuning=HURRIED)
    return rt, rt.get_session("s"), wire


async def idle(session: Session) -> None:
    async def over() -> bool:
        return (await session.why()).status == "idle"

    await until(over)


@pytest.mark.parametrize(("outcome", "result"), [("happened", {"receipt": 9}), ("unknown", None)])
async def test_a_person_says_what_became_of_a_call(app: App, outcome: Outcome, result: Json) -> None:
    told: list[str] = []
    rt, session, _ = await doubtful(app, told)
    (question,) = await asked(rt)
    await rt.approvals.settle(question.id, outcome, by="ana", value=result)
    await idle(session)
    assert len(told) == 1
    (output,) = outputs(await session.messages())
    assert output == result if result else isinstance(output, dict) and output["code"] == "outcome_unknown"
    assert await contradictions(session) == ()


# --- grants


async def test_an_approval_for_the_session_covers_later_calls_until_it_is_revoked(app: App) -> None:
    paid: list[int] = []
    model = ScriptedModel(call("refund", cents=1), call("refund", cents=2), say("one"))
    rt = await app.open(model, refunds(paid), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    (question,) = await asked(rt)
    await rt.approvals.approve(question.id, by="ana", for_session=True)
    assert (await sent.result(20)).text.startswith("one")
    assert paid == [1, 2]
    (grant,) = await session.grants()
    assert (grant.tool, grant.by) == ("refund", "ana")
    uses = [
        r.record for r in await session.journal() if isinstance(r.record, EffectStarted) and "approval" in r.record.id
    ]
    assert len(uses) == 2
    await session.revoke_grant(grant.grant, by="bob")
    assert await session.grants() == ()
    sent = await session.send("again")
    for _ in range(2):
        (question,) = await asked(rt)
        assert paid == [1, 2]
        await rt.approvals.deny(question.id, by="bob")
    await sent.result(20)
    assert paid == [1, 2]
    assert await contradictions(session) == ()


async def test_watching_tells_each_question_once_wherever_it_is_asked(app: App) -> None:
    model = ScriptedModel.by_input({}, default=[call("refund", cents=1), say("ok")])
    rt = await app.open(model, refunds([]), tuning=HURRIED)
    await (await rt.session("s1", agent="a")).send("go")
    await asked(rt)
    watching = rt.approvals.watch()
    first = await anext(watching)
    next_one = asyncio.ensure_future(anext(watching))
    rt2 = await app.open(ScriptedModel(call("refund", cents=2), say("ok")), refunds([]), tuning=HURRIED)
    await (await rt2.session("s2", agent="a")).send("go")
    async with asyncio.timeout(20):
        second = await next_one
        next_one = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)  # it looks, finds nothing new, and waits to be told
        await (await rt.session("s3", agent="a")).send("go")
        third = await next_one
    assert [first.session, second.session, third.session] == ["s1", "s2", "s3"]


# --- deploys in the middle of a turn, imports, revocations

ABOVE_5: dict[str, object] = {"needs_approval": lambda a: a.cents > 5}  # pyright: ignore[reportUnknownLambdaType, reportUnknownMemberType]
NEVER: dict[str, object] = {"needs_approval": lambda a: False}  # pyright: ignore[reportUnknownLambdaType]
ALWAYS: dict[str, object] = {"needs_approval": True}
UNASKED: dict[str, object] = {"needs_approval": False}
BY_POLICY: dict[str, object] = {"needs_approval": "policy", "hints": ToolHints(destructive=True)}


@pytest.mark.parametrize(
    ("before", "after", "asks"),
    [
        pytest.param(ABOVE_5, ALWAYS, True, id="predicate-always"),
        pytest.param(ABOVE_5, BY_POLICY, True, id="predicate-policy"),
        pytest.param(ABOVE_5, UNASKED, True, id="predicate-none"),
        pytest.param(ALWAYS, NEVER, True, id="always-predicate"),
        pytest.param(ALWAYS, UNASKED, True, id="always-none"),
        pytest.param(UNASKED, ALWAYS, True, id="none-always"),
        pytest.param(UNASKED, ABOVE_5, True, id="none-predicate"),
        pytest.param(ABOVE_5, NEVER, False, id="predicate-other_predicate"),
        pytest.param(UNASKED, UNASKED, False, id="none-none"),
    ],
)
async def test_a_deploy_inside_a_turn_never_takes_a_question_away(
    app: App, before: dict[str, object], after: dict[str, object], asks: bool
) -> None:
    paid: list[int] = []

    @tool(effect="resumable")
    async def hold(ctx: ToolContext) -> str:
        return str(await ctx.wait_for_event("go"))

    def agent(options: dict[str, object]) -> Agent:
        model = ScriptedModel.by_input({"x": [call("hold"), call("refund", cents=9000), say("done")]})
        return Agent("a", model=model, tools=[hold, refunds(paid, **options)])

    async with Runtime(app.new_store(), agents=[agent(before)], options=HURRIED) as rt:
        session = await rt.session("s", agent="a")
        await session.send("x")
        await parked(rt, session)
    async with Runtime(app.new_store(), agents=[agent(after)], options=HURRIED) as rt:
        session = await rt.session("s", agent="a")
        await session.resolve("go", 1)
        if asks:
            (question,) = await asked(rt)
            assert (question.args, paid) == ({"cents": 9000}, [])
        else:

            async def ran() -> bool:
                return bool(paid)

            await until(ran)
            assert (await rt.approvals.list(), paid) == ((), [9000])


async def granted(app: App, paid: list[int], *, count: int = 1) -> tuple[Runtime, Session]:
    """A session with calls that were approved for the whole session."""
    first = calls(*(call("refund", cents=cents) for cents in range(1, count + 1)))
    model = ScriptedModel.by_input({"x": [first, say("one")], "y": [call("refund", cents=900), say("two")]})
    rt = await app.open(model, refunds(paid), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("x")
    for question in await asked(rt, count):
        await rt.approvals.approve(question.id, by="ana", for_session=True)
    await sent.result(20)
    return rt, session


async def test_an_imported_session_has_no_grants(app: App) -> None:
    paid: list[int] = []
    rt, session = await granted(app, paid)
    assert len(await session.grants()) == 1
    copy = await rt.import_session("copy", await session.export())
    assert await copy.grants() == ()
    await copy.send("y")
    (question,) = await asked(rt)
    assert (question.session, question.args, paid) == ("copy", {"cents": 900}, [1])
    assert await contradictions(copy) == ()
    assert await (await rt.import_session("again", await copy.export())).grants() == ()


async def test_a_batch_that_is_approved_for_the_session_is_revoked_at_once(app: App) -> None:
    paid: list[int] = []
    rt, session = await granted(app, paid, count=3)
    (grant,) = await session.grants()
    await session.revoke_grant(grant.grant, by="bob")
    assert await session.grants() == ()
    await session.send("y")
    (question,) = await asked(rt)
    assert (question.args, sorted(paid)) == ({"cents": 900}, [1, 2, 3])
    assert await contradictions(session) == ()


async def test_s17_grant_is_revoked_by_its_whole_id_only(app: App) -> None:
    rt, session = await granted(app, [])
    (grant,) = await session.grants()
    for other in range(16):  # whatever the first one is called, two begin like it
        made = ApprovalGranted(
            grant=PromiseId(f"{other:x}" * 16), tool=f"t{other}", agent="a", contract="c", by="ana", at=1
        )
        await core_of(rt).store.annotate(ref_of(session).stream, Entry.of(made, at=1))
    wrong: list[tuple[object, object, Code]] = [
        (grant.grant[0], "bob", Code.APPROVAL_UNKNOWN),
        (grant.grant[:16], "bob", Code.APPROVAL_UNKNOWN),
        ("zz", "bob", Code.APPROVAL_UNKNOWN),
        ("", "bob", Code.APPROVAL_UNKNOWN),
        (None, "bob", Code.INVALID_ARGUMENT),
        (5, "bob", Code.INVALID_ARGUMENT),
        (grant.grant, "", Code.INVALID_ARGUMENT),
        (grant.grant, None, Code.INVALID_ARGUMENT),
    ]
    for id, by, code in wrong:
        assert await code_of(lambda id=id, by=by: session.revoke_grant(cast("str", id), by=cast("str", by))) is code
    assert len(await session.grants()) == 17
    await session.revoke_grant(grant.grant, by="bob")
    assert grant not in await session.grants()


WRONG: list[dict[str, object]] = [
    {"for_session": 1},
    {"for_session": "yes"},
    {"for_session": None},
    {"args": "cents"},
    {"args": []},
    {"args": ""},
    {"args": 0},
    {"args": {1: 2}},
    {"by": 5},
    {"by": None},
    {"reason": 5},
    {"via": None},
    {"id": None},
    {"id": 5},
]


async def test_a_decision_of_the_wrong_type_decides_nothing(app: App) -> None:
    rt = await app.open(ScriptedModel(call("refund", cents=1), say("ok")), refunds([]), tuning=HURRIED)
    await (await rt.session("s", agent="a")).send("go")
    (question,) = await asked(rt)
    for options in WRONG:
        id = options.get("id", question.id)
        given: dict[str, object] = {"by": "ana", **{name: value for name, value in options.items() if name != "id"}}
        verbs: list[Callable[..., Awaitable[object]]] = [rt.approvals.approve]
        verbs += [rt.approvals.deny] if not options.keys() & {"for_session", "args"} else []
        for verb in verbs:
            assert await code_of(lambda verb=verb, id=id, given=given: verb(id, **given)) is Code.INVALID_ARGUMENT
    for page in ({"limit": "5"}, {"limit": 0}, {"limit": True}, {"after": "x"}, {"after": 5}):
        assert await code_of(lambda page=page: rt.approvals.list(**page)) is Code.INVALID_ARGUMENT  # type: ignore[arg-type]
    assert await rt.approvals.list() == (question,)
    assert (await rt.approvals.get(question.id)).status == "waiting"


async def test_an_interruption_takes_the_open_question_back(app: App) -> None:
    paid: list[int] = []
    model = ScriptedModel.by_input({"go": [call("refund", cents=1), say("ok")], "stop": [say("stopped")]})
    for patience in (0.0, 30.0):
        rt = await app.open(model, refunds(paid), tuning=RuntimeOptions(idle_timeout_s=patience))
        session = await rt.session(f"s{patience}", agent="a")
        sent = await session.send("go")
        (question,) = await asked(rt)
        stop = await session.send("stop", mode="interrupt")
        assert await code_of(lambda: rt.approvals.approve(question.id, by="ana")) is Code.APPROVAL_STALE  # noqa: B023
        assert (await stop.result(20)).text.startswith("stopped")
        assert (await sent.result(20)).reason == "cancelled"
        assert (await rt.approvals.get(question.id)).status == "withdrawn"
        assert (paid, await rt.approvals.list()) == ([], ())
        [output] = outputs(await session.messages())
        assert output["code"] == "cancelled"
        assert await contradictions(session) == ()
        await rt.drain(5)


async def test_approval_decided_during_a_pause_is_not_pending(app: App) -> None:
    paid: list[int] = []
    rt = await app.open(ScriptedModel(call("refund", cents=1), say("ok")), refunds(paid), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    (question,) = await asked(rt)
    await parked(rt, session)
    await session.pause()
    assert [item.id for item in await session.pending()] == [question.id]
    await rt.approvals.approve(question.id, by="ana")
    assert await session.pending() == ()
    why = await session.why()
    assert why.status == "paused"
    assert [item.what for item in why.waiting] == ["an operator to resume it", "approval of tool refund (answered)"]
    assert paid == []
    await session.resume()
    assert (await sent.result(20)).status == "finished"
    assert paid == [1]


async def test_a_registry_does_not_run_what_a_person_must_allow(app: App) -> None:
    paid: list[int] = []

    @tool
    async def sneaky(ctx: ToolContext) -> Json:
        asked = ToolCall(id=CallId("x"), name="refund", args={"cents": 1})
        registry = SeedToolContext(ctx).tool_registry
        return (await registry.execute_with_context(asked, None, ctx)).error

    rt = await app.open(ScriptedModel(call("sneaky"), say("ok")), sneaky, refunds(paid))
    session = await rt.session("s", agent="a")
    await session.ask("go")
    [output] = outputs(await session.messages())
    assert output == "refund needs a person's approval, which was not requested; it was not run"
    assert paid == []
