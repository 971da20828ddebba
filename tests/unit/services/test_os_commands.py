"""Inspection of a run folder after deaths of its processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from perdure.processes.commands import Command, Exited, Gone, NotBegun, StartingCommand
from perdure.services.command_supervisor import put, start_of
from perdure.services.os_commands import RunFolder, host_id, send, this_boot


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "runs" / "c" / "1", "t")
    made.make(Command(argv=("/bin/sh", "-c", f"echo x >> '{tmp_path / 'ran'}'; exit 4"), host="here"))
    return made


def ran(run: RunFolder) -> bool:
    return (run.path.parents[2] / "ran").exists()


def test_command_does_not_start_when_its_start_is_unrecordable(run: RunFolder) -> None:
    (run.path / "started.json").mkdir()  # so it cannot be made
    run.wait(run.spawn())
    claim = json.loads((run.path / "claim.json").read_text())
    while start_of(claim["pid"]) == claim["start"]:
        os.sched_yield()
    assert run.inspect(this_boot()) == NotBegun()
    assert not ran(run)


def test_inspection_before_the_claim_prevents_the_start(run: RunFolder) -> None:
    assert run.inspect(this_boot()) == NotBegun()
    run.wait(run.spawn())
    assert not ran(run)
    assert run.inspect(this_boot()) == NotBegun()


def test_claim_of_a_live_supervisor_holds(run: RunFolder) -> None:
    mine = {"pid": os.getpid(), "start": start_of(os.getpid()), "by": "supervisor"}
    assert put(str(run.path), "claim.json", mine, once=True)
    assert run.inspect(this_boot()) == StartingCommand()
    assert run.inspect("another boot") == NotBegun(), "processes of another boot are dead"


def test_another_token_is_another_folder(run: RunFolder) -> None:
    assert isinstance(RunFolder(run.path, "other").inspect(this_boot()), Gone)


def test_how_it_ended_is_known_in_another_boot_too(run: RunFolder) -> None:
    run.wait(run.spawn())
    while not isinstance(seen := run.inspect(this_boot()), Exited):
        os.sched_yield()
    assert (seen.exit_code, seen.signal, seen.error) == (4, None, "")
    assert run.inspect("another boot") == seen
    assert ran(run)


def test_signal_is_refused_for_another_process_or_boot(run: RunFolder) -> None:
    mine = os.getpid()
    assert send("SIGKILL", mine, start_of(mine) + 1, this_boot()) is False
    assert send("SIGKILL", mine, start_of(mine), "another boot") is False


def test_a_machine_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_HOST", "blue")
    assert host_id() == "blue"


def test_s18_output_on_disk_is_bounded_while_it_is_written(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs" / "c" / "1", "t")
    gate = tmp_path / "gate"
    flood = "head -c 20000000 /dev/zero | tr '\\0' x"
    wait = f"until [ -e '{gate}' ]; do sleep 0.02; done"
    run.make(Command(argv=("/bin/sh", "-c", f"{flood}; {flood} >&2; {wait}"), host="here", keep_bytes=5000))
    run.wait(run.spawn())
    while [size(run.path / name) for name in ("stdout", "stderr")] != [5001, 5001]:
        os.sched_yield()
    gate.touch()
    while not isinstance(seen := run.inspect(this_boot()), Exited):
        os.sched_yield()
    assert seen.exit_code == 0, "the command did not notice"
    assert [size(run.path / name) for name in ("stdout", "stderr")] == [5001, 5001]


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


def test_supervisor_gets_no_variable_that_its_command_does_not_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    run = RunFolder(tmp_path / "runs" / "c" / "1", "t")
    gate = tmp_path / "gate"
    run.make(Command(argv=("/bin/sh", "-c", f"until [ -e '{gate}' ]; do sleep 0.02; done"), host="here"))
    run.wait(run.spawn())
    claim = json.loads((run.path / "claim.json").read_text())
    environment = Path(f"/proc/{claim['pid']}/environ").read_bytes()
    gate.touch()
    assert b"sk-canary" not in environment
    assert b"PATH=" in environment
