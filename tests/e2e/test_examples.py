"""The examples are run as their first lines say, offline, and show what those lines promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.command import environment, perdure

FOLDER = Path(__file__).parents[2] / "examples"
PROMISED = {
    "01_hello.py": ("1  You said: Hello there.", "answered once: True", "after a restart the session has 4 messages"),
    "02_tools_and_keys.py": (
        "probe: the bank is asked by key, and has it",
        "charges: 2 for 2 bookings",
        "all different",
    ),
    "03_approval.py": (
        "1  approval of tool refund: {'order': 'ord_7', 'cents': 9000}, 0 paid so far",
        "2  approve by ana, with {'order': 'ord_7', 'cents': 4000}",
        "3  It is on its way. paid: [4000]",
        "4  already decided by ana: app",
    ),
    "04_client_tool.py": (
        "1  the session waits for the client's result of tool where_am_i",
        "2  the result of where_am_i does not match its schema",
        "3  Then take a coat.",
    ),
    "05_ask_user.py": ("2  size: choose one of 'S', 'M', 'L'", "3  Ordered. Answered by ann: True"),
    "06_completion_key.py": (
        "1  nothing waits under this key",
        "2  Accepted()",
        "3  AlreadyResolved(resolution=Ok(value={'parcel': 7}))",
        "4  It is on its way.",
    ),
    "07_steer.py": ("One of the three leaves in the morning.", "one turn answered both: True", "to the model: 2"),
    "08_interrupt.py": (
        "the first turn: stopped cancelled",
        "the model was told: outcome_unknown",
        "cancel, afterwards: completion_won",
    ),
    "09_secret.py": (
        "1  Done.",
        "2  synchronised with [secret], 10 characters",
        "3  in the files of the store: False",
    ),
    "10_files.py": (
        "the guide: 1|Write plans to /workspace/trip.",
        "an edit of what it had not read: file_stale",
        "found: ['Fly to Porto', 'Book a room']",
        "refused: file_readonly",
    ),
    "11_schedule.py": (
        "1  {'09:00'} in Berlin",
        "['07:00', '08:00'] in UTC",
        "2  You said: Write the report.",
        "3  paused: ()",
        "4  1 run, ended: cancelled",
    ),
    "12_process.py": (
        "1  perdure has 7 letters, says ann",
        "2  perdure has 7 letters, says ann",
        "report-1/count:1",
    ),
    "13_background.py": ("1  It runs.", "2  indexed 12 books", "3  Background run completed."),
    "14_subagents.py": (
        "It is out.",
        "writer: started by the tool",
        "model calls, the writer's included: 3",
    ),
    "15_trigger.py": (
        "1  ['receipt for order 7', 'recounted shelf B']",
        "2  the same again: True ['order.paid:receipts', 'order.paid:stock']",
        "3  Paid.",
        "4  ['python:receipt', 'python:receipt', 'python:recount']",
    ),
    "16_pause.py": (
        "1  paused: True",
        "2  paid [4200], 1 input waits, 1 request to the model",
        "3  Paid. There is none.",
    ),
    "17_session_grant.py": (
        "2  Order 2 is refunded. 0 questions wait",
        "3  refund is allowed by ana",
        "4  asked again: {'order': 3}, then denied",
    ),
    "18_doubt_ask.py": (
        "1  doubt: a person to settle the outcome of tool wire",
        "2  original_call_may_still_run",
        "3  The money is there.",
        "4  the model was told {'receipt': 7} and wired 1 time",
    ),
    "19_queue.py": (
        "1  3 wait; waiting for tool search; 3 inputs wait behind this turn",
        "2  cancelled ['cancelled', 'cancelled']",
        "3  Found it. finished",
        "4  completed",
    ),
    "20_command.py": (
        "1  compiling",
        "2  0 ['compiling', 'linked']",
        "3  spawned 1 time",
        "4  ProcessWasCancelled",
    ),
    "21_wait.py": (
        "1  event 'reviewed' of tool publish",
        "3  AlreadyResolved(resolution=Ok(value='fine'))",
        "4  It is out. rendered 1 time",
    ),
    "23_mcp.py": (
        "1  mcp_library__find: pure",
        "1  mcp_library__discard: once",
        "2  approval of tool mcp_library__discard: {'title': 'Ulysses'}",
        "3  Gone.",
    ),
    "22_code_mode.py": (
        "1  approval of tool pay: {'id': 2, 'cents': 75000}, 1 paid so far",
        "2  All three are paid. [900, 75000, 1200]",
        "'printed': '3 paid\\n'",
    ),
}


def test_every_example_is_listed_here() -> None:
    assert sorted(path.name for path in FOLDER.glob("*.py")) == sorted(PROMISED)


@pytest.mark.parametrize("name", PROMISED)
def test_an_example_is_short(name: str) -> None:
    assert len((FOLDER / name).read_text().splitlines()) < 60


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMISED)
def test_an_example_shows_what_it_promises(name: str, tmp_path: Path) -> None:
    head = (FOLDER / name).read_text().split('"""')[1]
    assert f"python examples/{name}" in head
    assert "Shows:" in head
    assert "See:" in head
    ran = subprocess.run(
        [sys.executable, FOLDER / name], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    for text in PROMISED[name]:
        assert text in ran.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_example_is_a_target(tmp_path: Path) -> None:
    ran = perdure("run", "01_hello:agent", "what time is it?", "--db", str(tmp_path / "s.db"), cwd=FOLDER)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("You said: what time is it?")
