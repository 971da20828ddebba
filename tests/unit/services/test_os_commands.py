"""What a look at a run folder finds, whoever died in between."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from perdure.processes.commands import Beginning, Command, Exited, Gone, NotBegun
from perdure.services.command_supervisor import put, start_of
from perdure.services.os_commands import RunFolder, host_id, send, this_boot


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "runs" / "c" / "1", "t")
    made.make(Command(argv=("/bin/sh", "-c", f"echo x >> '{tmp_path / 'ran'}'; exit 4"), host="here"))
    return made


def ran(run: RunFolder) -> bool:
    return (run.path.parents[2] / "ran").exists()


def test_a_command_does_not_begin_if_it_cannot_be_written_that_it_does(run: RunFolder) -> None:
    (run.path / "started.json").mkdir()  # so it cannot be made
    run.wait(run.spawn())
    claim = json.loads((run.path / "claim.json").read_text())
    while start_of(claim["pid"]) == claim["start"]:
        os.sched_yield()
    assert run.look(this_boot()) == NotBegun()
    assert not ran(run)


def test_who_looks_first_decides_that_it_never_begins(run: RunFolder) -> None:
    assert run.look(this_boot()) == NotBegun()
    run.wait(run.spawn())
    assert not ran(run)
    assert run.look(this_boot()) == NotBegun()


def test_while_its_supervisor_lives_nobody_else_decides(run: RunFolder) -> None:
    mine = {"pid": os.getpid(), "start": start_of(os.getpid()), "by": "supervisor"}
    assert put(str(run.path), "claim.json", mine, once=True)
    assert run.look(this_boot()) == Beginning()
    assert run.look("another boot") == NotBegun(), "nobody of another boot lives"


def test_another_token_is_another_folder(run: RunFolder) -> None:
    assert isinstance(RunFolder(run.path, "other").look(this_boot()), Gone)


def test_how_it_ended_is_known_in_another_boot_too(run: RunFolder) -> None:
    run.wait(run.spawn())
    while not isinstance(seen := run.look(this_boot()), Exited):
        os.sched_yield()
    assert (seen.exit_code, seen.signal, seen.error) == (4, None, "")
    assert run.look("another boot") == seen
    assert ran(run)


def test_nobody_is_signalled_in_the_name_of_another(run: RunFolder) -> None:
    mine = os.getpid()
    assert send("SIGKILL", mine, start_of(mine) + 1, this_boot()) is False
    assert send("SIGKILL", mine, start_of(mine), "another boot") is False


def test_a_machine_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_HOST", "blue")
    assert host_id() == "blue"
