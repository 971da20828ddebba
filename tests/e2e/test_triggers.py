"""`perdure triggers`, as a user types it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import ProcessContext, Runtime, process
from perdure.ids import DEFAULT_TENANT, trigger_stream
from perdure.processes.triggers import occurrence_id, reservation
from tests.e2e.command import perdure

MAIL = "mail.received"
DB = ("--db", "s.db")


@process
async def file_mail(ctx: ProcessContext, mail: dict[str, str]) -> str:
    return f"filed {mail['subject']}"


async def work(folder: Path, key: str) -> None:
    """A worker takes in what happened."""
    async with Runtime(f"sqlite:///{folder / 's.db'}", processes=[file_mail]) as rt:
        told = await rt.triggers.emit(MAIL, {"subject": "hello"}, key=key, source="inbox")
        assert told.is_duplicate
        for one in await told.processes(timeout=20):
            await one.result(timeout=20)


async def prepare(folder: Path) -> None:
    """Make two subscriptions, and take the process id that one of them will need."""
    async with Runtime(f"sqlite:///{folder / 's.db'}", processes=[file_mail], worker=False) as rt:
        await rt.triggers.subscribe(MAIL, file_mail, key="file", source="inbox")
        other = await rt.triggers.subscribe(MAIL, file_mail, key="taken", source="inbox")
        occurrence = occurrence_id(trigger_stream(DEFAULT_TENANT, MAIL, "inbox"), "m1")
        await rt.start(file_mail, {"subject": "x"}, id=reservation(occurrence, await other.info()).process_id)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with two subscriptions and no worker."""
    asyncio.run(prepare(tmp_path))
    return tmp_path


def test_emitted_occurrence_is_listed_with_its_processes(folder: Path) -> None:
    said = ("triggers", "emit", MAIL, '{"subject": "hello"}', "--source", "inbox", "--key", "m1", *DB)
    assert "is recorded; key m1" in perdure(*said, cwd=folder).err
    [again] = perdure(*said, "--json", cwd=folder).objects
    assert again["duplicate"] is True
    other = perdure("triggers", "emit", MAIL, "2", "--source", "inbox", "--key", "m1", *DB, cwd=folder)
    assert (other.code != 0, "was used for another occurrence" in other.err) == (True, True)
    [listed] = perdure("triggers", "list", *DB, "--json", cwd=folder).objects
    assert (listed["type"], listed["source"], listed["subscriptions"], listed["occurrences"]) == (MAIL, "inbox", 2, 0)
    asyncio.run(work(folder, "m1"))
    shown = perdure("triggers", "show", MAIL, "--source", "inbox", *DB, cwd=folder)
    assert shown.code == 0, shown.err
    for words in (
        "1 occurrence",
        "enabled   mail.received:file:inbox",
        "started trg_",
        "not started: process_conflict",
    ):
        assert words in shown.out
    told = perdure("triggers", "show", MAIL, "--source", "inbox", *DB, "--json", cwd=folder)
    assert '"failed": null' in told.out.replace('":null', '": null')
    assert '"code": "process_conflict"' in told.out.replace('":"', '": "')
    assert "OCCURRED" in perdure("triggers", "list", *DB, cwd=folder).out
    assert perdure("triggers", "show", "nothing", *DB, cwd=folder).code != 0
    assert perdure("triggers", "emit", MAIL, "{", *DB, cwd=folder).code != 0


def test_a_subscription_is_changed_by_command(folder: Path) -> None:
    name = "mail.received:file:inbox"
    assert perdure("subscriptions", "list", "-q", *DB, cwd=folder).out.split() == [
        name,
        f"{name[:-11]}:taken:inbox",
    ]
    assert "revision 2" in perdure("subscriptions", "disable", name, *DB, cwd=folder).err
    stale = perdure("subscriptions", "delete", name, "--expected-revision", "1", *DB, cwd=folder)
    assert (stale.code != 0, "revision 2" in stale.err) == (True, True)
    assert (
        perdure("subscriptions", "enable", name, "--expected-revision", "2", "--by", "ann", *DB, cwd=folder).code == 0
    )
    assert perdure("subscriptions", "delete", name, *DB, cwd=folder).code == 0
    assert name not in perdure("subscriptions", "list", *DB, cwd=folder).out
    assert "revision 5" in perdure("subscriptions", "restore", name, *DB, cwd=folder).err
    [first, *_] = perdure("subscriptions", "list", "--all", "--json", *DB, cwd=folder).objects
    assert (first["id"], first["state"], first["revision"], first["incarnation"]) == (name, "enabled", 5, 2)
    assert perdure("subscriptions", "enable", "nonsense", *DB, cwd=folder).code != 0
