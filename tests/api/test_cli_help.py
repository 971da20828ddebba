"""The help of every command is frozen: a change to it is a decision. PERDURE_UPDATE_SNAPSHOTS=1 writes it anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.cli.app import run_app

FOLDER = Path(__file__).parent / "cli_help"
COMMANDS = (
    "",
    "approvals",
    "approvals approve",
    "approvals deny",
    "approvals list",
    "approvals settle",
    "approvals show",
    "approvals watch",
    "audit",
    "audit list",
    "db",
    "db check",
    "db migrate",
    "db status",
    "demo",
    "doctor",
    "grants",
    "grants list",
    "grants revoke",
    "journal",
    "journal show",
    "journal verify",
    "mcp",
    "mcp list",
    "mcp serve",
    "models",
    "models list",
    "models test",
    "processes",
    "processes abandon",
    "processes cancel",
    "processes delete",
    "processes list",
    "processes logs",
    "processes share",
    "processes show",
    "processes signal",
    "processes unshare",
    "ps",
    "resolve",
    "run",
    "schedules",
    "schedules create",
    "schedules delete",
    "schedules list",
    "schedules pause",
    "schedules resume",
    "schedules run",
    "schedules show",
    "sessions",
    "sessions answer",
    "sessions cancel",
    "sessions export",
    "sessions import",
    "sessions list",
    "sessions pause",
    "sessions post-result",
    "sessions resume",
    "sessions retry",
    "sessions send",
    "sessions show",
    "sessions watch",
    "subscriptions",
    "subscriptions delete",
    "subscriptions disable",
    "subscriptions enable",
    "subscriptions list",
    "subscriptions restore",
    "tasks",
    "tasks cancel",
    "tasks list",
    "tasks message",
    "tasks show",
    "tasks wait",
    "triggers",
    "triggers emit",
    "triggers list",
    "triggers show",
    "usage",
    "version",
    "why",
    "worker",
    "workers",
    "workers list",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_as_it_was(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run_app([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    file = FOLDER / f"{'-'.join(['perdure', *command.split()])}.txt"
    if os.environ.get("PERDURE_UPDATE_SNAPSHOTS"):
        file.write_text(shown)
    assert shown == file.read_text()
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "!" not in shown


def test_no_snapshot_is_left_of_a_command_that_is_gone() -> None:
    names = {"-".join(["perdure", *command.split()]) for command in COMMANDS}
    assert {file.stem for file in FOLDER.iterdir()} == names
