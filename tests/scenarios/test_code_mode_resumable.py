"""Resumable tools as functions of a program: each call has a body of its own, inside that of the program."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from perdure import (
    Agent,
    Code,
    Error,
    OutcomeUnknown,
    RetryPolicy,
    Runtime,
    RuntimeOptions,
    Session,
    ToolContext,
    ToolError,
    UsageLimits,
    WorkerOptions,
    tool,
)
from perdure.codec import Json
from perdure.codemode import ProgramLimits, code_mode
from perdure.codemode.machine import Machine
from perdure.codemode.pauses import Pause
from perdure.models.protocol import ModelEvent, ModelRequest, TextPiece
from perdure.models.scripted import ScriptedModel, Step, call, say
from perdure.runtime.calls.programs import ProgramsClient
from perdure.runtime.internals import core_of, ref_of
from perdure.tools.clients.dispatch import ChildCall
from perdure.tools.context import dispatch_of
from perdure.tools.decorator import AnyTool
from perdure.tools.provider import ToolProvider
from perdure.tools.spawn_subagent import spawn_subagent
from perdure.vocab.messages import AttachmentRef, Text
from perdure.vocab.outcomes import DurableStepOutcome
from perdure.vocab.records import EffectSettled, EffectStarted
from perdure.vocab.tools import Durability, ToolContract, ToolManifest
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import App, NewStore, until
from tests.scenarios.test_bodies import HURRIED, ids, parked, recorded
from tests.scenarios.test_code_mode import asked, check, paying, run, script, shop, told

GATHER = "import asyncio\n"
SAFE = """
import asyncio
async def safe(one):
    try:
        return await one
    except RuntimeError as problem:
        return str(problem).split(":")[0]
"""


class Press:
    """Publishes: renders, is reviewed, uploads; and remembers what it really did."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.entered: Counter[str] = Counter()

    async def _do(self, what: str) -> str:
        self.did.append(what)
        return f"{what}!"

    def tool(self, **options: Json) -> AnyTool:
        @tool(effect="resumable", **options)
        async def publish(ctx: ToolContext, doc: str) -> str:
            """Publish a document once it was reviewed."""
            self.entered[doc] += 1
            page = await ctx.step("render", self._do, f"render {doc}")
            verdict = await ctx.wait_for_event(f"review {doc}")
            await ctx.step("upload", self._do, f"upload {doc}", effect="idempotent")
            return f"{page} {verdict}"

        return publish


async def finished(session: Session) -> None:
    async def over() -> bool:
        return (await session.why()).status == "idle"

    await until(over, seconds=30)


async def opened(app: App, code: str, *tools: AnyTool, tuning: RuntimeOptions = HURRIED) -> tuple[Runtime, Session]:
    rt = await app.open(script(code), *tools, code_mode(), tuning=tuning)
    session = await rt.session("s", agent="a")
    await session.send("go", key="go")
    return rt, session


def nested(marks: Sequence[str]) -> list[str]:
    """What was recorded of the bodies inside the program, and of the steps that run them."""
    return [mark for mark in marks if "~" in mark or "/step:call" in mark]


# --- steps and waits


async def test_a_body_inside_a_program_records_its_parts_under_its_own_call(app: App) -> None:
    press = Press()
    rt, session = await opened(app, "a = buy(1)\n[a, publish(doc='x'), buy(2)]", press.tool(), *shop([]))
    await recorded(session, ">c1.0~call:2/event:review x")
    await session.resolve("review x", "fine")
    await finished(session)
    assert await told(session) == [{"result": ["bought 1", "render x! fine", "bought 2"]}]
    assert nested(await ids(session)) == [
        ">c1.0/step:call:1",
        "<c1.0/step:call:1",
        ">c1.0/step:call:2",
        ">c1.0~call:2/step:render",
        "<c1.0~call:2/step:render",
        ">c1.0~call:2/event:review x",
        "<c1.0~call:2/event:review x",
        "<c1.0~call:2/step:upload",
        "<c1.0/step:call:2",
        ">c1.0/step:call:3",
        "<c1.0/step:call:3",
    ]
    assert press.did == ["render x", "upload x"]
    await check(rt)


@pytest.mark.parametrize("patience", [0.0, 30.0])
async def test_event_of_a_nested_body_parks_and_wakes_the_turn(app: App, patience: float) -> None:
    press = Press()
    rt, session = await opened(app, "publish(doc='x')", press.tool(), tuning=RuntimeOptions(idle_timeout_s=patience))
    await recorded(session, ">c1.0~call:1/event:review x")
    if not patience:
        await parked(rt, session)
    await session.resolve("review x", "fine")
    await finished(session)
    assert await told(session) == [{"result": "render x! fine"}]
    assert press.did == ["render x", "upload x"]
    assert press.entered["x"] == (1 if patience else 2)
    await check(rt)


async def test_a_sleep_inside_keeps_its_moment(app: App) -> None:
    naps: list[str] = []

    @tool(effect="resumable")
    async def nap(ctx: ToolContext) -> str:
        """Sleep."""
        naps.append("entered")
        await ctx.sleep("a while", 0.3)
        return ctx.now().isoformat()

    rt, session = await opened(app, "[nap(), nap()]", nap)
    await finished(session)
    [output] = await told(session)
    first, second = msgspec.convert(output, dict[str, list[str]])["result"]
    assert first < second
    assert len(naps) == 4, "each was parked once"
    marks = await ids(session)
    assert [mark for mark in marks if "sleep:" in mark] == [
        f"{side}c1.0~call:{n}/sleep:a while" for n in (1, 2) for side in "><"
    ]
    await check(rt)


@pytest.mark.parametrize("patience", [0.0, 30.0])
@pytest.mark.parametrize("order", ["abc", "cab"])
async def test_three_that_are_gathered_each_wait_for_their_own(app: App, patience: float, order: str) -> None:
    press = Press()
    code = GATHER + "await asyncio.gather(*[publish(doc=d) for d in 'abc'])"
    rt, session = await opened(app, code, press.tool(), tuning=RuntimeOptions(idle_timeout_s=patience))
    for n, doc in enumerate("abc", 1):
        await recorded(session, f">c1.0~call:{n}/event:review {doc}")
    for doc in order:
        await session.resolve(f"review {doc}", f"fine {doc}")
        await recorded(session, f"<c1.0/step:call:{'abc'.index(doc) + 1}")
    await finished(session)
    assert await told(session) == [{"result": [f"render {d}! fine {d}" for d in "abc"]}]
    assert sorted(press.did) == [f"{what} {d}" for what in ("render", "upload") for d in "abc"]
    if patience:
        assert press.entered == Counter("abc")
    await check(rt)


async def test_one_that_works_beside_one_that_waits_keeps_the_turn_in_memory(app: App) -> None:
    press, working, go_on = Press(), asyncio.Event(), asyncio.Event()

    async def hard() -> str:
        working.set()
        await go_on.wait()
        return "worked"

    @tool(effect="resumable")
    async def work(ctx: ToolContext) -> str:
        """Work."""
        return await ctx.step("hard", hard)

    rt, session = await opened(app, GATHER + "await asyncio.gather(publish(doc='x'), work())", press.tool(), work)
    await recorded(session, ">c1.0~call:1/event:review x")
    await working.wait()
    await asyncio.sleep(0.1)  # as long as it would take to park
    assert core_of(rt).has_in_hand(ref_of(session).stream)
    assert press.entered["x"] == 1
    go_on.set()
    await parked(rt, session)
    await session.resolve("review x", "fine")
    await finished(session)
    assert await told(session) == [{"result": ["render x! fine", "worked"]}]
    await check(rt)


async def test_nested_body_with_waiting_tasks_is_parked_and_resumed(app: App) -> None:
    entered: list[str] = []

    @tool(effect="resumable")
    async def both(ctx: ToolContext) -> Json:
        """Wait for two."""
        entered.append("both")
        return await asyncio.gather(ctx.wait_for_event("one"), ctx.wait_for_event("two"))

    rt, session = await opened(app, "both()", both)
    await parked(rt, session)
    await session.resolve("one", 1)
    await session.resolve("two", 2)
    await finished(session)
    assert await told(session) == [{"result": [1, 2]}]
    assert len(entered) > 1
    await check(rt)


async def test_step_concurrent_with_a_nested_wait_prevents_parking(app: App) -> None:
    working, go_on, entered = asyncio.Event(), asyncio.Event(), list[str]()

    async def hard() -> str:
        working.set()
        await go_on.wait()
        return "worked"

    @tool(effect="resumable")
    async def both(ctx: ToolContext) -> Json:
        """Work beside a wait."""
        entered.append("both")
        return await asyncio.gather(ctx.wait_for_event("go"), ctx.step("hard", hard))

    rt, session = await opened(app, "both()", both)
    await working.wait()
    await recorded(session, ">c1.0~call:1/event:go")
    await asyncio.sleep(1.5)  # as long as it would take to park
    assert core_of(rt).has_in_hand(ref_of(session).stream)
    assert len(entered) == 1
    go_on.set()
    await parked(rt, session)
    await session.resolve("go", 1)
    await finished(session)
    assert await told(session) == [{"result": [1, "worked"]}]
    await check(rt)


async def test_untracked_task_of_a_nested_body_gets_time_to_finish(app: App) -> None:
    async def done() -> str:
        return "done"

    @tool(effect="resumable")
    async def both(ctx: ToolContext) -> Json:
        """Do something that nobody can see beside a wait."""

        async def unseen() -> str:
            await asyncio.sleep(0.05)
            return await ctx.step("seen", done)

        return await asyncio.gather(ctx.wait_for_event("go"), unseen())

    rt, session = await opened(app, "both()", both)
    await recorded(session, "<c1.0~call:1/step:seen")
    await parked(rt, session)
    await session.resolve("go", 1)
    await finished(session)
    assert await told(session) == [{"result": [1, "done"]}]
    await check(rt)


async def test_a_body_inside_that_swallows_everything_is_parked_all_the_same(app: App) -> None:
    entered: list[str] = []

    @tool(effect="resumable")
    async def stubborn(ctx: ToolContext) -> Json:
        """Swallow whatever comes."""
        entered.append("stubborn")
        try:
            return await ctx.wait_for_event("go")
        except BaseException:  # noqa: BLE001 - that is the point
            return "swallowed"

    rt, session = await opened(app, "stubborn()", stubborn)
    await parked(rt, session)
    await session.resolve("go", "fine")
    await finished(session)
    assert await told(session) == [{"result": "fine"}]
    assert len(entered) == 2
    await check(rt)


async def test_two_bodies_may_wait_for_one_event(app: App) -> None:
    @tool(effect="resumable")
    async def wait(ctx: ToolContext) -> Json:
        """Wait."""
        return await ctx.wait_for_event("go")

    rt, session = await opened(app, GATHER + "await asyncio.gather(wait(), wait())", wait)
    await recorded(session, ">c1.0~call:2/event:go")
    await session.resolve("go", 7)
    await finished(session)
    assert await told(session) == [{"result": [7, 7]}]
    await check(rt)


async def test_nested_body_has_stable_separate_time_and_random_values(app: App) -> None:
    seen: dict[int, set[str]] = {1: set(), 2: set()}

    @tool(effect="resumable")
    async def draw(ctx: ToolContext, n: int) -> str:
        """Draw."""
        seen[n].add(f"{ctx.uuid()} {ctx.now()} {ctx.random()}")
        await ctx.wait_for_event(f"go {n}")
        return str(ctx.uuid())

    rt, session = await opened(app, GATHER + "await asyncio.gather(draw(1), draw(2))", draw)
    await parked(rt, session)
    await session.resolve("go 1", None)
    await session.resolve("go 2", None)
    await finished(session)
    assert [len(one) for one in seen.values()] == [1, 1]
    assert seen[1] != seen[2]
    await check(rt)


async def test_another_worker_goes_on_inside(app: App) -> None:
    press, sold = Press(), list[int]()
    code = "a = buy(1)\n[a, publish(doc='x'), buy(2)]"
    rt, session = await opened(app, code, press.tool(), *shop(sold))
    await parked(rt, session)
    await rt.drain()
    later = await app.open(script(code), press.tool(), *shop(sold), code_mode(), tuning=HURRIED)
    session = await later.session("s", agent="a")
    await session.resolve("review x", "fine")
    await finished(session)
    assert await told(session) == [{"result": ["bought 1", "render x! fine", "bought 2"]}]
    assert press.did == ["render x", "upload x"]
    assert sold == [1, 2]
    await check(later)


async def test_unawaited_nested_body_runs_and_is_reported(app: App) -> None:
    press = Press()
    code = GATHER + "left = [publish(doc='x')]\nif False:\n    await asyncio.gather(*left)\n'over'"
    rt, session = await opened(app, code, press.tool())
    await parked(rt, session)
    await session.resolve("review x", "fine")
    await finished(session)
    note = "Call 1 (publish) was made and not awaited; it ended with: render x! fine."
    assert await told(session) == [{"result": "over", "note": note}]
    await check(rt)


# --- how it ends


async def test_a_failure_is_an_error_in_the_program(app: App) -> None:
    async def no() -> None:
        raise ToolError("no paper", code="out_of_paper")

    @tool(effect="resumable")
    async def publish(ctx: ToolContext, how: str) -> str:
        """Publish."""
        if how == "step":
            await ctx.step("render", no)
        if how == "broken":
            raise ValueError("private")
        raise ToolError("too long", code="too_long")

    code = "r = []\nfor how in ('step', 'tool', 'broken'):\n    try:\n        publish(how=how)\n"
    code += "    except RuntimeError as e:\n        r.append(str(e))\nr"
    [output] = await run(app, code, tools=[publish])
    step, tool_error, broken = msgspec.convert(output, dict[str, list[str]])["result"]
    assert (step, tool_error) == ("out_of_paper: no paper", "too_long: too long")
    assert broken.startswith("internal_error")
    assert "private" not in str(output)


async def test_a_retried_attempt_replays_the_steps_of_the_one_before(app: App) -> None:
    press, attempts = Press(), list[tuple[int, int, str]]()

    @tool(effect="resumable", retries=RetryPolicy(kind="idempotent", max_attempts=2, base_delay_ms=10))
    async def publish(ctx: ToolContext, doc: str) -> str:
        """Publish."""
        attempts.append((ctx.attempt, ctx.max_attempts, ctx.idempotency_key))
        page = await ctx.step("render", press._do, f"render {doc}")  # pyright: ignore[reportPrivateUsage] - its own kind
        if ctx.attempt == 1:
            raise ToolError("not yet", retry_safe=True)
        await ctx.wait_for_event("go")
        return f"{page} at attempt {ctx.attempt}"

    rt, session = await opened(app, "publish(doc='x')", publish)
    await recorded(session, ">c1.0~call:1/event:go")
    await parked(rt, session)
    await session.resolve("go", None)
    await finished(session)
    assert await told(session) == [{"result": "render x! at attempt 2"}]
    assert press.did == ["render x"]
    assert [(n, most) for n, most, _ in attempts] == [(1, 2), (2, 2), (2, 2)]
    assert len({key for *_, key in attempts}) == 1
    await check(rt)


async def test_nested_call_ends_after_its_running_steps(app: App) -> None:
    done, begun = list[str](), asyncio.Event()

    async def slow() -> str:
        begun.set()
        await asyncio.sleep(0.05)
        done.append("slow")
        return "slow"

    @tool(effect="resumable")
    async def hasty(ctx: ToolContext) -> str:
        """Do not wait."""
        left = asyncio.create_task(ctx.step("slow", slow))
        await begun.wait()
        assert not left.done()
        return "hasty"

    rt, session = await opened(app, "hasty()", hasty)
    await finished(session)
    assert done == ["slow"]
    marks = nested(await ids(session))
    assert marks.index("<c1.0~call:1/step:slow") < marks.index("<c1.0/step:call:1")
    await check(rt)


async def test_misuse_in_a_nested_body_fails_its_call_only(app: App) -> None:
    async def one() -> int:
        return 1

    @tool(effect="resumable")
    async def twice(ctx: ToolContext, name: str) -> int:
        """The same name twice."""
        return await ctx.step("a", one) + await ctx.step(name, one)

    code = SAFE + "[await safe(twice(name='a')), await safe(twice(name='b'))]"
    assert await run(app, code, tools=[twice]) == [{"result": ["durable_effect_duplicate_step_id", 2]}]


# --- doubt


async def cut_off(new_store: NewStore, code: str, tools: Sequence[AnyTool], begun: asyncio.Event) -> list[Json]:
    """A worker stops in the middle of a step; another one goes on."""
    agent = [Agent("a", model=script(code), tools=[*tools, code_mode()])]
    async with Runtime(new_store(), agents=agent, options=RuntimeOptions(drain_s=0)) as rt:
        await (await rt.session("s", agent="a")).send("go", key="go")
        await asyncio.wait_for(begun.wait(), 20)
    async with Runtime(new_store(), agents=agent) as rt:
        session = await rt.session("s", agent="a")
        await (await session.send("go", key="go")).result(20)
        await check(rt)
        return await told(session)


def stuck(ran: list[str], begun: asyncio.Event, *, catches: bool = False, effect: str = "once") -> AnyTool:
    async def pay(n: int) -> int:
        ran.append(f"pay {n}")
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return n

    @tool(effect="resumable")
    async def settle(ctx: ToolContext, n: int) -> str:
        """Pay."""
        try:
            return f"paid {await ctx.step('pay', pay, n, effect=effect)}"  # pyright: ignore[reportArgumentType] - one of them
        except OutcomeUnknown:
            if not catches:
                raise
            return "looked it up"

    return settle


async def test_interrupted_once_step_leaves_its_nested_call_in_doubt(new_store: NewStore) -> None:
    ran, begun = list[str](), asyncio.Event()
    code = SAFE + "[await safe(settle(1)), await safe(settle(2))]"
    [output] = await cut_off(new_store, code, [stuck(ran, begun)], begun)
    assert isinstance(output, dict)
    assert output["result"] == ["outcome_unknown", "paid 2"]
    assert output["note"] == "Call 1 (settle) may or may not have taken effect, so do not repeat it."
    assert ran == ["pay 1", "pay 2"]


async def test_nested_tool_settles_the_doubt_of_its_step(new_store: NewStore) -> None:
    ran, begun = list[str](), asyncio.Event()
    tools = [stuck(ran, begun, catches=True)]
    assert await cut_off(new_store, "settle(1)", tools, begun) == [{"result": "looked it up"}]
    assert ran == ["pay 1"]


async def test_an_idempotent_step_that_was_cut_off_runs_again(new_store: NewStore) -> None:
    ran, begun = list[str](), asyncio.Event()
    tools = [stuck(ran, begun, effect="idempotent")]
    assert await cut_off(new_store, "settle(1)", tools, begun) == [{"result": "paid 1"}]
    assert ran == ["pay 1", "pay 1"]


# --- people


@pytest.mark.parametrize("patience", [0.0, 30.0])
async def test_nested_body_starts_when_approved_with_the_edited_arguments(app: App, patience: float) -> None:
    press = Press()
    tuning = RuntimeOptions(idle_timeout_s=patience)
    rt, session = await opened(app, "publish(doc='x')", press.tool(needs_approval=True), tuning=tuning)
    question = await asked(rt)
    assert press.did == []
    await rt.approvals.approve(question, by="ana", args={"doc": "y"})
    await recorded(session, ">c1.0~call:1/event:review y")
    if not patience:
        await parked(rt, session)
    assert (await rt.approvals.get(question)).used_at is not None
    await session.resolve("review y", "fine")
    await finished(session)
    [output] = await told(session)
    assert isinstance(output, dict)
    assert output["result"] == "render y! fine"
    assert 'ana changed the arguments of call 1 (publish) to {"doc":"y"}.' in output["note"]
    assert press.did == ["render y", "upload y"]
    await check(rt)


async def test_a_denied_one_is_an_error_in_the_program(app: App) -> None:
    press = Press()
    rt, session = await opened(app, SAFE + "await safe(publish(doc='x'))", press.tool(needs_approval=True))
    await rt.approvals.deny(await asked(rt), by="ana")
    await finished(session)
    assert await told(session) == [{"result": "approval_denied"}]
    assert press.entered.total() == 0
    await check(rt)


async def test_approved_nested_call_keeps_its_edit_after_a_deploy(app: App) -> None:
    press = Press()
    rt, session = await opened(app, "publish(doc='x')", press.tool(needs_approval=True))
    await rt.approvals.approve(await asked(rt), by="ana", args={"doc": "y"})
    await recorded(session, ">c1.0~call:1/event:review y")
    await parked(rt, session)
    await rt.drain()
    later = await app.open(script(""), press.tool(), code_mode(), tuning=HURRIED)
    session = await later.session("s", agent="a")
    await session.resolve("review y", "fine")
    await finished(session)
    assert press.did == ["render y", "upload y"]
    await check(later)


async def test_started_nested_call_needs_no_later_approval(app: App) -> None:
    press = Press()
    rt, session = await opened(app, "publish(doc='x')", press.tool())
    await parked(rt, session)
    await rt.drain()
    later = await app.open(script(""), press.tool(needs_approval=True), code_mode(), tuning=HURRIED)
    session = await later.session("s", agent="a")
    await session.resolve("review x", "fine")
    await finished(session)
    assert press.did == ["render x", "upload x"]
    await check(later)


async def test_a_body_inside_may_ask_people_itself(app: App) -> None:
    @tool(effect="resumable")
    async def sign(ctx: ToolContext) -> str:
        """Have it signed."""
        decision = await dispatch_of(ctx).ask("really", "sign (asks)", {"text": "sure?"})
        return decision.verdict if decision else "nobody"

    rt, session = await opened(app, "[sign(), sign()]", sign)
    for n in (1, 2):
        await recorded(session, f">c1.0~call:{n}/approval:really")
        question = await asked(rt)
        await parked(rt, session)
        [waiting] = await session.pending()
        assert (waiting.kind, waiting.tool) == ("approval", "sign (asks)")
        await rt.approvals.approve(question, by="ana")
    await finished(session)
    assert await told(session) == [{"result": ["approve", "approve"]}]
    await check(rt)


# --- what it may not


@pytest.mark.parametrize("how", ["call", "batch"])
async def test_a_body_inside_calls_no_other_tools_and_is_told_so(app: App, how: str) -> None:
    sold: list[int] = []

    @tool(effect="resumable")
    async def shopping(ctx: ToolContext) -> str:
        """Buy through another tool."""
        asked_for = ChildCall("buy", {"item": 1})
        if how == "call":
            await dispatch_of(ctx).call(asked_for, step="buying")
        else:
            await ctx.tools.batch([asked_for])
        return "bought"

    code = "try:\n    shopping()\nexcept RuntimeError as e:\n    r = str(e)\nr"
    [output] = await run(app, code, tools=[shopping, *shop(sold)])
    assert output == {
        "result": "nested_too_deep: shopping was called by another tool or a program, and calls no other tools from "
        "there; nothing was run. Make those calls where it was called from, or have the model call it."
    }
    assert sold == []


async def test_a_resumable_tool_is_refused_in_a_batch(app: App) -> None:
    press = Press()

    @tool(effect="resumable")
    async def do(ctx: ToolContext) -> Json:
        """Do it."""
        return [(one.error_code, str(one.output)) for one in await ctx.tools.batch([("publish", {})])]

    rt = await app.open(ScriptedModel(call("do"), say("ok")), do, press.tool())
    session = await rt.session("s", agent="a")
    await session.ask("go")
    [[[code, text]]] = await told(session)
    assert code == "nested_effect_not_recorded"
    assert "by themselves (ctx.tools.call, or in a program)" in text
    assert press.entered.total() == 0


async def test_a_program_is_no_function_of_another_program(app: App) -> None:
    rt = await app.open(script("other(code='1')", "2"), code_mode(), code_mode(name="other"))
    session = await rt.session("s", agent="a")
    await session.ask("go")
    [refused, after] = await told(session)
    assert "nested_too_deep: other cannot be called in a program: include its code in this program" in str(refused)
    assert after == {"result": 2}
    await check(rt)


async def test_a_resumable_tool_may_be_called_from_any_resumable_body(app: App) -> None:
    press = Press()

    @tool(effect="resumable")
    async def do(ctx: ToolContext) -> Json:
        """Do it."""
        ended = await ctx.tools.call("publish", {"doc": "x"}, step="a/b ~%")
        return [ended.value, ended.error_code]

    rt = await app.open(ScriptedModel(call("do"), say("ok")), do, press.tool(), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await parked(rt, session)
    [waiting] = await session.pending()
    assert (waiting.kind, waiting.id, waiting.tool) == ("event", "review x", "publish")
    await session.resolve("review x", "fine")
    await finished(session)
    assert await told(session) == [["render x! fine", None]]
    assert press.did == ["render x", "upload x"]
    assert "<c1.0~a%2Fb %7E%25/step:render" in await ids(session)
    await check(rt)


async def test_a_resumable_body_gathers_calls_of_resumable_tools(app: App) -> None:
    press = Press()

    @tool(effect="resumable")
    async def do(ctx: ToolContext) -> Json:
        """Do it."""
        calls = [ctx.tools.call("publish", {"doc": doc}, step=f"publish {doc}") for doc in "xy"]
        return [one.value for one in await asyncio.gather(*calls)]

    rt = await app.open(ScriptedModel(call("do"), say("ok")), do, press.tool(), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await parked(rt, session)
    for doc in "yx":
        await session.resolve(f"review {doc}", f"fine {doc}")
        await recorded(session, f"<c1.0/step:publish {doc}")
    await finished(session)
    assert await told(session) == [["render x! fine x", "render y! fine y"]]
    assert sorted(press.did) == [f"{what} {doc}" for what in ("render", "upload") for doc in "xy"]
    await check(rt)


# --- cancelling, pausing, limits


async def outcome(session: Session, id: str) -> DurableStepOutcome:
    [found] = [
        row.record for row in await session.journal() if isinstance(row.record, EffectSettled) and row.record.id == id
    ]
    assert isinstance(found.outcome, DurableStepOutcome)
    return found.outcome


@pytest.mark.parametrize("is_parked", [True, False])
async def test_a_cancelled_turn_ends_the_bodies_inside(app: App, is_parked: bool) -> None:
    press = Press()
    code = GATHER + "await asyncio.gather(publish(doc='x'), publish(doc='y'))"
    tuning = RuntimeOptions(idle_timeout_s=0.0 if is_parked else 30.0)
    rt, session = await opened(app, code, press.tool(), tuning=tuning)
    await recorded(session, ">c1.0~call:2/event:review y")
    if is_parked:
        await parked(rt, session)
    await session.cancel()
    await finished(session)
    for n in (1, 2):
        ended = await outcome(session, f"c1.0/step:call:{n}")
        assert ended.error is not None
        assert (ended.error.code, ended.error.message) == (
            "tool_cancelled",
            "it was stopped before its end; the steps it had finished stand",
        )
    with pytest.raises(Error) as refused:
        await session.resolve("review x", "fine")
    assert refused.value.code is Code.EVENT_KEY_INVALID
    assert "the steps it had finished stand" in str(await told(session))
    assert sorted(press.did) == ["render x", "render y"]
    await check(rt)


async def test_cancelled_nested_step_is_in_doubt(app: App) -> None:
    ran, begun = list[str](), asyncio.Event()
    rt, session = await opened(app, "settle(1)", stuck(ran, begun))
    await asyncio.wait_for(begun.wait(), 20)
    await session.cancel()
    await finished(session)
    inner = await outcome(session, "c1.0~call:1/step:pay")
    assert inner.in_doubt is not None
    around = await outcome(session, "c1.0/step:call:1")
    assert around.in_doubt is not None
    assert around.in_doubt.message == "it was stopped during the step pay"
    assert "the turn was cancelled during the step pay" in str(await told(session))
    await check(rt)


async def test_a_paused_session_goes_on_inside_when_it_is_resumed(app: App) -> None:
    press = Press()
    rt, session = await opened(app, "publish(doc='x')", press.tool())
    await parked(rt, session)
    await session.pause()
    await session.resolve("review x", "fine")
    await asyncio.sleep(0.2)
    assert press.did == ["render x"]
    await session.resume()
    await finished(session)
    assert await told(session) == [{"result": "render x! fine"}]
    assert press.did == ["render x", "upload x"]
    await check(rt)


async def test_program_over_its_limit_lets_nested_calls_finish(app: App) -> None:
    press = Press()
    code = GATHER + "a = [publish(doc='x')]\nwhile True:\n    price(1)\nawait asyncio.gather(*a)"
    rt = await app.open(script(code), press.tool(), *shop([]), code_mode(limits=ProgramLimits(calls=5)), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await parked(rt, session)
    await session.resolve("review x", "fine")
    await finished(session)
    assert "program_limit_exceeded" in str(await told(session))
    assert press.did == ["render x", "upload x"]
    await check(rt)


async def test_serial_ones_run_one_after_the_other_also_while_they_wait(app: App) -> None:
    press = Press()
    code = GATHER + "await asyncio.gather(publish(doc='x'), publish(doc='y'))"
    rt, session = await opened(app, code, press.tool(sequential=True))
    await recorded(session, ">c1.0~call:1/event:review x")
    await parked(rt, session)
    assert press.did == ["render x"]
    await session.resolve("review x", "fine")
    await recorded(session, ">c1.0~call:2/event:review y")
    assert press.did == ["render x", "upload x", "render y"]
    await session.resolve("review y", "fine")
    await finished(session)
    assert await told(session) == [{"result": ["render x! fine", "render y! fine"]}]
    await check(rt)


async def test_steps_beside_waits_of_one_body_get_their_permits(app: App) -> None:
    inside, most = 0, 0

    async def touch(n: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.02)
        inside -= 1
        return n

    @tool(effect="resumable")
    async def visit(ctx: ToolContext, n: int) -> Json:
        """Touch it twice beside a wait."""

        async def work() -> int:
            return await ctx.step("first", touch, n) + await ctx.step("second", touch, n)

        return await asyncio.gather(ctx.wait_for_event("go"), work())

    code = GATHER + "await asyncio.gather(*[visit(n) for n in range(4)])"
    work = WorkerOptions(limits={"tool:visit": 1})
    rt = await app.open(script(code), visit, code_mode(), worker=work, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await session.send("go")
    for n in (1, 2, 3, 4):
        await recorded(session, f"<c1.0~call:{n}/step:second")
    await parked(rt, session)
    await session.resolve("go", "now")
    await finished(session)
    assert await told(session) == [{"result": [["now", 2 * n] for n in range(4)]}]
    assert most == 1
    await check(rt)


@pytest.mark.parametrize("also", [{}, {"tool:run_python": 1}])
async def test_waiting_nested_body_holds_no_permit(app: App, also: dict[str, int]) -> None:
    inside, most = 0, 0

    async def touch(n: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.02)
        inside -= 1
        return n

    @tool(effect="resumable")
    async def visit(ctx: ToolContext, n: int) -> int:
        """Touch it, wait for the one behind, touch it again."""
        await ctx.step("first", touch, n)
        if n < 3:
            await ctx.wait_for_event(f"go {n}")
        return await ctx.step("second", touch, n)

    code = GATHER + "await asyncio.gather(visit(1), visit(2), visit(3))"
    work = WorkerOptions(limits={"tool:visit": 1, **also})
    rt = await app.open(script(code), visit, code_mode(), worker=work, tuning=RuntimeOptions(idle_timeout_s=30.0))
    session = await rt.session("s", agent="a")
    await session.send("go")
    await recorded(session, "<c1.0/step:call:3")  # though the two before it wait
    await session.resolve("go 1", None)
    await session.resolve("go 2", None)
    await finished(session)
    assert await told(session) == [{"result": [1, 2, 3]}]
    assert most == 1 or also, "a holder of a permit waits for no other: its calls run without"
    assert inside == 0

    async def given_back() -> bool:
        return not await core_of(rt).store.permits()

    await until(given_back)
    await check(rt)


async def test_call_timeout_does_not_end_the_program(app: App) -> None:
    @tool(timeout=0.05)
    async def slow() -> str:
        """Too slow."""
        await asyncio.Event().wait()
        return "never"

    press, sold = Press(), list[int]()
    code = SAFE + "[await safe(slow()), buy(1), await publish(doc='x')]"
    rt, session = await opened(app, code, slow, press.tool(), *shop(sold))
    await recorded(session, ">c1.0~call:3/event:review x")
    await session.resolve("review x", "fine")
    await finished(session)
    [output] = await told(session)
    assert isinstance(output, dict)
    assert output["result"] == ["outcome_unknown", "bought 1", "render x! fine"]
    await check(rt)


# --- what is kept is a cache


@pytest.mark.parametrize("kept", [True, False])
async def test_a_program_that_runs_again_enters_only_what_has_not_ended(
    app: App, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    press, sold = Press(), list[int]()
    code = GATHER + "a = await asyncio.gather(publish(doc='x'), publish(doc='y'))\n[a, buy(1), publish(doc='z')]"
    rt, session = await opened(app, code, press.tool(), *shop(sold))
    await recorded(session, ">c1.0~call:2/event:review y")
    await parked(rt, session)
    if not kept:

        async def gone(_: ProgramsClient, __: str) -> bytes | None:
            return None

        monkeypatch.setattr(ProgramsClient, "fetch", gone)
    await session.resolve("review y", "fine")
    await recorded(session, "<c1.0/step:call:2")
    await parked(rt, session)
    entered = press.entered["y"]
    await session.resolve("review x", "fine")
    await recorded(session, ">c1.0~call:4/event:review z")
    await session.resolve("review z", "fine")
    await finished(session)
    fine = ["render x! fine", "render y! fine"]
    assert await told(session) == [{"result": [fine, "bought 1", "render z! fine"]}]
    assert sorted(press.did) == sorted(f"{what} {doc}" for what in ("render", "upload") for doc in "xyz")
    assert sold == [1]
    assert press.entered["y"] == entered, "an ended body is not entered again"
    await check(rt)


async def test_variables_come_from_running_earlier_programs_again_without_entering_a_body(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    press = Press()
    model = ScriptedModel.by_input(
        {
            "one": [call("run_python", code="x = publish(doc='x')"), say("ok")],
            "two": [call("run_python", code="x"), say("ok")],
        }
    )
    rt = await app.open(model, press.tool(), code_mode(), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("one")
    await parked(rt, session)
    await session.resolve("review x", "fine")
    await sent.result(20)
    entered = press.entered["x"]

    async def gone(_: ProgramsClient, __: str) -> bytes | None:
        return None

    monkeypatch.setattr(ProgramsClient, "fetch", gone)
    await session.ask("two")
    assert (await told(session))[1] == {"result": "render x! fine"}
    assert press.entered["x"] == entered
    await check(rt)


async def test_diverging_program_cancels_its_nested_calls(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    press, run_machine, ran = Press(), Machine.run, list[str]()

    async def other(machine: Machine, code: str) -> Pause:
        ran.append(code)
        return await run_machine(
            machine, code if len(ran) == 1 else code.replace("publish(doc='y')", "publish(doc='q')")
        )

    async def gone(_: ProgramsClient, __: str) -> bytes | None:
        return None

    monkeypatch.setattr(Machine, "run", other)
    monkeypatch.setattr(ProgramsClient, "fetch", gone)
    code = GATHER + "await asyncio.gather(publish(doc='x'), publish(doc='y'))"
    rt, session = await opened(app, code, press.tool())
    await recorded(session, ">c1.0~call:2/event:review y")
    await parked(rt, session)
    await session.resolve("review y", "fine")
    await finished(session)
    assert "replay_mismatch" in str(await told(session))
    for n in (1, 2):
        ended = await outcome(session, f"c1.0/step:call:{n}")
        assert ended.error is not None
        assert ended.error.code == "tool_cancelled"
    assert sorted(press.did) == ["render x", "render y"]
    await check(rt)


# --- deploys


async def deployed(app: App, before: AnyTool, *after: AnyTool) -> tuple[Runtime, Session, Json]:
    """A program waits inside `publish`; another worker with other tools goes on."""
    code = SAFE + "[await safe(publish(doc='x')), buy(1)]"
    rt, session = await opened(app, code, before, *shop([]))
    await recorded(session, ">c1.0~call:1/event:review x")
    await parked(rt, session)
    await rt.drain()
    later = await app.open(script(code), *after, *shop([]), code_mode(), tuning=HURRIED)
    session = await later.session("s", agent="a")
    await session.resolve("review x", "fine")
    await finished(session)
    [output] = await told(session)
    await check(later)
    return later, session, output


async def test_a_renamed_step_runs_under_its_new_name(app: App) -> None:
    press, did = Press(), list[str]()

    async def render(doc: str) -> str:
        did.append(doc)
        return f"new {doc}"

    @tool(effect="resumable")
    async def publish(ctx: ToolContext, doc: str) -> str:
        """Publish a document once it was reviewed."""
        page = await ctx.step("render anew", render, doc)
        return f"{page} {await ctx.wait_for_event(f'review {doc}')}"

    _, session, output = await deployed(app, press.tool(), publish)
    assert output == {"result": ["new x fine", "bought 1"]}
    assert (press.did, did) == (["render x"], ["x"])
    assert "<c1.0~call:1/step:render anew" in await ids(session)


async def test_changed_nested_step_fails_its_call_only(app: App) -> None:
    press, did = Press(), list[str]()

    async def render(doc: str, size: str) -> str:
        did.append(doc)
        return size

    @tool(effect="resumable")
    async def publish(ctx: ToolContext, doc: str) -> str:
        """Publish a document once it was reviewed."""
        try:
            return await ctx.step("render", render, doc, "A4")
        except Error:
            return "swallowed"

    _, _, output = await deployed(app, press.tool(), publish)
    assert output == {"result": ["replay_mismatch", "bought 1"]}
    assert (press.did, did) == (["render x"], [])


async def test_a_tool_that_is_plain_by_now_runs_as_it_is(app: App) -> None:
    press = Press()

    @tool
    async def publish(doc: str) -> str:
        """Publish a document once it was reviewed."""
        return f"plainly {doc}"

    _, _, output = await deployed(app, press.tool(), publish)
    assert output == {"result": ["plainly x", "bought 1"]}
    assert press.did == ["render x"]


async def test_resumable_tool_redeployed_as_function_runs_plainly(app: App) -> None:
    @tool
    def publish(doc: str) -> str:
        """Publish a document once it was reviewed."""
        return f"plainly {doc}"

    _, _, output = await deployed(app, Press().tool(), publish)
    assert output == {"result": ["plainly x", "bought 1"]}


async def test_tool_restored_to_resumable_continues_its_steps(app: App) -> None:
    press = Press()
    code = "[publish(doc='x'), buy(1)]"
    rt, session = await opened(app, code, press.tool(), *shop([]))
    await parked(rt, session)
    await rt.drain()

    @tool
    async def publish(doc: str) -> str:
        """Publish a document once it was reviewed."""
        return "plainly"

    # A worker with the plain one is there, and nothing happens meanwhile: a parked turn has no owner.
    between = await app.open(script(code), publish, *shop([]), code_mode(), tuning=HURRIED)
    await between.drain()
    later = await app.open(script(code), press.tool(), *shop([]), code_mode(), tuning=HURRIED)
    session = await later.session("s", agent="a")
    await session.resolve("review x", "fine")
    await finished(session)
    assert await told(session) == [{"result": ["render x! fine", "bought 1"]}]
    assert press.did == ["render x", "upload x"]
    await check(later)


async def test_tool_made_resumable_has_no_steps_in_the_running_turn(app: App) -> None:
    sold, press = list[int](), Press()

    @tool(needs_approval=True)
    async def publish(doc: str) -> str:
        """Publish a document once it was reviewed."""
        return "plainly"

    code = SAFE + "[await safe(publish(doc='x')), buy(1)]"
    rt, session = await opened(app, code, publish, *shop(sold))
    question = await asked(rt)
    await parked(rt, session)
    await rt.drain()
    later = await app.open(script(code), press.tool(needs_approval=True), *shop(sold), code_mode(), tuning=HURRIED)
    await later.approvals.approve(question, by="ana")
    session = await later.session("s", agent="a")
    await finished(session)
    assert await told(session) == [{"result": ["durable_effects_unavailable", "bought 1"]}]
    assert press.did == []
    await check(later)


async def test_removed_tool_fails_its_call_and_lists_finished_steps(app: App) -> None:
    press = Press()
    code = "try:\n    publish(doc='x')\nexcept RuntimeError as e:\n    r = str(e)\nr"
    rt, session = await opened(app, code, press.tool())
    await parked(rt, session)
    await rt.drain()
    later = await app.open(script(code), code_mode(), tuning=HURRIED)
    session = await later.session("s", agent="a")
    await session.resolve("review x", "fine")
    await finished(session)
    [output] = await told(session)
    said = msgspec.convert(output, dict[str, str])["result"]
    assert said.startswith("tool_removed: ")
    assert "it had begun, and was not run to its end" in said
    assert "Steps that are done: the step 'render'." in said
    await check(later)


# --- what else it reaches


async def test_completion_of_a_nested_body_is_recorded_and_counted_once(app: App) -> None:
    replies = {"go": [call("run_python", code=GATHER + "await asyncio.gather(judge('a'), judge('b'))"), say("done")]}
    model = ScriptedModel.by_input({**replies, "a?": [say("yes a", exact=True)], "b?": [say("yes b", exact=True)]})

    @tool(effect="resumable")
    async def judge(ctx: ToolContext, what: str) -> str:
        """Judge."""
        said = await ctx.complete(f"{what}?", source="judge", key="verdict")
        await ctx.wait_for_event(f"go {what}")
        return said

    rt = await app.open(model, judge, code_mode(), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    await session.resolve("go a", None)
    await session.resolve("go b", None)
    await sent.result(20)
    assert await told(session) == [{"result": ["yes a", "yes b"]}]
    bought = [one for one in await session.usage_entries() if one.source == "direct:judge"]
    assert sorted(one.effect for one in bought) == [f"c1.0~call:{n}/direct:verdict" for n in (1, 2)]
    assert await session.usage() == sum(
        (one.usage for one in await session.usage_entries()), start=type(bought[0].usage)()
    )
    await check(rt)


class Slow:
    """Makes one call, and answers no question of its tools."""

    name = "slow"

    def __init__(self, code: str) -> None:
        self._code = code
        self.asked = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        said = request.messages[-1].parts[-1]
        if isinstance(said, Text) and said.text == "go":
            async for event in script(self._code).stream(request):
                yield event
            return
        self.asked += 1
        yield TextPiece("some of it")
        await asyncio.Event().wait()


async def test_cancelled_completions_of_nested_bodies_are_counted_once(app: App) -> None:
    model = Slow(GATHER + "await asyncio.gather(judge('a'), judge('b'))")

    @tool(effect="resumable")
    async def judge(ctx: ToolContext, what: str) -> str:
        """Judge."""
        return await ctx.complete(f"{what}?", source="judge", key="verdict")

    rt = await app.open(model, judge, code_mode())
    session = await rt.session("s", agent="a")
    sent = await session.send("go")

    async def both() -> bool:
        return model.asked == 2

    await until(both)
    await session.cancel()
    assert (await sent.result(20)).status == "stopped"
    bought = [one for one in await session.usage_entries() if one.source == "direct:judge"]
    assert sorted(one.effect for one in bought) == [f"c1.0~call:{n}/direct:verdict" for n in (1, 2)]
    assert [one.usage.calls for one in bought] == [1, 1]
    assert sum((one.usage for one in await session.usage_entries()), Usage()) == await session.usage()
    await check(rt)


async def test_a_turn_that_has_spent_its_share_buys_nothing_more_inside(app: App) -> None:
    answers: dict[str, list[Step]] = {f"{what}?": [say("yes", exact=True)] for what in "ab"}
    code = SAFE + "[await safe(judge('a')), await safe(judge('b'))]"
    model = ScriptedModel.by_input({"go": [call("run_python", code=code), say("done")], **answers})

    @tool(effect="resumable")
    async def judge(ctx: ToolContext, what: str) -> str:
        """Judge."""
        return await ctx.complete(f"{what}?", source="judge")

    rt = await app.add([Agent("a", model=model, tools=[judge, code_mode()], limits=UsageLimits(turn_tokens=1))])
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    result = await sent.result(20)
    assert (result.status, result.reason) == ("stopped", "limit_reached")
    assert await told(session) == [{"result": ["direct_completion_failed"] * 2}]
    assert [one for one in await session.usage_entries() if one.source == "direct:judge"] == []
    await check(rt)


async def test_provider_tool_timeout_counts_from_the_first_entry(app: App) -> None:
    entered: list[str] = []

    class Patient(ToolProvider):
        """Has one tool, which may wait for so long in all."""

        manifest = ToolManifest(
            name="wait", description="Wait.", durability=Durability(effect="resumable", timeout_ms=1500)
        )

        def tool_manifests(self) -> Sequence[ToolManifest]:
            return [self.manifest]

        def resolve_contract(self, name: str) -> ToolContract | None:
            return self.manifest.contract({"type": "object", "properties": {}}) if name == "wait" else None

        async def execute(self, name: str, args: Json, ctx: ToolContext[object]) -> object:
            entered.append(name)
            await ctx.wait_for_event("first")
            return await ctx.wait_for_event("second")

    code = SAFE + "await safe(wait())"
    rt = await app.open(script(code), Patient(), code_mode(), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    started = [row.record for row in await session.journal() if isinstance(row.record, EffectStarted)]
    [deadline] = [one.deadline_at for one in started if one.id == "c1.0/step:call:1"]
    assert deadline is not None
    await asyncio.sleep(1.6)  # the timeout passed before any entry
    await session.resolve("first", None)
    await sent.result(20)
    assert await told(session) == [
        {
            "result": "tool_timeout",
        }
    ]
    assert len(entered) == 1
    await check(rt)


async def test_a_program_starts_other_agents_by_the_tool_for_that(app: App) -> None:
    answers: dict[str, list[Step]] = {f"write {x}": [say(f"{x} is written", exact=True)] for x in "ab"}
    writer = Agent("writer", model=ScriptedModel.by_input(answers))
    ask = "spawn_subagent(name='writer', task='write {}', mode='foreground')"
    code = GATHER + f"await asyncio.gather({ask.format('a')}, {ask.format('b')})"
    agent = Agent("a", model=script(code), tools=[spawn_subagent("writer"), code_mode()])
    rt = await app.add([agent, writer], tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await (await session.send("go")).result(20)
    assert await told(session) == [{"result": ["a is written", "b is written"]}]


async def test_nested_step_result_is_redactable(app: App) -> None:
    press = Press()
    rt, session = await opened(app, "publish(doc='x')", press.tool())
    await parked(rt, session)
    await session.resolve("review x", "fine")
    await finished(session)
    [seq] = [
        row.seq
        for row in await session.journal()
        if row.kind == "effect_settled" and b"~call:1/step:render" in row.data
    ]
    assert await session.redact(seq)
    assert await told(session) == [{"result": "render x! fine"}]
    await check(rt)


async def test_nested_bodies_have_separate_child_sessions(app: App) -> None:
    @tool(effect="resumable")
    async def have_written(ctx: ToolContext, what: str) -> str:
        """Have something written."""
        text = await ctx.agent("writer").ask(f"write {what}")
        await ctx.wait_for_event(f"go {what}")
        return text

    code = GATHER + "await asyncio.gather(have_written('a'), have_written('b'))"
    writer = Agent(
        "writer",
        model=ScriptedModel.by_input({f"write {x}": [say(f"{x} is written", exact=True)] for x in "ab"}),
    )
    agent = Agent("a", model=script(code), tools=[have_written, code_mode()])
    rt = await app.add([agent, writer], tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    for n, what in ((1, "a"), (2, "b")):
        await recorded(session, f">c1.0~call:{n}/event:go {what}")
    await session.resolve("go a", None)
    await session.resolve("go b", None)
    await sent.result(20)
    assert await told(session) == [{"result": ["a is written", "b is written"]}]
    assert len([one for one in await rt.list_sessions() if one.id.startswith("sub-")]) == 2
    await check(rt)


async def test_a_cancelled_turn_lets_go_of_the_agents_that_are_asked_inside(app: App) -> None:
    asked_for, release = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def think() -> str:
        """Think."""
        asked_for.set()
        await release.wait()
        return "thought"

    @tool(effect="resumable")
    async def have_written(ctx: ToolContext) -> str:
        """Have something written."""
        return await ctx.agent("writer").ask("write")

    writer = Agent("writer", model=ScriptedModel(call("think"), say("written")), tools=[think])
    agent = Agent("a", model=script("have_written()"), tools=[have_written, code_mode()])
    rt = await app.add([agent, writer], tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await asyncio.wait_for(asked_for.wait(), 20)
    await session.cancel()
    assert (await sent.result(20)).status == "stopped"
    [child] = [one.id for one in await rt.list_sessions() if one.id.startswith("sub-")]

    async def stopped() -> bool:
        return any(getattr(row.record, "reason", "") == "cancelled" for row in await rt.get_session(child).journal())

    async def told_so() -> bool:
        return any(row.kind == "child_ended" for row in await session.journal())

    await until(stopped)
    await until(told_so)
    await check(rt)


async def test_sessions_that_it_names_itself_have_the_same_name_on_every_entry(app: App) -> None:
    names: dict[int, list[str]] = {1: [], 2: []}

    @tool(effect="resumable")
    async def open_one(ctx: ToolContext, n: int) -> str:
        """Open a session."""
        names[n].append(await ctx.sessions.create_session())
        await ctx.wait_for_event(f"go {n}")
        return "ok"

    rt, session = await opened(app, GATHER + "await asyncio.gather(open_one(1), open_one(2))", open_one)
    await parked(rt, session)
    for n in (2, 1):
        await session.resolve(f"go {n}", None)
        await recorded(session, f"<c1.0/step:call:{n}")
    await finished(session)
    assert [len(set(one)) for one in names.values()] == [1, 1]
    assert names[1][0] != names[2][0]
    await check(rt)


async def test_bytes_that_it_attaches_are_kept(app: App) -> None:
    @tool(effect="resumable")
    async def draw(ctx: ToolContext) -> int:
        """Draw."""

        async def paint() -> Json:
            ref = await ctx.attachments.put(b"picture", "text/plain")
            return [ref.hash, ref.media_type, ref.size]

        hash, media_type, size = await ctx.step("paint", paint)
        await ctx.wait_for_event("go")
        return len(await ctx.attachments.get(AttachmentRef(hash=hash, media_type=media_type, size=size)))

    rt, session = await opened(app, "draw()", draw)
    await parked(rt, session)
    await session.resolve("go", None)
    await finished(session)
    assert await told(session) == [{"result": 7}]
    await check(rt)


# --- what people are shown


async def test_why_names_the_waiting_nested_tool(app: App) -> None:
    rt, session = await opened(app, "publish(doc='x')", Press().tool())
    await parked(rt, session)
    why = await session.why()
    assert why.summary == "waiting for code 'program' of tool run_python; event 'review x' of tool publish"
    [waiting] = await session.pending()
    assert (waiting.kind, waiting.id, waiting.tool) == ("event", "review x", "publish")
    await session.resolve("review x", "fine")
    await finished(session)
    await check(rt)


async def test_a_call_that_may_not_begin_any_more_does_not(app: App) -> None:
    press, paid = Press(), list[int]()
    code = SAFE + "await asyncio.gather(safe(publish(doc='x')), safe(pay(1)))"
    rt, session = await opened(app, code, press.tool(), paying(paid, needs_approval=True))
    question = await asked(rt)
    await recorded(session, ">c1.0~call:1/event:review x")
    await parked(rt, session)
    await rt.approvals.deny(question, by="ana")
    await session.resolve("review x", "fine")
    await finished(session)
    assert await told(session) == [{"result": ["render x! fine", "approval_denied"]}]
    assert paid == []
    await check(rt)
