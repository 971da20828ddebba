"""Steering, interrupting, pausing and taking back, killed at every boundary: what was sent is shown exactly once, what
was dispatched once is dispatched once, and nothing waits for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext

import pytest

from perdure import Agent, Runtime, ToolContext, tool
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import ref_of
from perdure.runtime.sessions.session import Session
from perdure.store.protocol import Store
from perdure.testing import World, every_boundary
from perdure.testing.life import Script
from perdure.testing.sweep import CrashReport, Mode
from perdure.vocab.messages import Text
from perdure.vocab.records import TurnEnded

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

SIMULATED: list[Mode] = ["memory", "sqlite"]


HELD: set[str] = set()
"""Whether a payment lasts until its script has said what it wants: or a slow machine would let the turn end first."""


@contextmanager
def while_paying() -> Generator[None]:
    HELD.add("payment")
    try:
        yield
    finally:
        HELD.clear()


def app(store: Store, world: World) -> Runtime:
    HELD.clear()  # of a process that died

    @tool
    async def pay(ctx: ToolContext) -> str:
        """Pay."""
        world.note("pay", key=ctx.idempotency_key)
        await asyncio.sleep(0.03)
        while HELD:  # noqa: ASYNC110 - a script sets it, or a new life does
            await asyncio.sleep(0.005)
        return "paid"

    script = {"go": [call("pay"), say("paid")], "left": [call("pay"), say("left it is")], "stop": [say("stopped")]}
    return Runtime(store, agents=[Agent("a", model=ScriptedModel.by_input(script, default=[say("fine")]), tools=[pay])])


def on_both_sides(crashes: tuple[CrashReport, ...], what: str) -> bool:
    """Whether the process died before and after a write of which this is a part."""
    return {crash.boundary.side for crash in crashes if what in crash.boundary.what} == {"before", "after"}


def said(crash: CrashReport) -> list[str]:
    """Return the user inputs, as the model sees them in the end."""
    history = crash.history("s")
    return [part.text for one in history if one.role == "user" for part in one.parts if isinstance(part, Text)]


async def dispatched(session: Session) -> None:
    """Until the tool runs, or the turn is past it."""
    while not any(row.kind == "effect_started" and b"c1.0.1" in row.data for row in await session.journal()):  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def stands_still(session: Session) -> None:
    """Wait until the turn of a paused session reached a checkpoint or has no live owner."""
    store = ref_of(session).runtime.store
    while (info := await store.stream(ref_of(session).stream)) and info.active:
        if info.owner is None or await store.is_dead(info.owner):
            break
        await asyncio.sleep(0.002)


async def steer(rt: Runtime) -> None:
    session = await rt.session("s", agent="a")
    with while_paying():
        first = await session.send("go", key="1")
        await dispatched(session)
        steered = await session.send("left", key="2", mode="steer")
    assert (await steered.result()).status == (await first.result()).status == "finished"


def shown_once(crash: CrashReport) -> None:
    assert said(crash) == ["go", "left"]
    assert crash.history("s")[-1].role == "assistant"


@pytest.mark.slow
@pytest.mark.parametrize("mode", SIMULATED)
def test_steered_input_is_shown_once_at_every_crash_boundary(mode: Mode) -> None:
    crashes = every_boundary(app, steer, mode=mode, check=shown_once)
    assert on_both_sides(crashes, "admit input steer")
    assert any("input_admitted" in c.boundary.what and "turn_opened" not in c.boundary.what for c in crashes)
    assert any("turn_ended" in crash.boundary.what for crash in crashes)


async def interrupt(rt: Runtime) -> None:
    session = await rt.session("s", agent="a")
    with while_paying():
        first = await session.send("go", key="1")
        await dispatched(session)
        stop = await session.send("stop", key="2", mode="interrupt")
    assert (await stop.result()).text.startswith("stopped")
    assert (await first.result()).status in ("finished", "stopped")


def ended_in_order(crash: CrashReport) -> None:
    assert crash.world.count("pay") <= 1
    assert said(crash) == ["go", "stop"]
    (story,) = crash.stories
    ends = [row.record for row in story.rows if isinstance(row.record, TurnEnded)]
    assert [end.status for end in ends][1:] == ["finished"]
    assert ends[0].reason in (None, "cancelled")
    told = str(crash.history("s"))
    assert "cancelled: the call was not run" not in told or crash.world.count("pay") == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", SIMULATED)
def test_an_interruption_is_neither_lost_nor_done_twice_wherever_the_process_dies(mode: Mode) -> None:
    crashes = every_boundary(app, interrupt, mode=mode, check=ended_in_order)
    assert on_both_sides(crashes, "intervene cancel_requested")


async def pause(rt: Runtime) -> None:
    session = await rt.session("s", agent="a")
    with while_paying():
        first = await session.send("go", key="1")
        await dispatched(session)
        await session.pause(by="maria")
        second = await session.send("next", key="2")
    await stands_still(session)
    await session.resume(by="maria")
    assert (await first.result()).status == (await second.result()).status == "finished"


def both_answered(crash: CrashReport) -> None:
    assert said(crash) == ["go", "next"]
    assert crash.world.count("pay") == 1 or crash.doubts


@pytest.mark.slow
@pytest.mark.parametrize("mode", SIMULATED)
def test_a_pause_is_kept_and_ended_wherever_the_process_dies(mode: Mode) -> None:
    crashes = every_boundary(app, pause, mode=mode, check=both_answered)
    assert on_both_sides(crashes, "intervene session_paused")
    assert on_both_sides(crashes, "intervene session_resumed")


async def take_back(rt: Runtime) -> None:
    session = await rt.session("s", agent="a")
    with while_paying():
        first = await session.send("go", key="1")
        await dispatched(session)
        second = await session.send("next", key="2")
        outcome = (await session.cancel_input(second)).outcome
    ended = await second.result()
    assert ended.reason == ("cancelled" if outcome in ("cancelled", "already_cancelled") else None)
    assert (await first.result()).status == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("mode", SIMULATED)
def test_an_input_that_is_taken_back_is_so_for_good(mode: Mode) -> None:
    crashes = every_boundary(app, take_back, mode=mode)
    assert on_both_sides(crashes, "intervene input_cancelled")


CRASHED: set[str] = set()


async def take_back_in_the_end(rt: Runtime) -> None:
    """As `take_back`; but after a crash the input is answered before it is cancelled again."""
    session = await rt.session("s", agent="a")
    with nullcontext() if CRASHED else while_paying():
        await session.send("go", key="1")
        await dispatched(session)
        second = await session.send("next", key="2")
        if CRASHED:
            await second.result()
        assert (await session.cancel_input(second)).outcome == ("completed" if CRASHED else "cancelled")


def test_input_may_be_answered_when_its_cancellation_crashed() -> None:
    def again(store: Store, world: World) -> Runtime:
        CRASHED.clear()
        if world.count():  # a payment of a life before this
            CRASHED.add("once")
        return app(store, world)

    every_boundary(again, take_back_in_the_end, mode="memory", at=["before intervene input_cancelled"])


# --- killed for real, where a crash costs seconds: at some facts of each script, and not at numbers, since appends are
# grouped on a database server: which write is the n-th differs from run to run.

KILLED: dict[str, tuple[Script, Callable[[CrashReport], None] | None, list[str]]] = {
    "steer": (steer, shown_once, ["before admit input steer", "after admit input steer", "before turn_ended"]),
    "interrupt": (interrupt, ended_in_order, ["before intervene cancel_requested", "after intervene cancel_requested"]),
    "pause": (pause, both_answered, ["before intervene session_paused", "after intervene session_paused"]),
    "resume": (pause, both_answered, ["before intervene session_resumed", "after intervene session_resumed"]),
    "take back": (take_back, None, ["before intervene input_cancelled", "after intervene input_cancelled"]),
}


@pytest.mark.parametrize("on", ["sqlite", "postgres"])
@pytest.mark.parametrize("verb", KILLED)
def test_the_same_killed_for_real(verb: str, on: str, request: pytest.FixtureRequest) -> None:
    script, check, facts = KILLED[verb]
    url = str(request.getfixturevalue("postgres_url")) if on == "postgres" else None
    every_boundary(app, script, mode="kill", check=check, url=url, timeout_s=60, at=facts)
