"""Modes of files and folders, with umasks that would open them to other users."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Agent, Runtime
from perdure.cli.demo.ledger import Email, Mailbox
from perdure.errors import Code, Error
from perdure.ids import WorkerId
from perdure.models.scripted import ScriptedModel, say
from perdure.store.locks import WorkerLocks
from perdure.store.postgres.store import PostgresStore
from perdure.store.private import make_folder, own_folder, write_file
from perdure.store.sqlite import SqliteStore
from tests.unit.store.parties import RealClock, entry, opened, owned, plan

ANN = WorkerId("ann")


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


@pytest.mark.usefixtures("umask")
async def test_s7_t_sec_03_every_file_and_folder_of_a_store_is_private(tmp_path: Path) -> None:
    agent = Agent("a", model=ScriptedModel(say("y" * 9000)))
    async with Runtime(f"sqlite:///{tmp_path}/new/deep/app.db", agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        await (await session.send("go")).result(timeout=20)
        command = await rt.start_command(["/bin/sh", "-c", "echo hi; sleep 60"], id="c")
        while not await command.output():  # noqa: ASYNC110 - the output is in another process
            await asyncio.sleep(0.01)
        found = modes(tmp_path / "new")
        await command.cancel()
    assert {
        "app.db",
        "app.db-wal",
        "app.db-shm",
        "app.db-live",
        "app.db-live-wal",
        "app.db-workers",
        "app.db-commands",
        "stdout",
    } <= set(found)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}


@pytest.mark.usefixtures("umask")
def test_s7_exports_and_the_ledger_of_the_demo_are_private(tmp_path: Path) -> None:
    write_file(tmp_path / "export", b"text")
    Mailbox(tmp_path / "ledger").send(Email("s", "ann", "hi", "k"))
    assert modes(tmp_path) == {"export": 0o600, "ledger": 0o600}


async def test_s7_t_sec_03_doctor_warns_about_a_readable_file(tmp_path: Path) -> None:
    store = await opened(tmp_path / "s.db", ANN)
    claim = await owned(store, "one", ANN)
    await store.append(plan(claim, ANN, 1, entry("x")))
    assert [(one.status, one.what) for one in await store.check()][-1] == ("ok", "permissions")
    (tmp_path / "s.db-wal").chmod(0o644)
    warning = (await store.check())[-1]
    await store.close()
    assert (warning.status, warning.what) == ("warn", "permissions")
    assert "s.db-wal (0644)" in warning.detail


async def test_an_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "s.db").touch(0o640)
    (tmp_path / "s.db").chmod(0o640)
    store = SqliteStore(tmp_path / "s.db", RealClock())
    await store.open()
    await store.close()
    assert modes(tmp_path)["s.db"] == 0o640


# --- folders in a place that other users can write


def test_s7_folder_of_locks_is_created_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        own_folder(tmp_path / "perdure-1")
    finally:
        os.umask(before)
    assert modes(tmp_path) == {"perdure-1": 0o700}


def test_s7_t_sec_03_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "perdure-1").mkdir()
    (tmp_path / "perdure-1").chmod(0o777)
    with pytest.raises(Error) as caught:
        own_folder(tmp_path / "perdure-1")
    assert caught.value.code is Code.FOLDER_UNSAFE
    assert "0777" in (caught.value.because or "")


def test_s7_t_sec_03_link_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path / "mine")
    (tmp_path / "perdure-1").symlink_to(tmp_path / "mine")
    with pytest.raises(Error) as caught:
        own_folder(tmp_path / "perdure-1")
    assert caught.value.code is Code.FOLDER_UNSAFE


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_s7_t_sec_03_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "perdure-1").mkdir(0o700)
    os.chown(tmp_path / "perdure-1", 65534, 65534)
    with pytest.raises(Error) as caught:
        own_folder(tmp_path / "perdure-1")
    assert caught.value.code is Code.FOLDER_UNSAFE


async def test_s7_postgres_store_refuses_an_unsafe_lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / f"perdure-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(Error) as caught:
        await PostgresStore("postgresql://ann@127.0.0.1:1/none", RealClock()).open()
    assert caught.value.code is Code.FOLDER_UNSAFE


def test_folder_that_others_can_only_read_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "perdure-1").mkdir()
    (tmp_path / "perdure-1").chmod(0o755)
    own_folder(tmp_path / "perdure-1")
    assert modes(tmp_path) == {"perdure-1": 0o700}


@pytest.mark.usefixtures("umask")
def test_lock_files_are_private(tmp_path: Path) -> None:
    locks = WorkerLocks(tmp_path / "locks")
    assert locks.hold(ANN)
    assert modes(tmp_path) == {"locks": 0o700, "ann.lock": 0o600}
    locks.release(ANN)
