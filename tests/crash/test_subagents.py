"""Kill a parent and its sub-agent, in the foreground and in the background, at every durable boundary of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from perdure import Agent, Runtime, Tuning
from perdure.models.protocol import ModelEvent, ModelRequest
from perdure.models.scripted import Answer, ScriptedModel
from perdure.store.protocol import Store
from perdure.testing import Crash, World, call, every_boundary, say
from perdure.testing.aftermath import Story
from perdure.tools.spawn_subagent import spawn_subagent
from perdure.vocab.messages import Text, ToolResult
from perdure.vocab.records import ChildEnded, ChildRegistered, SessionOpened

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

ANSWER = "Tea is hot"


class Noted:
    """A script for people and one for what sub-agents say; each request to the model is a line in a file."""

    def __init__(self, name: str, path: Path, *steps: Answer) -> None:
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
    return Runtime(store, agents=agents, tuning=Tuning(patience_s=0.0, drain_s=0))


def foreground(store: Store, world: World) -> Runtime:
    return office(store, world, "foreground")


def background(store: Store, world: World) -> Runtime:
    return office(store, world, "background")


async def go(rt: Runtime) -> None:
    """Until the parent has answered, and was told of a sub-agent in the background."""
    session = await rt.session("s", agent="chief")
    await (await session.send("Go", key="go")).result()
    while True:
        told = [row for row in await session.rows() if isinstance(row.record, ChildEnded)]
        if told and (await session.why()).status == "idle":
            return
        await asyncio.sleep(0.01)


def parent_and_child(crash: Crash) -> tuple[Story, Story]:
    [parent] = [story for story in crash.stories if story.session == "s"]
    [child] = [story for story in crash.stories if story.session != "s"]
    return parent, child


def texts(story: Story, role: str) -> list[str]:
    found = (message.parts for message in story.history if message.role == role)
    return [part.text for parts in found for part in parts if isinstance(part, Text)]


def check(crash: Crash, mode: Literal["foreground", "background"]) -> None:
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
    assert [(one.child, one.status, one.usage.calls) for one in ended] == [(child.session, "finished", 1)]
    results = [part for message in parent.history for part in message.parts if isinstance(part, ToolResult)]
    news = [text for text in texts(parent, "user") if ANSWER in text]
    if mode == "foreground":
        assert [part.output for part in results] == [ANSWER]
        assert news == []
    else:
        running = {"agent": "writer", "session": child.session, "status": "running"}
        assert [part.output for part in results] == [running]
        assert len(news) == 1


def requests(folder: Path, crash: Crash) -> int:
    """How often the child's model was asked, by the process that died and by its successor."""
    boundary = crash.boundary
    [path] = (folder / f"{boundary.place}-{boundary.n}-{boundary.side}").rglob("asked")
    return path.read_text().split().count("writer")


def swept(app: Literal["foreground", "background"], folder: Path) -> None:
    made = foreground if app == "foreground" else background
    crashes = every_boundary(made, go, mode="kill", folder=folder, check=lambda crash: check(crash, app))
    registered = {crash.boundary.n for crash in crashes if "child_registered" in crash.boundary.what}
    assert registered == {7}, "the claim before it is write 6"
    assert any("child_ended" in crash.boundary.what for crash in crashes)
    assert sum(crash.boundary.side == "before" for crash in crashes) >= 14
    for crash in crashes:
        # Only a death between the child's start and its end can have its model asked again.
        early = crash.boundary.place == "write" and crash.boundary.n < 7
        last = "m2.1, turn_ended" in crash.boundary.what and app == "foreground"
        over = last or "child_ended" in crash.boundary.what
        assert requests(folder, crash) in ((1,) if early or over else (1, 2)), str(crash.boundary)


@pytest.mark.parametrize("app", ["foreground", "background"])
def test_a_sub_agent_is_started_once_and_answers_once_wherever_the_process_dies(
    app: Literal["foreground", "background"], tmp_path: Path
) -> None:
    swept(app, tmp_path)
