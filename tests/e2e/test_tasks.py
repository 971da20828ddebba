"""`perdure tasks`, as a user types it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Agent, Runtime
from perdure.ids import SessionId
from perdure.models.scripted import ScriptedModel, say
from perdure.services.tasks import CreateSessionTask, NewTaskMessage, SessionTaskUpdate
from tests.e2e.command import perdure

S = SessionId("customer-1")
pytestmark = pytest.mark.timeout(300)

DB = ("--db", "s.db")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with a session and two tasks: one has ended, one asks for something."""

    async def make() -> None:
        agent = Agent("a", model=ScriptedModel(say("hello")))
        async with Runtime(f"sqlite:///{tmp_path / 's.db'}", agents=[agent]) as rt:
            await (await rt.session(S, agent="a")).ask("hi")
            for name in ("done", "asks"):
                await rt.tasks.create(
                    CreateSessionTask(session_id=S, id=name, kind="external_agent", display_name=f"The {name}")
                )
            await rt.tasks.update(S, "done", SessionTaskUpdate(state="succeeded", summary="12 books"))
            await rt.tasks.update(S, "asks", SessionTaskUpdate(input_request={"question": "which?"}))
            await rt.tasks.send_message(S, "asks", NewTaskMessage("outbound", [{"type": "text", "text": "which?"}]))

    asyncio.run(make())
    return tmp_path


def test_tasks_are_listed_shown_answered_cancelled_and_awaited(folder: Path) -> None:
    listed = perdure("tasks", "list", "customer", *DB, cwd=folder)
    assert listed.code == 0, listed.err
    assert "The done: 12 books" in listed.out
    assert perdure("tasks", "list", S, "--state", "awaiting_input", "-q", *DB, cwd=folder).out == "asks\n"
    shown = perdure("tasks", "show", S, "asks", *DB, cwd=folder)
    assert "awaiting_input" in shown.out
    assert "outbound" in shown.out
    waited = perdure("tasks", "wait", S, "done", *DB, "--json", cwd=folder)
    assert (waited.code, waited.objects[0]["state"]) == (0, "succeeded")
    assert perdure("tasks", "message", S, "asks", "the blue one", "--reply-to", "m", *DB, cwd=folder).code == 0
    [task] = perdure("tasks", "show", S, "asks", *DB, "--json", cwd=folder).objects
    assert (task["state"], task["input_request"]) == ("running", None)
    assert perdure("tasks", "cancel", S, "asks", *DB, cwd=folder).code == 0
    over = perdure("tasks", "wait", S, "asks", *DB, cwd=folder)
    assert (over.code, "canceled" in over.err + over.out) == (1, True)


def test_unknown_or_ended_task_is_refused(folder: Path) -> None:
    assert perdure("tasks", "show", S, "nobody", *DB, cwd=folder).code != 0
    assert perdure("tasks", "list", "nobody", *DB, cwd=folder).code != 0
    late = perdure("tasks", "message", S, "done", "hello?", *DB, cwd=folder)
    assert late.code != 0
    assert "has ended" in late.err
