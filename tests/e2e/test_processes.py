"""`perdure ps` and `perdure processes`, as a user types them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from perdure import Agent, ProcessContext, Runtime, RuntimeOptions, process
from perdure.models.scripted import ScriptedModel, say
from tests.e2e.command import perdure


@process
async def waits(ctx: ProcessContext) -> str:
    await ctx.step("begin", lambda: None)
    return str(await ctx.wait_for_signal("go", timeout="2h"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with a process that waits, and no worker."""

    async def start() -> None:
        async with Runtime(
            f"sqlite:///{tmp_path / 's.db'}", processes=[waits], options=RuntimeOptions(idle_timeout_s=0.0)
        ) as rt:
            handle = await rt.start(waits, id="w 1")
            while not (await handle.info()).waiting:  # noqa: ASYNC110 - it is another task that gets there
                await asyncio.sleep(0.01)

    asyncio.run(start())
    return tmp_path


def test_a_process_is_listed_shown_followed_and_spoken_to(folder: Path) -> None:
    db = ("--db", "s.db")
    listed = perdure("ps", *db, cwd=folder)
    assert listed.code == 0, listed.err
    assert "w 1" in listed.out
    assert "signal:go:1" in listed.out
    [shown] = perdure("processes", "show", "w 1", *db, "--json", cwd=folder).objects
    assert (shown["status"], shown["definition"], shown["output"]) == ("waiting", "python:waits", None)
    assert perdure("processes", "signal", "w 1", "go", '{"n": 1}', "--key", "k", *db, cwd=folder).code == 0
    assert perdure("processes", "signal", "w 1", "go", '{"n": 2}', "--key", "k", *db, cwd=folder).code != 0
    assert perdure("processes", "signal", "w 1", "go", "{", *db, cwd=folder).code != 0
    assert perdure("processes", "cancel", "w 1", "--reason", "enough", *db, cwd=folder).code == 0
    logged = perdure("processes", "logs", "w 1", *db, cwd=folder)
    assert logged.code == 0, logged.err
    assert re.search(r"until (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d$", logged.out, re.M)
    for word in ("registered", "first started", "begin", "signal.go", "process.cancel_requested"):
        assert word in logged.out
    assert perdure("processes", "list", "--all", "-q", *db, cwd=folder).out == "w 1\n"
    assert perdure("processes", "show", "nobody", *db, cwd=folder).code != 0


def test_a_process_is_explained_given_up_removed_and_seen_from_sessions(tmp_path: Path) -> None:
    async def start() -> None:
        model = ScriptedModel(say("hi"), say("hi"))
        url, tuning = f"sqlite:///{tmp_path / 's.db'}", RuntimeOptions(idle_timeout_s=0.0)
        async with Runtime(url, agents=[Agent("a", model=model)], processes=[waits], options=tuning) as rt:
            for name in ("one", "two"):
                await (await rt.session(name, agent="a")).ask("hello")
            handle = await rt.start(waits, id="w")
            while not (await handle.info()).waiting:  # noqa: ASYNC110 - it is another task that gets there
                await asyncio.sleep(0.01)

    async def work() -> None:
        async with Runtime(f"sqlite:///{tmp_path / 's.db'}", processes=[waits]) as rt:
            await rt.get_process("w").wait(30)

    asyncio.run(start())
    db = ("--db", "s.db")
    [why] = perdure("why", "w", *db, "--json", cwd=tmp_path).objects
    assert (why["status"], why["because"], why["code"]) == ("waiting", "waits for signal:go:1", None)
    assert "'until': '2" in str(why["waiting"])
    told = perdure("why", "w", *db, cwd=tmp_path).out
    assert re.search(r"^  waits for  signal:go:1, for .+ now, for 1 h 59 m more$", told, re.M), told
    assert re.search(r"^  hint       `perdure processes signal w go --db s\.db`$", told, re.M), told
    for name in ("one", "two"):
        assert perdure("processes", "share", "w", name, *db, cwd=tmp_path).code == 0
    gone = perdure("processes", "unshare", "w", "one", *db, cwd=tmp_path)
    assert gone.out == "two\n"
    assert perdure("processes", "share", "w", "nobody", *db, cwd=tmp_path).code != 0
    [edge] = perdure("processes", "share", "w", "two", *db, "--json", cwd=tmp_path).objects
    assert edge == {"process": "w", "session": "two", "frame": None}
    [shown] = perdure("processes", "show", "w", *db, "--json", cwd=tmp_path).objects
    assert shown["visible_to"] == ["two"]
    early = perdure("processes", "delete", "w", *db, cwd=tmp_path)
    assert early.code != 0
    assert "has not ended" in early.err
    assert perdure("processes", "abandon", "w", "--reason", "no longer", "--by", "maria", *db, cwd=tmp_path).code == 0
    asyncio.run(work())
    [shown] = perdure("processes", "show", "w", *db, "--json", cwd=tmp_path).objects
    assert shown["output"] == {"status": "abandoned", "reason": "no longer", "by": "maria"}
    assert perdure("processes", "abandon", "w", *db, cwd=tmp_path).code != 0
    none = perdure("processes", "list", *db, cwd=tmp_path).err
    assert none == "0 processes. Ended ones: perdure processes list --all --db s.db\n"
    assert perdure("processes", "list", "--all", *db, cwd=tmp_path).err == "1 process.\n"
    assert perdure("processes", "delete", "w", *db, cwd=tmp_path).code == 0
    for args in (("delete", "w"), ("share", "w", "two"), ("unshare", "w", "two"), ("abandon", "w")):
        assert "unknown process" in perdure("processes", *args, *db, cwd=tmp_path).err
    assert perdure("why", "w", *db, cwd=tmp_path).code == 3


def test_a_command_is_listed_shown_and_read_like_any_process(tmp_path: Path) -> None:
    async def start() -> None:
        async with Runtime(f"sqlite:///{tmp_path / 's.db'}", options=RuntimeOptions(host="here")) as rt:
            await (await rt.start_command(["/bin/sh", "-c", "echo one; echo two >&2; exit 3"], id="build")).wait(30)
            await rt.start_command(["/bin/sh", "-c", "exec sleep 600"], id="sleeps")
            while not await _pid(rt):  # noqa: ASYNC110 - it is another task that gets there
                await asyncio.sleep(0.01)

    async def _pid(rt: Runtime) -> bool:
        return any(b"command.spawned" in row.data for row in await rt.get_process("sleeps").journal())

    asyncio.run(start())
    db = ("--db", "s.db")
    listed = perdure("ps", *db, cwd=tmp_path)
    assert "$ /bin/sh -c exec sleep 600" in listed.out, listed.err
    assert "exit on here" in listed.out
    assert "build" not in listed.out
    [shown] = perdure("processes", "show", "build", *db, "--json", cwd=tmp_path).objects
    assert (shown["status"], shown["host"], shown["attempts"], shown["cut"]) == ("failed", "here", 1, [])
    assert shown["exit"] == {"attempt": 1, "exit_code": 3}
    assert shown["printed_bytes"] == {"stdout": 4, "stderr": 4}
    logged = perdure("processes", "logs", "build", "-f", *db, cwd=tmp_path)
    assert logged.code == 0, logged.err
    for text in ("command.spawning", "command.spawned", "stdout: one", "stderr: two", "process.failed: command_failed"):
        assert text in logged.out
    assert perdure("processes", "cancel", "sleeps", *db, cwd=tmp_path).code == 0

    async def finish() -> None:
        async with Runtime(f"sqlite:///{tmp_path / 's.db'}", options=RuntimeOptions(host="here")) as rt:
            await rt.get_process("sleeps").wait(30)

    asyncio.run(finish())
    [shown] = perdure("processes", "show", "sleeps", *db, "--json", cwd=tmp_path).objects
    assert shown["status"] == "cancelled"
