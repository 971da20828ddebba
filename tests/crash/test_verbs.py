"""Steering, interrupting, pausing and taking back, killed at every boundary: what was sent is shown exactly once, what
was dispatched once is dispatched once, and nothing waits for ever.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Agent, Runtime, ToolContext, tool
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.session import Session
from perdure.store.protocol import Store
from perdure.testing import World, every_boundary
from perdure.testing.sweep import Crash, Mode
from perdure.vocab.messages import Text
from perdure.vocab.records import TurnEnded

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

MODES: list[Mode] = ["memory", "sqlite", "kill"]


def app(store: Store, world: World) -> Runtime:
    @tool
    async def pay(ctx: ToolContext) -> str:
        """Pay."""
        world.note("pay", key=ctx.idempotency_key)
        await asyncio.sleep(0.03)
        return "paid"

    script = {"go": [call("pay"), say("paid")], "left": [call("pay"), say("left it is")], "stop": [say("stopped")]}
    return Runtime(store, agents=[Agent("a", model=ScriptedModel.by_input(script, default=[say("fine")]), tools=[pay])])


def said(crash: Crash) -> list[str]:
    """What users said, as the model is shown it in the end."""
    history = crash.history("s")
    return [part.text for one in history if one.role == "user" for part in one.parts if isinstance(part, Text)]


async def dispatched(session: Session) -> None:
    """Until the tool runs, or the turn is past it."""
    while not any(row.kind == "effect_started" and b"c1.0.1" in row.data for row in await session.rows()):  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def steer(rt: Runtime) -> None:
    session = await rt.session("s", agent="a")
    first = await session.send("go", key="1")
    await dispatched(session)
    steered = await session.send("left", key="2", mode="steer")
    assert (await steered.result()).status == (await first.result()).status == "finished"


def shown_once(crash: Crash) -> None:
    assert said(crash) == ["go", "left"]
    assert crash.history("s")[-1].role == "assistant"


@pytest.mark.parametrize("mode", MODES)
def test_what_is_steered_is_shown_exactly_once_wherever_the_process_dies(mode: Mode, tmp_path: Path) -> None:
    crashes = every_boundary(app, steer, mode=mode, check=shown_once, folder=tmp_path if mode == "kill" else None)
    written = [crash for crash in crashes if crash.boundary.what.startswith("admit input")]
    assert {crash.boundary.side for crash in written} == {"before", "after"}
    assert any("input_admitted" in c.boundary.what and "turn_opened" not in c.boundary.what for c in crashes)
    assert any("turn_ended" in crash.boundary.what for crash in crashes)


async def interrupt(rt: Runtime) -> None:
    session = await rt.session("s", agent="a")
    first = await session.send("go", key="1")
    await dispatched(session)
    stop = await session.send("stop", key="2", mode="interrupt")
    assert (await stop.result()).text.startswith("stopped")
    assert (await first.result()).status in ("finished", "stopped")


def ended_in_order(crash: Crash) -> None:
    assert said(crash) == ["go", "stop"]
    (story,) = crash.stories
    ends = [row.record for row in story.rows if isinstance(row.record, TurnEnded)]
    assert [end.status for end in ends][1:] == ["finished"]
    assert ends[0].reason in (None, "cancelled")
    told = str(crash.history("s"))
    assert "cancelled: the call was not run" not in told or crash.world.count("pay") == 0


@pytest.mark.parametrize("mode", MODES)
def test_an_interruption_is_neither_lost_nor_done_twice_wherever_the_process_dies(mode: Mode, tmp_path: Path) -> None:
    crashes = every_boundary(
        app, interrupt, mode=mode, check=ended_in_order, folder=tmp_path if mode == "kill" else None
    )
    assert {crash.boundary.side for crash in crashes if crash.boundary.what == "intervene"} == {"before", "after"}
    assert all(crash.world.count("pay") <= 1 for crash in crashes)


async def pause(rt: Runtime) -> None:
    session = await rt.session("s", agent="a")
    first = await session.send("go", key="1")
    await dispatched(session)
    await session.pause(by="maria")
    second = await session.send("next", key="2")
    await session.resume(by="maria")
    assert (await first.result()).status == (await second.result()).status == "finished"


def both_answered(crash: Crash) -> None:
    assert said(crash) == ["go", "next"]
    assert crash.world.count("pay") == 1 or crash.doubts


@pytest.mark.parametrize("mode", MODES)
def test_a_pause_is_kept_and_ended_wherever_the_process_dies(mode: Mode, tmp_path: Path) -> None:
    crashes = every_boundary(app, pause, mode=mode, check=both_answered, folder=tmp_path if mode == "kill" else None)
    assert sum(crash.boundary.what == "intervene" for crash in crashes) >= 4  # both sides of pause and resume


async def take_back(rt: Runtime) -> None:
    session = await rt.session("s", agent="a")
    first = await session.send("go", key="1")
    second = await session.send("next", key="2")
    outcome = (await session.cancel_input(second)).outcome
    ended = await second.result()
    assert ended.reason == ("cancelled" if outcome in ("cancelled", "already_cancelled") else None)
    assert (await first.result()).status == "finished"


@pytest.mark.parametrize("mode", MODES)
def test_an_input_that_is_taken_back_is_so_for_good(mode: Mode, tmp_path: Path) -> None:
    every_boundary(app, take_back, mode=mode, folder=tmp_path if mode == "kill" else None)
