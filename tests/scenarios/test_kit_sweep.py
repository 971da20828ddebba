"""`every_boundary` on applications that keep their promises, and on some that do not: the kit must tell them apart."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import pytest
from msgspec.structs import replace

from perdure import (
    Agent,
    Code,
    DidNotHappen,
    Error,
    Happened,
    RetryPolicy,
    Runtime,
    RuntimeOptions,
    Session,
    ToolContext,
    ToolError,
    tool,
)
from perdure.commit.plan import Plan, Receipt
from perdure.models.scripted import Step
from perdure.runtime.internals import core_of
from perdure.store.aes_gcm import AesGcmCodec
from perdure.store.memory.store import MemoryStore
from perdure.store.protocol import Store
from perdure.testing import CrashReport, ManualClock, ScriptedModel, World, call, calls, every_boundary, fail, say
from perdure.testing.life import App
from perdure.testing.sweep import Mode
from perdure.tools.decorator import AnyTool
from perdure.tools.prepare import ToolPrepareContext
from perdure.tools.provider import ToolProvider
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.tools import ToolContract, ToolManifest
from tests.postgres import Server

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

SIMULATED: list[Literal["memory", "sqlite"]] = ["memory", "sqlite"]


STEPS: tuple[Step, ...] = (call("charge", cents=5), say("done"))


def shop(store: Store, *tools: AnyTool, steps: tuple[Step, ...] = STEPS) -> Runtime:
    return Runtime(store, agents=[Agent("shop", model=ScriptedModel(*steps), tools=tools)])


async def buy(rt: Runtime) -> None:
    session = await rt.session("customer", agent="shop")
    assert (await session.ask("Buy it", key="order-7")).startswith("done")


# --- applications that keep their promises


def told(store: Store, world: World) -> Runtime:
    """One `once` tool without a probe: what is in doubt is told."""

    @tool
    async def charge(ctx: ToolContext, cents: int) -> str:
        """Charge."""
        world.note("charge", key=ctx.idempotency_key, cents=cents)
        return "charged"

    return shop(store, charge)


TOLD: dict[str, tuple[int, int, bool]] = {
    # charges when it died, in the end, and whether it is in doubt
    "1:before:admit input": (0, 1, False),
    "1:after:admit input": (0, 1, False),
    "2:before:append input_admitted, turn_opened, effect_started m1.1": (0, 1, False),
    "2:after:append input_admitted, turn_opened, effect_started m1.1": (0, 1, False),
    "3:before:append effect_settled m1.1, effect_started c1.0.1": (0, 1, False),
    "3:after:append effect_settled m1.1, effect_started c1.0.1": (0, 0, True),
    "tool.1:before:charge": (0, 0, True),
    "world.1:before:charge": (0, 0, True),
    "world.1:after:charge": (1, 1, True),
    "tool.1:after:charge": (1, 1, True),
    "4:before:append effect_settled c1.0.1, effect_started m2.1": (1, 1, True),
    "4:after:append effect_settled c1.0.1, effect_started m2.1": (1, 1, False),
    "5:before:append effect_settled m2.1, turn_ended": (1, 1, False),
    "5:after:append effect_settled m2.1, turn_ended": (1, 1, False),
}


LOST_REPLY = "4:after:append effect_settled c1.0.1, effect_started m2.1"
"""Nobody waits for that append: a process that dies right after it was sent may take it along."""


def seen(crashes: tuple[CrashReport, ...]) -> dict[str, tuple[int, int, bool]]:
    assert all(crash.reached for crash in crashes)
    return {
        str(crash.boundary): (crash.at_crash.count("charge"), crash.world.count("charge"), crash.doubts == ("charge",))
        for crash in crashes
    }


@pytest.mark.parametrize("mode", SIMULATED)
def test_a_once_tool_at_every_boundary(mode: Literal["memory", "sqlite"]) -> None:
    assert seen(every_boundary(told, buy, mode=mode)) == TOLD


@pytest.mark.slow
def test_a_once_tool_killed_for_real_at_every_boundary(tmp_path: Path) -> None:
    crashes = every_boundary(told, buy, mode="kill", folder=tmp_path)
    found = seen(crashes)
    at_the_end = "5:before:append effect_settled m2.1, turn_ended"
    assert found.pop(at_the_end) in ((1, 1, False), (1, 1, True))  # the append before it may not be durable yet
    assert found == {point: expected for point, expected in TOLD.items() if point != at_the_end}
    pids = {line.pid for crash in crashes for line in crash.world}
    assert len(pids) == sum(len(crash.world) for crash in crashes), "every charge was made by a process of its own"
    assert os.getpid() not in pids
    assert (tmp_path / "write-3-after" / "store.db").exists()


def test_a_once_tool_killed_for_real_on_a_database_server(postgres: Server, tmp_path: Path) -> None:
    facts = [f"{side} {what}" for what in ("admit input", "effect_started c1.0.1") for side in ("before", "after")]
    found = seen(every_boundary(told, buy, mode="kill", folder=tmp_path, url=postgres.url(), at=facts))
    assert found == {point: expected for point, expected in TOLD.items() if point.startswith(("1:", "3:"))}
    assert not list(tmp_path.glob("*/store.db"))
    left = "SELECT 1 / (count(*) = 0)::int FROM pg_namespace WHERE nspname LIKE 'crash_%'"
    asyncio.run(postgres.execute(left))  # divides by zero if a schema is left


@pytest.mark.parametrize("mode", [*SIMULATED, "kill"])
def test_some_crash_points_by_the_fact_that_is_written_there(mode: Mode) -> None:
    crashes = every_boundary(told, buy, mode=mode, at=["after effect_started c1.0.1", "before effect_settled c1.0.1"])
    known = {point: TOLD[point] for point in TOLD if point.startswith(("3:after", "4:before"))}
    assert seen(crashes) == known


def test_a_crash_point_that_is_not_there_is_told() -> None:
    with pytest.raises(AssertionError) as caught:
        every_boundary(told, buy, at=["before turn_ended", "after effect_started c7.0.1"])
    assert "1 of 2 crash points broke a guarantee" in str(caught.value)
    assert "broken: the run did not come to this crash point" in str(caught.value)


def greeting(store: Store, world: World) -> Runtime:
    return shop(store, steps=(say("fine"),))


LIVES: list[int] = []


async def race(rt: Runtime) -> None:
    """As if two wrote at once: an input is taken back at write 8, except when a process is to die at write 8."""
    LIVES.append(len(LIVES))
    aimed_at = (LIVES[-1] + 3) // 4  # a crash before and one after each write, of two lives each
    session = await rt.session("customer", agent="shop")
    await session.ask("One", key="1")
    await session.pause()
    second = await session.send("Two", key="2")
    if aimed_at == 8:
        await session.cancel_input(second)
    third = await session.send("Three", key="3")
    await session.cancel_input(second)
    await session.resume()
    await third.result()


def test_boundary_moved_by_a_race_is_found_by_name() -> None:
    LIVES.clear()
    crashes = every_boundary(greeting, race)
    taken_back = [crash.boundary for crash in crashes if crash.boundary.what == "intervene input_cancelled"]
    assert [(one.n, one.side) for one in taken_back] == [(8, "before"), (8, "after")]


@pytest.mark.parametrize("fact", ["turn_ended", "before ", "during turn_ended", ""])
def test_unknown_crash_point_is_refused(fact: str) -> None:
    with pytest.raises(Error) as caught:
        every_boundary(told, buy, at=[fact])
    assert caught.value.code is Code.INVALID_ARGUMENT


def probed(store: Store, world: World) -> Runtime:
    """The bank can be asked: nothing stays in doubt."""

    def ask(ctx: ToolContext) -> Happened | DidNotHappen:
        return Happened("charged") if world.has(ctx.idempotency_key) else DidNotHappen()

    @tool(probe=ask)
    def charge(ctx: ToolContext, cents: int) -> str:
        """Charge, in a thread."""
        world.note("charge", key=ctx.idempotency_key)
        return "charged"

    return shop(store, charge)


def charged_once(crash: CrashReport) -> None:
    assert crash.world.count("charge") == 1
    assert not crash.doubts


@pytest.mark.parametrize("mode", [*SIMULATED, "kill"])
def test_a_probe_settles_every_doubt(mode: Literal["memory", "sqlite", "kill"]) -> None:
    where = ["after effect_started c1.0.1", "before effect_settled c1.0.1"] if mode == "kill" else None
    crashes = every_boundary(probed, buy, mode=mode, check=charged_once, at=where)
    assert len(crashes) == (2 if where else 14)
    assert all(crash.reached for crash in crashes)


def three_classes(store: Store, world: World) -> Runtime:
    """Parallel calls of three classes, one of them without a context."""

    @tool(effect="pure")
    async def look(city: str) -> str:
        """Look."""
        await asyncio.sleep(0.01)
        return city

    @tool(effect="idempotent")
    async def put(ctx: ToolContext) -> str:
        """Put: the outside recognises the key."""
        await asyncio.sleep(0.005)
        if not world.has(ctx.idempotency_key):
            world.note("put", key=ctx.idempotency_key)
        return "put"

    @tool
    async def charge(ctx: ToolContext, cents: int) -> str:
        """Charge."""
        world.note("charge", key=ctx.idempotency_key)
        return "charged"

    steps = (calls(call("look", city="Oslo"), call("put"), call("charge", cents=5)), say("done"))
    return shop(store, look, put, charge, steps=steps)


@pytest.mark.parametrize("mode", SIMULATED)
def test_parallel_calls_of_three_classes(mode: Literal["memory", "sqlite"]) -> None:
    crashes = every_boundary(three_classes, buy, mode=mode)
    assert {crash.boundary.what for crash in crashes if crash.boundary.place == "tool"} == {"look", "put", "charge"}
    assert all(crash.world.count("put") == 1 for crash in crashes)


def retried(store: Store, world: World) -> Runtime:
    """Fails once in a way that is safe to repeat; sleeps on a clock that costs no time."""

    @tool(retries=RetryPolicy(kind="safe", max_attempts=2, base_delay_ms=1))
    async def charge(ctx: ToolContext, cents: int) -> str:
        """Charge."""
        if ctx.attempt == 1:
            raise ToolError("busy, nothing was charged", retry_safe=True)
        world.note("charge", key=ctx.idempotency_key)
        return "charged"

    return shop(store, charge)


def test_a_retry_after_a_safe_failure_is_no_second_charge() -> None:
    crashes = every_boundary(retried, buy)
    assert max(crash.world.count("charge") for crash in crashes) == 1
    assert {crash.boundary.n for crash in crashes if crash.boundary.place == "tool"} == {1, 2}


def two_sessions(store: Store, world: World) -> Runtime:
    return told(store, world)


async def buy_twice(rt: Runtime) -> None:
    sessions = [await rt.session(name, agent="shop") for name in ("ann", "bob")]
    for session in sessions:
        await session.send("Buy it", key=f"order-{session.id}")
    cancelled = await rt.session("cat", agent="shop")
    sent = await cancelled.send("Buy it", key="order-cat")
    await cancelled.cancel(sent.turn_id)


def test_sweep_waits_for_turns_the_script_leaves_running() -> None:
    crashes = every_boundary(two_sessions, buy_twice)
    for crash in crashes:
        assert {story.session for story in crash.stories} == {"ann", "bob", "cat"}
        assert crash.history("ann")[-1].role == "assistant"
    assert any(crash.boundary.what.startswith("intervene") for crash in crashes), "a cancellation is a write too"


def doubtful(store: Store, world: World) -> Runtime:
    """Runs into its timeout even undisturbed."""

    @tool(timeout="250ms")
    async def charge(ctx: ToolContext, cents: int) -> str:
        """Charge, and never hear of it again."""
        world.note("charge", key=ctx.idempotency_key)
        await asyncio.sleep(3600)
        return ""

    return shop(store, charge)


def test_doubt_of_the_undisturbed_run_is_allowed_after_crash() -> None:
    assert all(crash.doubts == ("charge",) for crash in every_boundary(doubtful, buy))


async def test_sweep_runs_inside_an_async_test() -> None:
    assert seen(every_boundary(told, buy)) == TOLD


def sealed(store: Store, world: World) -> Runtime:
    """Another tenant, and payloads that only the application can read."""

    @tool
    async def charge(ctx: ToolContext, cents: int) -> str:
        """Charge."""
        world.note("charge", key=ctx.idempotency_key, cents=cents)
        return "charged"

    agent = Agent("shop", model=ScriptedModel(*STEPS), tools=[charge])
    return Runtime(store, agents=[agent], tenant="acme", payload_codec=AesGcmCodec({"k1": b"k" * 32}))


def test_an_application_that_encrypts_at_every_boundary() -> None:
    crashes = every_boundary(sealed, buy)
    assert list(seen(crashes).values()) == list(TOLD.values())
    assert "effect_settled, effect_started" in str(crashes[4].boundary), "only kinds can be seen of a write"
    assert len(crashes[-1].history("customer")) == 4


class Till(ToolProvider):
    """A tool that is not a function of this program, prepared by a hook."""

    charge = ToolManifest(name="charge", description="Charge.")

    def __init__(self, world: World) -> None:
        self._world = world

    def tool_manifests(self) -> tuple[ToolManifest, ...]:
        return (self.charge,)

    def resolve_contract(self, name: str) -> ToolContract:
        return self.charge.contract({"type": "object", "properties": {"cents": {"type": "integer"}}})

    def prepare_tool_call(self, ctx: ToolPrepareContext, call: PreparedToolCall) -> PreparedToolCall:
        return call

    async def execute(self, name: str, args: object, ctx: ToolContext[object]) -> str:
        self._world.note(name, key=ctx.idempotency_key)
        return "charged"


def provided(store: Store, world: World) -> Runtime:
    return Runtime(store, agents=[Agent("shop", model=ScriptedModel(*STEPS), tools=[Till(world)])])


def test_a_tool_of_a_provider_at_every_boundary() -> None:
    assert seen(every_boundary(provided, buy)) == TOLD


# --- the dead stay dead

lives = 0


def lingering(store: Store, world: World) -> Runtime:
    """A thread that goes on when its process should be dead."""
    global lives
    lives += 1
    life = lives

    @tool
    def charge(ctx: ToolContext, cents: int) -> str:
        """Charge, a moment later."""
        time.sleep(0.03)
        world.note("charge", key=ctx.idempotency_key, life=life)
        return "charged"

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        return "seen"

    return shop(store, charge, look, steps=(calls(call("look"), call("charge", cents=5)), say("done")))


@pytest.mark.parametrize("mode", SIMULATED)
def test_a_thread_of_a_dead_process_acts_no_more(mode: Literal["memory", "sqlite"]) -> None:
    def nothing_more_of_the_dead(crash: CrashReport) -> None:
        time.sleep(0.04)
        acted = {line.details["life"] for line in crash.world}
        acted_before = {line.details["life"] for line in crash.at_crash}
        assert len(acted) <= 1
        assert not acted_before or acted == acted_before

    crashes = every_boundary(lingering, buy, mode=mode, check=nothing_more_of_the_dead)
    under_way = [crash for crash in crashes if crash.doubts and not crash.at_crash]
    assert under_way
    assert all(not crash.world for crash in under_way)


# --- applications that break a promise


def not_idempotent(store: Store, world: World) -> Runtime:
    """Says that a call may run again, and charges each time."""

    @tool(effect="idempotent")
    async def charge(ctx: ToolContext, cents: int) -> str:
        """Charge."""
        world.note("charge", key=ctx.idempotency_key)
        return "charged"

    return shop(store, charge)


def not_pure(store: Store, world: World) -> Runtime:
    """Says that nobody notices, and charges under a key of its own."""

    @tool(effect="pure")
    async def charge(cents: int) -> str:
        """Charge."""
        world.note("charge", key=os.urandom(4).hex())
        return "charged"

    return shop(store, charge)


def forgetful(store: Store, world: World) -> Runtime:
    """The journal is switched off: effects leave no record."""

    @tool
    async def charge(ctx: ToolContext, cents: int) -> str:
        """Charge."""
        world.note("charge", key=ctx.idempotency_key)
        return "charged"

    runtime = shop(store, charge)
    core_of(runtime).store = cast(Store, _NoJournal(store))
    return runtime


class _NoJournal:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._gate = getattr(store, "_gate", None)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    def append(self, plan: Plan) -> Awaitable[Receipt]:
        kept = tuple(entry for entry in plan.entries if not entry.kind.startswith("effect_"))
        return self._store.append(replace(plan, entries=kept))


@pytest.mark.parametrize(
    ("app", "mode", "broken"),
    [
        (not_idempotent, "memory", "'charge' happened 2 times under the key perdure-tool:default:customer:"),
        (not_idempotent, "kill", "'charge' happened 2 times under the key perdure-tool:default:customer:"),
        (not_pure, "sqlite", "'charge' happened 2 times, expected 1 as in the undisturbed run"),
        (forgetful, "memory", "the once tool charge was dispatched 2 times as attempt 1 of the call perdure-tool:"),
    ],
)
def test_a_broken_application_is_found_out(app: App, mode: Mode, broken: str) -> None:
    where = ["before effect_settled c1.0.1"] if mode == "kill" else None
    with pytest.raises(AssertionError) as caught:
        every_boundary(app, buy, mode=mode, at=where)
    report = str(caught.value)
    assert f"broken: {broken}" in report
    assert "crash points broke a guarantee" in report.splitlines()[0]
    assert where or "effect on the world 1: charge\n  broken:" in report
    assert "the ledger when it died:\n    charge  key=" in report
    assert "the ledger in the end:\n    charge  key=" in report
    assert "session customer:\n        1 session_opened\n        2 input_admitted order-7" in report


def test_the_report_names_the_boundary_and_shows_ledger_and_journal() -> None:
    """Word for word, apart from names that are minted."""
    with pytest.raises(AssertionError) as caught:
        every_boundary(not_idempotent, buy)
    report = str(caught.value)
    key = report[report.index("perdure-tool:") :].partition(",")[0]
    lines = report.replace(key, "KEY").splitlines()
    assert lines[:9] == [
        "3 of 14 crash points broke a guarantee",
        "",
        "crashed after effect on the world 1: charge",
        "  broken: 'charge' happened 2 times under the key KEY, expected 1",
        "  broken: 'charge' happened 2 times, expected 1 as in the undisturbed run",
        "  the ledger when it died:",
        "    charge  key=KEY",
        "  the ledger in the end:",
        "    charge  key=KEY",
    ]
    journal = [line.strip() for line in lines[lines.index("  the journal in the end:") + 1 :]]
    assert journal[:11] == [
        "session customer:",
        "1 session_opened",
        "2 input_admitted order-7",
        "3 turn_opened",
        "4 effect_started m1.1 (pure)",
        "5 effect_settled m1.1",
        "6 effect_settled c1.0.1 charge: Success",
        "7 effect_started m2.1 (pure)",
        "8 effect_settled m2.1",
        "9 turn_ended finished",
        "",
    ]


def test_a_check_of_your_own_fails_with_the_boundary() -> None:
    def always_charged(crash: CrashReport) -> None:
        assert crash.world.count("charge") == 1, "the customer got it for nothing"

    with pytest.raises(AssertionError) as caught:
        every_boundary(told, buy, check=always_charged)
    report = str(caught.value)
    assert report.startswith(
        "3 of 14 crash points broke a guarantee\n\ncrashed after write 3: append effect_settled m1.1"
    )
    assert "broken: your check: the customer got it for nothing" in report
    assert "in doubt: charge" in report


async def buy_only_once(rt: Runtime) -> None:
    """A script that does not finish when it is run again."""
    session = await rt.session("customer", agent="shop")
    sent = await session.send("Buy it", key="order-7")
    await sent.result()
    assert not sent.is_duplicate


def test_a_script_that_fails_after_the_restart_is_told() -> None:
    with pytest.raises(AssertionError, match=r"(?s)13 of 14 crash .*script failed after the restart:\nTraceback"):
        every_boundary(told, buy_only_once)


async def wait_for_ever(rt: Runtime) -> None:
    session: Session = await rt.session("customer", agent="shop")
    sent = await session.send("Buy it", key="order-7")
    if sent.is_duplicate:
        await asyncio.Event().wait()


def test_a_script_that_hangs_after_the_restart_is_told() -> None:
    with pytest.raises(AssertionError, match=r"(?s)script failed after the restart:.*TimeoutError"):
        every_boundary(told, wait_for_ever, timeout_s=0.1)


# --- what cannot be tested like this


def sends_nothing(store: Store, world: World) -> Runtime:
    return told(store, world)


async def buy_and_delete(rt: Runtime) -> None:
    session = await rt.session("customer", agent="shop")
    await session.ask("Buy it", key="order-7")
    await session.delete()


async def buy_and_delete_another(rt: Runtime) -> None:
    await buy_plainly(rt)
    other = await rt.session("guest", agent="shop")
    await other.ask("Buy it", key="order-8")
    await other.delete()


async def nothing(rt: Runtime) -> None:
    await rt.session("customer", agent="shop")


async def without_key(rt: Runtime) -> None:
    await (await rt.session("customer", agent="shop")).ask("Buy it")


def refusal(*args: object, **options: object) -> Error:
    with pytest.raises(Error) as caught:
        every_boundary(*args, **options)  # pyright: ignore[reportArgumentType] - wrong on purpose
    assert caught.value.code is Code.INVALID_ARGUMENT
    return caught.value


def test_invalid_script_or_mode_is_refused() -> None:
    assert refusal(told, nothing).message == "the script sent no input"
    assert refusal(told, buy_and_delete).message == "the script deletes every session that received an input"
    assert refusal(told, without_key).message == "the script sent an input without a key"
    assert refusal(told, buy, mode="fast").message == "unknown mode 'fast'"
    local = refusal(lambda store, world: told(store, world), buy, mode="kill")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert local.message == 'mode="kill" needs an app and a script that a child process can import'


def test_a_database_server_is_for_processes_that_really_die() -> None:
    assert refusal(told, buy, mode="sqlite", url="postgresql://h/d").message == (
        'url= needs mode="kill" and a Postgres address'
    )


def test_a_folder_is_for_one_sweep(tmp_path: Path) -> None:
    crash, *_ = every_boundary(told, buy, folder=tmp_path)
    assert (tmp_path / "undisturbed" / "world.jsonl").exists()
    assert refusal(told, buy, folder=tmp_path).message == "the folder holds an earlier sweep"
    with pytest.raises(Error) as caught:
        crash.history("somebody")
    assert caught.value.code is Code.SESSION_UNKNOWN
    assert caught.value.because == "the sessions are: customer"


def test_an_app_must_make_a_runtime_on_the_store_it_is_given() -> None:
    with pytest.raises(AssertionError, match="the app returned a Agent, not a Runtime"):
        every_boundary(lambda store, world: Agent("a", model="sim:echo"), buy)  # pyright: ignore[reportArgumentType]
    with pytest.raises(AssertionError, match="the app opened another store"):
        every_boundary(lambda store, world: told(MemoryStore(ManualClock()), world), buy)


def test_an_application_that_does_not_work_at_all_is_told() -> None:
    def broken(store: Store, world: World) -> Runtime:
        return Runtime(store, agents=[Agent("shop", model=ScriptedModel())], options=RuntimeOptions(drain_s=0.1))

    with pytest.raises(AssertionError, match=r"(?s)fails without a crash:.*turn_failed"):
        every_boundary(broken, buy)


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(AssertionError, match=r"(?s)fails without a crash:\nTraceback.*AssertionError"):
        every_boundary(told, fails, mode="kill")


async def fails(rt: Runtime) -> None:
    raise AssertionError("on purpose")


# --- models that fail, bodies that do not do the same again


def shaky(store: Store, world: World) -> Runtime:
    return Runtime(store, agents=[Agent("shop", model=ScriptedModel(fail(503), say("ok")))])


@pytest.mark.slow
def test_a_fault_of_the_script_does_not_strike_again_after_the_crash() -> None:
    def failed_once_at_most(crash: CrashReport) -> None:
        outcomes = [outcome for story in crash.stories for outcome in story.settled.values()]
        errors = [one.error.kind for one in outcomes if isinstance(one, LlmCallOutcome) and one.error]
        assert [kind for kind in errors if kind != "worker_lost"] in ([], ["unavailable"])

    assert every_boundary(shaky, buy_plainly, check=failed_once_at_most)


async def buy_plainly(rt: Runtime) -> None:
    await (await rt.session("customer", agent="shop")).ask("Buy it", key="order-7")


def talking(store: Store, world: World) -> Runtime:
    return Runtime(store, agents=[Agent("shop", model=ScriptedModel(say("ok")))])


def test_a_session_that_the_script_deletes_is_not_missed() -> None:
    assert every_boundary(talking, buy_and_delete_another)


def straying(store: Store, world: World) -> Runtime:
    """A body that passes something else to its step whenever it is run."""

    @tool(effect="resumable")
    async def order(ctx: ToolContext) -> str:
        """Order."""
        await ctx.step("first", str, os.urandom(8).hex())
        await ctx.step("second", str, "the same")
        return "ok"

    return Runtime(store, agents=[Agent("shop", model=ScriptedModel(call("order"), say("ok")), tools=[order])])


def test_a_body_that_does_something_else_after_the_restart_is_told() -> None:
    with pytest.raises(AssertionError, match=r"c1\.0\.1 ran again with different steps: order: "):
        every_boundary(straying, buy_plainly)


def test_crash_report_contains_no_internal_traceback() -> None:
    with pytest.raises(AssertionError) as caught:
        every_boundary(told, buy_only_once)
    assert "During handling" not in str(caught.value)
