"""Files under crashes and races: a write is atomic and happens once; compare-and-write loses no update."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Literal

import pytest

from perdure import Agent, InitialFile, Runtime
from perdure.codec import decode
from perdure.ids import DEFAULT_TENANT, SessionId, files_stream
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.runtime.stores import store_for
from perdure.services.files.protocol import SessionFiles
from perdure.services.files.stored import StoredFiles
from perdure.services.files.tree import FilesChanged
from perdure.store.protocol import Store
from perdure.testing import CrashReport, World, every_boundary
from perdure.testing.laws.bench import open_stream
from perdure.tools.files import file_tools
from perdure.vocab.messages import ToolResultPart
from tests.crash.harness import processes, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

ONE = "sha256:2c8b08da5ce60398e1f19af0e5dccc744df274b826abe585eaba68c525434806"
"""printf 'one\\n' | sha256sum"""


def app(store: Store, world: World) -> Runtime:
    model = ScriptedModel(
        call("write_file", path="/notes/a.txt", content="one\n"),
        call("edit_file", path="/notes/a.txt", expected_hash=ONE, edits=[{"old_text": "one", "new_text": "two"}]),
        call("delete_file", path="/todo.txt"),
        say("done"),
    )
    return Runtime(
        store, agents=[Agent("a", model=model, tools=file_tools(), initial_files=[InitialFile("/todo.txt", "to do")])]
    )  # fmt: skip


async def script(rt: Runtime) -> None:
    session = await rt.session("s", agent="a")
    await session.ask("go", key="k")
    found = await session.files.read_file("/notes/a.txt")
    assert found is not None
    assert found.content == "two\n"
    assert [info.name for info in await session.files.list_directory()] == ["notes"]
    rows = await core_of(rt).store.read(files_stream(DEFAULT_TENANT, SessionId("s")))
    changes = [decode(row.data, FilesChanged) for row in rows]
    said = [(change.made, [put.path for put in change.put], change.removed) for change in changes]
    assert said == [
        ((), ["/todo.txt"], ()),
        (("/notes",), ["/notes/a.txt"], ()),
        ((), ["/notes/a.txt"], ()),
        ((), [], ("/todo.txt",)),
    ], "every change is there once"


def told_the_truth(crash: CrashReport) -> None:
    parts = [part for message in crash.history("s") for part in message.parts if isinstance(part, ToolResultPart)]
    written, edited, deleted = (part.output for part in parts)
    assert written == {"path": "/workspace/notes/a.txt", "size_bytes": 4, "content_hash": ONE}
    assert edited["content_hash"] == "sha256:27dd8ed44a83ff94d557f9fd0412ed5a8cbca69ea04922d88c01184a07300a5a"
    assert deleted == {"deleted": True}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["memory", "sqlite"])
def test_files_are_changed_once_wherever_the_process_dies(mode: Literal["memory", "sqlite"]) -> None:
    crashes = every_boundary(app, script, mode=mode, check=told_the_truth)
    amended = [crash.boundary.side for crash in crashes if crash.boundary.what == "amend"]
    assert sorted(amended) == ["after"] * 3 + ["before"] * 3


SIDES = ("before", "after")


def writing(store: Store, world: World) -> Runtime:
    model = ScriptedModel(call("write_file", path="/a.txt", content="one\n"), say("done"))
    return Runtime(store, agents=[Agent("a", model=model, tools=file_tools())])


async def written(rt: Runtime) -> None:
    session = await rt.session("s", agent="a")
    await session.ask("go", key="k")
    found = await session.files.read_file("/a.txt")
    assert found is not None
    assert found.content == "one\n"
    assert len(await core_of(rt).store.read(files_stream(DEFAULT_TENANT, SessionId("s")))) == 2, (
        "opened, and written once"
    )


@pytest.mark.slow
def test_a_file_is_written_once_wherever_the_process_is_killed() -> None:
    every_boundary(writing, written, mode="sqlite")
    every_boundary(
        writing, written, mode="kill", at=[f"{side} {what}" for what in ("create", "amend") for side in SIDES]
    )


# --- races between processes


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that processes share."""
    return f"sqlite:///{tmp_path / 's.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


async def add(url: str, times: int) -> None:
    store = store_for(url, SystemClock(), lease_ms=10_000)
    await store.open()
    files = SessionFiles(StoredFiles(store, SystemClock()), SessionId("one"))
    for _ in range(times):
        while True:
            seen = await files.read_file("/count")
            assert seen is not None
            text = seen.content or ""
            if await files.write_file_if_content_matches("/count", text, "text", str(int(text) + 1), "text"):
                break
    await store.close()


def racer(url: str, times: int) -> None:
    asyncio.run(add(url, times))


async def begun(url: str, content: str) -> Store:
    store = store_for(url, SystemClock(), lease_ms=10_000)
    await store.open()
    await open_stream(store, "one")
    await StoredFiles(store, SystemClock()).write_file(SessionId("one"), "/count", content)
    return store


async def test_no_update_of_racing_processes_is_lost(url: str) -> None:
    store = await begun(url, "0")
    racers = [processes.Process(target=racer, args=(url, 15)) for _ in range(4)]
    for one in racers:
        one.start()
    await asyncio.to_thread(lambda: [one.join(120) for one in racers])
    assert [one.exitcode for one in racers] == [0, 0, 0, 0]
    found = await StoredFiles(store, SystemClock()).read_file(SessionId("one"), "/count")
    assert found is not None
    assert found.content == "60"
    await store.close()


def scribbler(url: str, told: str) -> None:
    """Write two texts in turns, as fast as it goes, and say when it has begun."""

    async def scribble() -> None:
        store = store_for(url, SystemClock(), lease_ms=10_000)
        await store.open()
        files = SessionFiles(StoredFiles(store, SystemClock()), SessionId("one"))
        while True:
            for letter in "ab":
                await files.write_file("/d/page", letter * 200_000)
                Path(told).write_text("begun")  # noqa: ASYNC240 - nothing else runs here

    asyncio.run(scribble())


async def test_a_writer_that_is_killed_leaves_a_whole_file(url: str, tmp_path: Path) -> None:
    store = await begun(url, "0")
    files = StoredFiles(store, SystemClock())
    for life in range(3):
        told = tmp_path / f"told{life}"
        writer = processes.Process(target=scribbler, args=(url, str(told)))
        writer.start()
        await asyncio.to_thread(wait_until, told.exists)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        await asyncio.to_thread(writer.join, 60)
        assert writer.exitcode == -signal.SIGKILL
        found = await files.read_file(SessionId("one"), "/d/page")
        assert found is not None
        assert found.content in ("a" * 200_000, "b" * 200_000)
        assert (await files.write_file(SessionId("one"), "/d/page", "whole")).content == "whole"
    await store.close()
