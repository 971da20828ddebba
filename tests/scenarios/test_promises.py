"""External promises: access, and the replies to late, forged, foreign and revoked keys."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from base64 import urlsafe_b64decode, urlsafe_b64encode
from multiprocessing.pool import Pool
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure import Agent, Code, Error, Runtime, RuntimeOptions, ToolContext, tool
from perdure.codec import Json
from perdure.effects.promises import signed_key, unsigned_key
from perdure.ids import DEFAULT_TENANT, CallId, PromiseId
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.runtime.core import RuntimeCore
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.sessions.session import Session
from perdure.store.shapes import Accepted, AlreadyResolved
from perdure.tools.decorator import AnyTool
from perdure.tools.step_outcomes import EventTimedOut
from perdure.vocab.approvals import consent_to
from perdure.vocab.outcomes import PendingCompletion
from perdure.vocab.promises import (
    Cancelled,
    ClientResult,
    Custom,
    DoubtVerdict,
    EventKey,
    Failure,
    Ok,
    ProcessSignal,
    ProcessTerminal,
    TimedOut,
    ToolCompletion,
    UserAnswer,
    WaitIdentity,
)
from tests.scenarios.conftest import App, NewStore, until
from tests.scenarios.test_bodies import HURRIED, outputs, parked, recorded, status

REFUSED = (
    "nothing waits under this key",
    "the key is unknown, revoked, or of another store",
    "use the key exactly as it was handed out, on the store that made it",
)


def ordering(keys: list[EventKey], on_cancel: str = "cancel_external_work") -> AnyTool:
    @tool
    async def order(ctx: ToolContext) -> PendingCompletion:
        """Order."""
        keys.append(await ctx.completion_key())
        return ctx.pending(on_cancel="ignore" if on_cancel == "ignore" else "cancel_external_work")

    return order


async def ordered(app: App, keys: list[EventKey], on_cancel: str = "cancel_external_work") -> Session:
    rt = await app.open(ScriptedModel(call("order"), say("ok")), ordering(keys, on_cancel), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await parked(rt, session)
    return session


def told(problem: Error) -> tuple[object, ...]:
    """Everything a caller can see of a refusal."""
    return (problem.code, problem.message, problem.because, problem.hint, problem.details)


ONE_ANSWER: tuple[object, ...] = (Code.EVENT_KEY_INVALID, *REFUSED, {})


async def refused(rt: Runtime | RuntimeCore, key: object) -> None:
    for ask in (rt.resolve(key, 0), rt.peek(key)):  # pyright: ignore[reportArgumentType] - whatever a caller gives
        with pytest.raises(Error) as caught:
            await ask
        assert told(caught.value) == ONE_ANSWER


# --- resolutions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "first", "output"),
    [
        ({"value": {"n": 1}}, Ok(value={"n": 1}), {"n": 1}),
        (
            {"error": Failure(code="sold_out", message="none left")},
            Failure(code="sold_out", message="none left"),
            {"error": "none left", "code": "sold_out"},
        ),
        ({"cancel": True}, Cancelled(), None),
    ],
)
async def test_every_later_answer_gets_the_first(
    app: App, given: dict[str, object], first: object, output: object
) -> None:
    keys: list[EventKey] = []
    session = await ordered(app, keys)
    rt = ref_of(session).runtime
    assert await rt.peek(keys[0]) is None
    assert await rt.resolve(keys[0], **given) == Accepted()  # pyright: ignore[reportArgumentType] - one of three
    for late in ({"value": 9}, {"error": Failure(code="x", message="y")}, {"cancel": True}):
        assert await rt.resolve(keys[0].text, **late) == AlreadyResolved(first)  # pyright: ignore[reportArgumentType]
    assert await rt.peek(keys[0]) == first
    await status(session, "idle")
    [result] = outputs(await session.messages())
    assert result == output if output is not None else result["code"] == "tool_completion_cancelled"


@pytest.mark.parametrize(
    "value", [Failure(code="declined", message="card declined"), Cancelled(), Ok(value=1), TimedOut()], ids=repr
)
async def test_d5_resolution_is_not_taken_for_a_value(app: App, value: object) -> None:
    keys: list[EventKey] = []
    session = await ordered(app, keys)
    rt = ref_of(session).runtime
    for attempt in (rt.resolve(keys[0], value), session.resolve("reviewed", value), rt.resolve(keys[0].text, value)):
        with pytest.raises(Error, match="value is a resolution") as caught:
            await attempt
        assert caught.value.code is Code.INVALID_ARGUMENT
    assert await rt.peek(keys[0]) is None, "and nothing was recorded"
    assert await rt.resolve(keys[0], error=Failure(code="declined", message="card declined")) == Accepted()
    await status(session, "idle")
    assert outputs(await session.messages()) == [{"error": "card declined", "code": "declined"}]


async def test_two_answers_at_once_and_a_failure_without_a_code_are_refused(app: App) -> None:
    keys: list[EventKey] = []
    rt = ref_of(await ordered(app, keys)).runtime
    wrong = Failure(code="x", message="y")
    with pytest.raises(Error, match="mutually exclusive"):
        await rt.resolve(keys[0], 1, error=wrong)
    with pytest.raises(Error, match="mutually exclusive"):
        await rt.resolve(keys[0], error=wrong, cancel=True)
    with pytest.raises(Error, match="a failure needs a code"):
        await rt.resolve(keys[0], error=Failure(code=" ", message="y"))
    assert await rt.peek(keys[0]) is None


# --- access to keys ---------------------------------------------------------------------------------------------


CALL = "t1.1.0"
FORGED: tuple[WaitIdentity, ...] = (
    DoubtVerdict(call_id=CALL),
    ClientResult(call_id=CALL),
    UserAnswer(call_id=CALL),
    ProcessTerminal(process_id="p"),
    ProcessSignal(process_id="p", name="go", ordinal=1),
)


async def test_s8_t_sec_06_bearer_key_never_makes_a_decision_of_a_person(app: App) -> None:
    paid: list[int] = []

    @tool(needs_approval=True)
    def refund(cents: int) -> str:
        paid.append(cents)
        return "refunded"

    rt = await app.open(ScriptedModel(call("refund", cents=9), say("done")), refund)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await until(lambda: some_approval(rt))
    (waiting,) = await rt.approvals.list()
    scope = (await sent.cancel_key()).scope
    secret = await core_of(rt).secrets.get("promises", DEFAULT_TENANT)
    leave = consent_to(waiting.call or CallId(""), "refund", {"cents": 9})
    assert unsigned_key(scope, leave).key_id == waiting.promise, "the forged key names the promise of the approval"
    approval: Json = {"verdict": "approve", "by": "ceo@example.com", "at": 1, "via": "console"}
    for wait in (leave, *FORGED):
        key = signed_key(secret, scope, wait)
        for attempt in (rt.resolve(key, approval), rt.resolve(key.text, approval), rt.peek(key)):
            with pytest.raises(Error) as caught:
                await attempt
            assert told(caught.value) == (Code.EVENT_KEY_INVALID, *REFUSED, {})
    assert len(await rt.approvals.list()) == 1
    await rt.approvals.deny(waiting.id, by="ann")
    await sent.result(timeout=20)
    assert paid == []


async def some_approval(rt: Runtime) -> bool:
    return bool(await rt.approvals.list())


async def test_revoked_foreign_deleted_and_forged_keys_are_one_refusal(app: App, new_store: NewStore) -> None:
    keys: list[EventKey] = []
    session = await ordered(app, keys)
    rt, key = ref_of(session).runtime, keys[0]
    async with Runtime(new_store(), tenant="other", worker=False) as other:
        await refused(other, key)
    elsewhere = signed_key(b"x" * 32, key.scope, key.wait)
    never_made = signed_key(await rt.secrets.get("promises", DEFAULT_TENANT), key.scope.replace("s", "z"), key.wait)
    for forged in (elsewhere, never_made, replace(key, signature=""), key.text[:-1], key.text + "=", None, 7, b"x"):
        await refused(rt, forged)
    assert await session.revoke_keys() is True
    assert await session.revoke_keys() is False
    await refused(rt, key)
    await refused(rt, key.text)
    await status(session, "idle")
    [result] = outputs(await session.messages())
    assert result["code"] == "tool_completion_cancelled"


async def test_later_turns_have_keys_of_their_own_after_a_revocation(app: App) -> None:
    keys: list[EventKey] = []
    session = await ordered(app, keys)
    await session.revoke_keys()
    await status(session, "idle")
    sent = await session.send("again")
    await parked(ref_of(session).runtime, session)
    await refused(ref_of(session).runtime, keys[0])
    assert await ref_of(session).runtime.resolve(keys[1], "there") == Accepted()
    await sent.result(5)
    assert outputs(await session.messages())[-1] == "there"


async def test_deleting_a_session_revokes_its_keys_also_for_its_namesake(app: App) -> None:
    keys: list[EventKey] = []
    session = await ordered(app, keys)
    rt = ref_of(session).runtime
    assert await session.delete()
    await refused(rt, keys[0])
    again = await rt.session("s", agent="a")
    await again.send("go")
    await parked(rt, again)
    await refused(rt, keys[0])
    assert await rt.resolve(keys[1], 1) == Accepted()


async def test_waits_of_a_session_can_be_cancelled_and_it_goes_on(app: App) -> None:
    keys: list[EventKey] = []
    session = await ordered(app, keys)
    assert await session.cancel_waits() == 1
    assert await session.cancel_waits() == 0
    await status(session, "idle")
    assert await ref_of(session).runtime.resolve(keys[0], 1) == AlreadyResolved(Cancelled())
    [result] = outputs(await session.messages())
    assert result["code"] == "tool_completion_cancelled"


@pytest.mark.parametrize(("policy", "seen"), [("cancel_external_work", Cancelled()), ("ignore", None)])
async def test_cancelled_call_resolves_its_promise_unless_policy_is_ignore(app: App, policy: str, seen: object) -> None:
    keys: list[EventKey] = []
    session = await ordered(app, keys, policy)
    store = ref_of(session).runtime.store
    await session.cancel()
    await status(session, "idle")
    state = await store.peek(keys[0].key_id)
    assert (state.resolution if state else None) == seen
    assert await ref_of(session).runtime.resolve(keys[0], 1) == AlreadyResolved(Cancelled())


async def test_the_keys_of_a_turn_cancel_it_and_tell_its_end(app: App) -> None:
    keys: list[EventKey] = []
    rt = await app.open(ScriptedModel(call("order"), say("ok")), ordering(keys), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    first, second = await session.send("go"), await session.send("next in line")
    await parked(rt, session)
    gate, end = await second.cancel_key(), await second.result_key()
    assert (await rt.peek(gate), await rt.peek(end)) == (None, None)
    with pytest.raises(Error, match="a terminal key cannot resolve a turn"):
        await rt.resolve(end, 1)
    assert await rt.resolve(gate.text, "no longer needed") == Accepted()
    assert await rt.resolve(gate, cancel=True) == AlreadyResolved(Cancelled())
    assert await rt.peek(gate) == Cancelled()
    await rt.resolve(keys[0], 1)
    result = await second.result(5)
    assert (result.reason, result.message) == ("cancelled", "no longer needed")
    assert await rt.peek(end) == Cancelled()
    assert await rt.peek(await first.result_key()) == Ok(value={"status": "finished"})
    assert await rt.resolve(await first.cancel_key()) == AlreadyResolved(Ok(value={"status": "finished"}))


async def test_cancel_during_parking_is_not_lost(app: App) -> None:
    unwinding = asyncio.Event()

    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> object:
        """Ask."""
        try:
            return await ctx.wait_for_event("answer")
        finally:
            unwinding.set()
            await asyncio.sleep(0.08)

    rt = await app.open(ScriptedModel(call("ask"), say("ok")), ask, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await unwinding.wait()
    assert await session.cancel() == "requested"
    assert (await sent.result(5)).reason == "cancelled"


# --- fuzz -------------------------------------------------------------------------------------------------------


def _changed(text: str, at: int, char: str) -> str:
    at %= len(text)
    return text[:at] + char + text[at + 1 :]


hostile = st.one_of(
    st.text(max_size=300),
    st.binary(max_size=200).map(lambda raw: urlsafe_b64encode(raw).decode()),
    st.recursive(st.none() | st.text(max_size=5), lambda x: st.lists(x) | st.dictionaries(st.text(max_size=5), x)).map(
        lambda value: urlsafe_b64encode(str(value).replace("'", '"').encode()).decode()
    ),
    st.integers(min_value=1, max_value=40_000).map(lambda n: urlsafe_b64encode(b"[" * n).decode()),
)


async def worthless(rt: Runtime | RuntimeCore, keys: list[EventKey]) -> list[EventKey]:
    """Keys that were good once, or are so elsewhere: of a revoked turn, a deleted session, another tenant and store."""
    core = rt if isinstance(rt, RuntimeCore) else core_of(rt)
    key, found = keys[0], list[EventKey]()
    for name, end in {"revoked": Session.revoke_keys, "deleted": Session.delete}.items():
        session = await rt.session(name, agent="a")
        cancel = await (await session.send("go")).cancel_key()
        await parked(rt, session)
        for good in (keys[-1], cancel):
            assert await rt.peek(good) is None
            found.append(good)
        await end(session)
    secret = await core.secrets.get("promises", DEFAULT_TENANT)
    tenant = key.scope.replace("default", "other", 1)
    return [*found, signed_key(secret, tenant, key.wait), signed_key(b"x" * 32, key.scope, key.wait)]


@pytest.mark.slow
async def test_nothing_but_the_key_itself_is_ever_accepted(app: App, caplog: pytest.LogCaptureFixture) -> None:
    keys: list[EventKey] = []
    session = await ordered(app, keys)
    rt, key = ref_of(session).runtime, keys[0]
    text = key.text
    others = await worthless(rt, keys)
    loop = asyncio.get_running_loop()
    tried: list[object] = []

    @settings(max_examples=50, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        hostile,
        st.integers(min_value=0),
        st.characters(codec="utf-8"),
        st.integers(min_value=0, max_value=len(text) - 1),
        st.text(max_size=80),
        st.sampled_from(others),
    )
    def attack(junk: str, at: int, char: str, cut: int, field: str, other: EventKey) -> None:
        tried.extend(
            (
                other,
                other.text,
                _changed(other.text, at, char),
                replace(other, signature=key.signature),
                replace(key, scope=other.scope),
                replace(key, signature=other.signature),
                junk,
                _changed(text, at, char),
                text[:cut],
                text[:cut] + junk + text[cut:],
                replace(key, signature=field),
                replace(key, scope=field),
                replace(key, key_id=PromiseId(field)),
                replace(key, wait=Custom(key=field if field.strip() else "x")),
                replace(key, wait=ToolCompletion(call_id=field if field.strip() else "x", attempt=2)),
                unsigned_key(key.scope, key.wait),
            )
        )

    await loop.run_in_executor(None, attack)
    with caplog.at_level(logging.DEBUG):
        for forged in tried:
            if forged in (text, key):
                continue
            await refused(rt, forged)
    assert await rt.peek(key) is None
    for one in (key, *others):
        assert one.signature not in caplog.text
        assert one.text not in caplog.text
    assert await rt.resolve(text, "real") == Accepted()
    for replayed in (text, key, key.text):
        assert await rt.resolve(replayed, "again") == AlreadyResolved(Ok(value="real"))


def test_there_is_one_spelling_of_a_key() -> None:
    key = signed_key(b"s" * 32, "default:s:t", Custom(key="go"))
    raw = urlsafe_b64decode(key.text + "=" * (-len(key.text) % 4))
    spaced = urlsafe_b64encode(raw.replace(b'":"', b'": "', 1)).decode().rstrip("=")
    more = urlsafe_b64encode(raw[:-1] + b',"x":1}').decode().rstrip("=")
    deep = urlsafe_b64encode(raw[:-1] + b',"x":' + b"[" * 900 + b"]" * 900 + b"}").decode().rstrip("=")
    assert EventKey.parse(key.text) == key
    for other in (
        spaced,
        more,
        deep,
        key.text + "=",
        key.text + "\n",
        " " + key.text,
        key.text[:9] + "!" + key.text[9:],
    ):
        with pytest.raises(Error) as caught:
            EventKey.parse(other)
        assert told(caught.value) == ONE_ANSWER


def test_a_key_that_is_printed_is_worth_nothing() -> None:
    key = signed_key(b"s" * 32, "default:s:t", Custom(key="go"))
    for shown in (repr(key), str(key), f"{key}", f"{[key]}", f"{Error(Code.INVALID_ARGUMENT, 'x', key=key)!r}"):
        assert key.signature not in shown
    assert key.key_id in repr(key)


# --- many at once -----------------------------------------------------------------------------------------------


def _answer_many(url: str, key: str, first: int, count: int) -> list[object]:
    async def answer() -> list[object]:
        async with Runtime(url, worker=False) as rt:
            return list(await asyncio.gather(*(rt.resolve(key, n) for n in range(first, first + count))))

    return asyncio.run(answer())


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several processes can open."""
    return f"sqlite:///{tmp_path / 's.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_sixty_four_answers_from_four_processes_and_one_is_the_first(url: str) -> None:
    keys: list[EventKey] = []
    agent = Agent("a", model=ScriptedModel(call("order"), say("ok")), tools=[ordering(keys)])
    async with Runtime(url, agents=[agent], options=RuntimeOptions(idle_timeout_s=0.0)) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go")
        await parked(rt, session)
        loop = asyncio.get_running_loop()
        with multiprocessing.get_context("spawn").Pool(4) as pool:
            found = await loop.run_in_executor(None, _from_four, pool, url, keys[0].text)
        await sent.result(10)
        [winner] = outputs(await session.messages())
        assert found.count(Accepted()) == 1
        assert found.count(AlreadyResolved(Ok(value=winner))) == 63


def _from_four(pool: Pool, url: str, key: str) -> list[object]:
    answers = pool.starmap(_answer_many, [(url, key, 16 * n, 16) for n in range(4)])
    return [one for some in answers for one in some]


async def test_a_timeout_and_an_answer_race_for_one_promise(app: App) -> None:
    keys: list[EventKey] = []

    @tool
    async def order(ctx: ToolContext) -> PendingCompletion:
        """Order."""
        keys.append(await ctx.completion_key())
        return ctx.pending(deadline="20ms")

    rt = await app.open(ScriptedModel(call("order"), say("ok")), order)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await recorded(session, "<c1.0.1")
    await asyncio.sleep(0.02)
    answered = await rt.resolve(keys[0], "just in time")
    await sent.result(5)
    [result] = outputs(await session.messages())
    if answered == Accepted():
        assert result == "just in time"
    else:
        assert answered == AlreadyResolved(TimedOut())
        assert result["code"] == "tool_completion_timeout"


async def test_resolution_after_its_deadline_is_late_without_worker(app: App) -> None:
    """By the store's clock, and before any worker has noticed that the time is over."""
    keys: list[EventKey] = []

    @tool(effect="resumable")
    async def wait(ctx: ToolContext) -> Json:
        """Wait."""
        try:
            return await ctx.wait_for_event("answer", timeout="3s")
        except EventTimedOut:
            return "nobody"

    @tool
    async def order(ctx: ToolContext) -> PendingCompletion:
        """Order."""
        keys.append(await ctx.completion_key(deadline="1h"))
        return ctx.pending(deadline="3s")

    @tool
    async def ship(ctx: ToolContext) -> PendingCompletion:
        """Ship."""
        keys.append(await ctx.completion_key(deadline="3s"))
        return ctx.pending()

    model = ScriptedModel(calls(call("wait"), call("order"), call("ship")), say("ok"))
    rt = await app.open(model, wait, order, ship, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await session.send("go")
    elsewhere = (await app.open(model, worker=False)).get_session("s")
    await until(lambda: _waits_for(elsewhere, 3))
    due = [item.until for item in await elsewhere.pending()]
    await rt.drain(0)
    last = max(moment for moment in due if moment is not None)
    await until(lambda: _past(ref_of(elsewhere).runtime, last))
    assert await elsewhere.resolve("answer", 7) == AlreadyResolved(TimedOut())
    for key in keys:
        assert await ref_of(elsewhere).runtime.resolve(key, 7) == AlreadyResolved(TimedOut())
    await app.open(model, wait, order, ship)
    await until(lambda: _idle(elsewhere))
    waited, *left = outputs(await elsewhere.messages())
    assert waited == "nobody"
    assert [one["code"] for one in left] == ["tool_completion_timeout"] * 2


async def _waits_for(session: Session, count: int) -> bool:
    found = await session.pending()
    return len(found) == count and all(item.until and item.until - item.since < 60_000 for item in found)


async def _past(rt: RuntimeCore, moment: int) -> bool:
    return await rt.store.now() > moment


async def _idle(session: Session) -> bool:
    return (await session.why()).status == "idle"
