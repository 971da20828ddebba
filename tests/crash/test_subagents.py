"""A parent and its sub-agent, in the foreground and in the background, crashed at every durable boundary of both; and
killed for real around what ties them together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from perdure import Agent, Runtime, RuntimeOptions
from perdure.models.protocol import ModelEvent, ModelRequest
from perdure.models.scripted import ScriptedAnswer, ScriptedModel
from perdure.runtime.internals import core_of, ref_of
from perdure.store.protocol import Store
from perdure.testing import CrashReport, World, call, every_boundary, say
from perdure.testing.life import App
from perdure.testing.recovery_report import Story
from perdure.tools.spawn_subagent import spawn_subagent
from perdure.vocab.children import ChildEnded, ChildRegistered
from perdure.vocab.messages import Text, ToolResultPart
from perdure.vocab.records import EffectStarted, SessionOpened

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

ANSWER = "Tea is hot"


class Noted:
    """A script for people and one for what sub-agents say; each request to the model is a line in a file."""

    def __init__(self, name: str, path: Path, *steps: ScriptedAnswer) -> None:
        self.name = name
        self._path = path
        self._asked = ScriptedModel(*steps)
        self._told = ScriptedModel(say("thanks", exact=True))

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        with self._path.open("a") as file:
            file.write(f"{self.name}\n")
        said = [message for message in request.messages if message.role == "user"][-1].parts[-1]
        news = isinstance(said, Text) and said.text.startswith("Sub-agent")
        return (self._told if news else self._asked).stream(request)


def office(store: Store, world: World, mode: str) -> Runtime:
    asked = world.path.with_name("asked")
    chief = Noted("chief", asked, call("spawn_subagent", name="writer", task="Tea", mode=mode), say("done", exact=True))
    writer = Noted("writer", asked, say(ANSWER, exact=True))
    agents = [Agent("chief", model=chief, tools=[spawn_subagent("writer")]), Agent("writer", model=writer)]
    return Runtime(store, agents=agents, options=RuntimeOptions(idle_timeout_s=0.0, drain_s=0))


def foreground(store: Store, world: World) -> Runtime:
    return office(store, world, "foreground")


def background(store: Store, world: World) -> Runtime:
    return office(store, world, "background")


async def go(rt: Runtime) -> None:
    """Until the parent has answered, and was told of a sub-agent in the background."""
    session = await rt.session("s", agent="chief")
    await (await session.send("Go", key="go")).result()
    while True:
        told = [row for row in await session.journal() if isinstance(row.record, ChildEnded)]
        if told and (await session.why()).status == "idle":
            return
        await asyncio.sleep(0.01)


def parent_and_child(crash: CrashReport) -> tuple[Story, Story]:
    [parent] = [story for story in crash.stories if story.session == "s"]
    [child] = [story for story in crash.stories if story.session != "s"]
    return parent, child


def texts(story: Story, role: str) -> list[str]:
    found = (message.parts for message in story.history if message.role == role)
    return [part.text for parts in found for part in parts if isinstance(part, Text)]


def check(crash: CrashReport, mode: Literal["foreground", "background"]) -> None:
    """One child, whose answer its parent has once; and both count what it used, once."""
    parent, child = parent_and_child(crash)
    opened = child.rows[0].record
    assert isinstance(opened, SessionOpened)
    assert opened.parent is not None
    registered = [row.record for row in parent.rows if isinstance(row.record, ChildRegistered)]
    assert [one.child for one in registered] == [child.session]
    assert texts(child, "user") == ["Tea"]
    assert texts(child, "assistant") == [ANSWER]
    ended = [row.record for row in parent.rows if isinstance(row.record, ChildEnded)]
    bought = [row.record.id for row in child.rows if isinstance(row.record, EffectStarted)]
    assert bought in (["m1.1"], ["m1.1", "m1.2"]), "a call that was begun by the process that died counts too"
    assert [(one.child, one.status, one.usage.calls) for one in ended] == [(child.session, "finished", len(bought))]
    results = [part for message in parent.history for part in message.parts if isinstance(part, ToolResultPart)]
    news = [text for text in texts(parent, "user") if ANSWER in text]
    if mode == "foreground":
        assert [part.output for part in results] == [ANSWER]
        assert news == []
    else:
        running = {"agent": "writer", "session": child.session, "status": "running"}
        assert [part.output for part in results] == [running]
        assert len(news) == 1


FACTS = [
    "after annotate",
    "before child_registered",
    "after child_registered",
    "after effect_started m1.1",
    "before child_ended",
    "after child_ended",
    "before turn_ended",
    "after turn_ended",
]
"""Where it matters on a database server: what is sent is one statement of another kind there."""


def requests(crash: CrashReport) -> int:
    """How often the child's model was asked, by the process that died and by its successor."""
    return (crash.folder / "asked").read_text().split().count("writer")


def asked_again_only_in_between(crash: CrashReport, app: Literal["foreground", "background"]) -> None:
    """Only a death between the child's start and its end can have its model asked again."""
    early = crash.boundary.place == "write" and crash.boundary.n < 7
    last = "m2.1, turn_ended" in crash.boundary.what and app == "foreground"
    over = last or "child_ended" in crash.boundary.what
    assert requests(crash) in ((1,) if early or over else (1, 2)), str(crash.boundary)


APPS: dict[Literal["foreground", "background"], App] = {"foreground": foreground, "background": background}


@pytest.mark.slow
@pytest.mark.parametrize("app", APPS)
def test_subagent_answers_once_at_every_crash_boundary(
    app: Literal["foreground", "background"], tmp_path: Path
) -> None:
    def judged(crash: CrashReport) -> None:
        check(crash, app)
        asked_again_only_in_between(crash, app)

    crashes = every_boundary(APPS[app], go, mode="sqlite", folder=tmp_path, check=judged)
    registered = {crash.boundary.n for crash in crashes if "child_registered" in crash.boundary.what}
    assert registered == {7}, "the claim before it is write 6"
    assert any("child_ended" in crash.boundary.what for crash in crashes)
    assert sum(crash.boundary.side == "before" for crash in crashes) >= 14


@pytest.mark.slow
@pytest.mark.parametrize("app", APPS)
def test_the_same_killed_for_real(app: Literal["foreground", "background"]) -> None:
    facts = [f"{side} {what}" for what in ("child_registered", "child_ended") for side in ("before", "after")]
    every_boundary(APPS[app], go, mode="kill", check=lambda crash: check(crash, app), at=facts)


@pytest.mark.parametrize("app", APPS)
def test_subagent_answers_once_on_postgres(
    app: Literal["foreground", "background"], postgres_url: str, tmp_path: Path
) -> None:
    crashes = every_boundary(
        APPS[app], go, mode="kill", folder=tmp_path, url=postgres_url, at=FACTS, check=lambda crash: check(crash, app)
    )
    assert len(crashes) == len(FACTS)


async def delete_the_child(rt: Runtime) -> None:
    """Until the parent has answered, whose sub-agent was deleted while it worked."""
    session = await rt.session("s", agent="chief")
    sent = await session.send("Go", key="go")
    while not (children := [info.id for info in await rt.list_sessions() if info.id != "s"]):
        if (await session.why()).status == "idle":
            return  # it was deleted before the crash
        await asyncio.sleep(0.01)
    while True:
        info = await core_of(rt).store.stream(ref_of(session).stream)
        if info is not None and info.parked:
            break  # nothing but what it is told makes it go on
        await asyncio.sleep(0.01)
    await rt.get_session(children[0]).delete()
    await sent.result()


class Forever:
    """A model that never answers."""

    name = "forever"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await asyncio.Event().wait()
        yield  # type: ignore[misc]


def waits_for_a_child(store: Store, world: World) -> Runtime:
    chief = ScriptedModel(call("spawn_subagent", name="writer", task="Tea", mode="foreground"), say("done", exact=True))
    agents = [Agent("chief", model=chief, tools=[spawn_subagent("writer")]), Agent("writer", model=Forever())]
    return Runtime(store, agents=agents, options=RuntimeOptions(idle_timeout_s=0.0, drain_s=0))


def told_that_it_is_gone(crash: CrashReport) -> None:
    [parent] = crash.stories
    results = [part for message in parent.history for part in message.parts if isinstance(part, ToolResultPart)]
    assert [part.is_error for part in results] == [True]
    assert "gone" in str(results[0].output)


@pytest.mark.parametrize("on", ["sqlite", "postgres"])
def test_deletion_of_a_subagent_reaches_its_parent_despite_crash(
    on: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url: str | None = request.getfixturevalue("postgres_url") if on == "postgres" else None
    at = ["before delete", "after delete"]
    crashes = every_boundary(
        waits_for_a_child,
        delete_the_child,
        mode="kill",
        folder=tmp_path,
        url=url,
        at=at,
        check=told_that_it_is_gone,
    )
    assert len(crashes) == len(at)
