"""`perdure schedules`, as a user types it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Agent, Runtime
from perdure.models.scripted import ScriptedModel, say
from tests.e2e.command import perdure

pytestmark = pytest.mark.timeout(300)

DB = ("--db", "s.db")


def agent() -> Agent:
    return Agent("a", model=ScriptedModel.by_input({}, default=[say("noted", exact=True)]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with a session, and no worker."""

    async def make() -> None:
        async with Runtime(f"sqlite:///{tmp_path / 's.db'}", agents=[agent()]) as rt:
            await (await rt.session("s", agent="a")).ask("hi")

    asyncio.run(make())
    return tmp_path


def test_a_schedule_is_made_listed_paused_resumed_run_and_ended(folder: Path) -> None:
    when = ("--cron", "0 9 * * 1-5", "--timezone", "Europe/Berlin", "--id", "daily")
    made = perdure("schedules", "create", "s", "Write the report.", *when, *DB, cwd=folder)
    assert made.code == 0, made.err
    assert "09:00" in made.out + made.err
    again = perdure("schedules", "create", "s", "Write the report.", *when, *DB, "--json", cwd=folder)
    assert again.objects[0]["id"] == "daily", "the same again is the same one"
    assert perdure("schedules", "create", "s", "Something else.", *when, *DB, cwd=folder).code != 0
    listed = perdure("schedules", "list", *DB, cwd=folder)
    assert "0 9 * * 1-5 (Europe/Berlin)" in listed.out
    assert "Write the report." in listed.out
    [shown] = perdure("schedules", "show", "daily", *DB, "--json", cwd=folder).objects
    assert (shown["state"], shown["runs"], shown["session"]) == ("active", 0, "s")
    assert str(shown["next"]).count(" 09:00 CE") == 5
    assert perdure("schedules", "pause", "daily", "--by", "ann", *DB, cwd=folder).code == 0
    assert "paused" in perdure("schedules", "show", "daily", *DB, cwd=folder).out
    assert perdure("schedules", "resume", "daily", *DB, cwd=folder).code == 0
    assert perdure("schedules", "run", "daily", *DB, cwd=folder).code == 0

    async def work() -> None:
        async with Runtime(f"sqlite:///{folder / 's.db'}", agents=[agent()]) as rt:
            while not (await rt.schedules.get("daily").info()).runs:  # noqa: ASYNC110 - a worker makes the run
                await asyncio.sleep(0.02)

    asyncio.run(work())
    [shown] = perdure("schedules", "show", "daily", *DB, "--json", cwd=folder).objects
    assert shown["runs"] == 1
    assert perdure("schedules", "delete", "daily", *DB, cwd=folder).code == 0
    assert perdure("schedules", "list", "-q", *DB, cwd=folder).out == ""
    assert perdure("schedules", "list", "--all", "-q", *DB, cwd=folder).out == "daily\n"


def test_invalid_arguments_create_no_schedule(folder: Path) -> None:
    for wrong in (
        ("--cron", "61 * * * *"),
        ("--cron", "0 9 * * *", "--timezone", "Mars/Olympus"),
        ("--at", "tomorrow"),
        ("--cron", "0 9 * * *", "--at", "2030-01-01T00:00Z"),
        (),
        ("--cron", "0 9 * * *", "--overlap", "sometimes"),
    ):
        refused = perdure("schedules", "create", "s", "Say it.", *wrong, *DB, cwd=folder)
        assert refused.code != 0, wrong
        assert "Traceback" not in refused.err
    assert perdure("schedules", "list", "--all", "-q", *DB, cwd=folder).out == ""
    assert perdure("schedules", "show", "nobody", *DB, cwd=folder).code != 0
