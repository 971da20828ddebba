"""Every command on a real store, as people and programs see it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest

from perdure.cli.demo.worker import DIE_IN
from perdure.cli.exits import EXITS
from perdure.errors import Code
from tests.e2e.command import COMMAND, Ran, environment, perdure

AGENTS = """
import asyncio
from perdure import Agent, Runtime, ToolError, tool

@tool(effect="pure")
async def search_flights(city: str) -> list[int]:
    "Search."
    await asyncio.sleep(SECONDS)
    return [1]

@tool
def charge_card(amount_cents: int, description: str) -> str:
    "Charge."
    raise ToolError("declined", code="card_declined")

echo = Agent("echo", model="sim:echo")
slow = Agent("slow", model="sim:travel", tools=[search_flights])
poor = Agent("poor", model="sim:travel", tools=[charge_card])
both = [echo, slow]
nothing = [1, 2]
app = Runtime("sqlite:///app.db", agents=[echo])
"""


def worker(folder: Path, session: str, env: dict[str, str]) -> int:
    """Run the demo's worker, with an approver for its e-mail."""
    args = [sys.executable, "-P", "-m", "perdure.cli.demo.worker", "demo.db", "ledger.csv", "outbox.csv", session]
    at_work = subprocess.Popen(args, cwd=folder, env=environment(env))
    while at_work.poll() is None:
        listed = look(folder, "approvals", "list", "--json")
        for asked in listed.objects if listed.code == 0 else []:
            look(folder, "approvals", "approve", str(asked["id"]), "--by", "ana")
        time.sleep(0.1)
    return at_work.returncode


@pytest.fixture(scope="module")
def booked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three sessions: one undisturbed, one recovered from a crash, one interrupted."""
    folder = tmp_path_factory.mktemp("booked")
    assert worker(folder, "trip-1", {}) == 0
    assert worker(folder, "trip-2", {DIE_IN: "post-charge"}) == -signal.SIGKILL
    assert worker(folder, "trip-2", {}) == 0
    assert worker(folder, "late-1", {DIE_IN: "post-charge"}) == -signal.SIGKILL
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agents.py").write_text(AGENTS.replace("SECONDS", "0.1"))
    return tmp_path


def look(booked: Path, *args: str, env: dict[str, str] | None = None) -> Ran:
    return perdure(*args, "--db", "demo.db", cwd=booked, env=env)


# --- sessions


def test_sessions_are_listed_newest_first(booked: Path) -> None:
    ran = look(booked, "sessions", "list")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].split() == ["ID", "AGENT", "STATUS", "TURNS", "LAST", "TOKENS", "WAITING", "FOR"]
    assert [line.split()[0] for line in lines[1:]] == ["late-1", "trip-2", "trip-1"]
    assert "● queued" in lines[1]
    assert lines[1].endswith("tool charge_card")
    assert " -  tool charge_card" in lines[1], "the tokens of an open first turn are not known yet"
    assert ran.err == "3 shown, newest first.\n"


def test_a_list_says_how_to_get_more(booked: Path) -> None:
    first = look(booked, "sessions", "list", "--limit", "2")
    cursor = re.search(r"more: --after (\S+)", first.err)
    assert cursor
    rest = look(booked, "sessions", "list", "--after", cursor.group(1), "-q")
    assert (rest.out, rest.err) == ("trip-1\n", "")


def test_a_list_can_be_narrowed(booked: Path) -> None:
    assert look(booked, "sessions", "list", "-q", "--status", "queued,running").out == "late-1\n"
    assert look(booked, "sessions", "list", "-q", "--agent", "nobody").out == ""
    assert look(booked, "sessions", "list", "--agent", "nobody").err == "No matching sessions.\n"
    assert look(booked, "sessions", "list", "--status", "asleep").code == 2


def test_a_session_is_shown_with_a_timeline(booked: Path) -> None:
    ran = look(booked, "sessions", "show", "trip-2")
    assert ran.code == 0
    assert re.match(r"trip-2  travel  idle  1 turn  .* active  \d+ tok\n", ran.out)
    assert re.search(r"tool charge_card +░*█+░* .*in doubt \(worker died\)", ran.out)
    assert re.search(r"probe charge_card +░*█+░* .*happened", ran.out)
    (shown,) = look(booked, "sessions", "show", "trip-2", "--json").objects
    assert shown["status"] == "idle"
    (turn,) = cast("list[dict[str, object]]", shown["turns"])
    steps = cast("list[dict[str, object]]", turn["steps"])
    assert [(step["kind"], step["name"], step["result"]) for step in steps] == [
        ("model", "sim:travel", "ok, 1 call"),
        ("tool", "search_flights", "ok"),
        ("model", "sim:travel", "ok, 1 call"),
        ("tool", "charge_card", "in doubt (worker died)"),
        ("probe", "charge_card", "happened"),
        ("model", "sim:travel", "ok, 1 call"),
        ("approval", "send_email", "approved by ana"),
        ("tool", "send_email", "ok"),
        ("model", "sim:travel", "ok"),
    ]


def test_an_unfinished_step_is_under_way(booked: Path) -> None:
    assert re.search(r"tool charge_card +░*█+ +running", look(booked, "sessions", "show", "late-1").out)


def test_watching_goes_on_from_a_cursor(booked: Path) -> None:
    events = look(booked, "sessions", "watch", "trip-1", "--no-follow", "--json").objects
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert all(event["type"] == "fact" for event in events)
    cursor = str(events[-3]["cursor"])
    rest = look(booked, "sessions", "watch", "trip-1", "--no-follow", "--json", "--after", cursor).objects
    assert rest == events[-2:]
    shown = look(booked, "sessions", "watch", "trip-1", "--no-follow", "--after", cursor)
    assert len(re.findall(r"^\d\d:\d\d:\d\d  #", shown.out, re.M)) == 2
    done = look(booked, "sessions", "watch", "trip-1", "--no-follow", "--after", str(events[-1]["cursor"]))
    assert (done.code, done.out) == (0, "")


def test_a_watcher_sees_what_another_process_does_and_may_leave(folder: Path) -> None:
    assert perdure("run", "agents:echo", "one", "--session", "s", "--db", "app.db", cwd=folder).code == 0
    args = [*COMMAND, "sessions", "watch", "s", "--db", "app.db"]
    watch = subprocess.Popen(args, cwd=folder, env=environment(), text=True, stdout=subprocess.PIPE)
    assert watch.stdout
    assert any("finished" in line for line in watch.stdout)
    assert perdure("run", "agents:echo", "two", "--session", "s", "--db", "app.db", cwd=folder).code == 0
    assert any("finished" in line for line in watch.stdout)
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=20)
    assert watch.returncode == 130


# --- journal


def test_the_journal_tells_the_story_of_a_crash(booked: Path) -> None:
    ran = look(booked, "journal", "show", "trip-2")
    assert ran.code == 0
    header, *rows = ran.out.splitlines()
    assert header.split() == ["SEQ", "AT", "KIND", "NAME", "ATTEMPT", "RESULT", "MS", "TOKENS"]
    story = [re.sub(r"^ *\d+  \d\d:\d\d:\d\d  ", "", row) for row in rows]
    words = [re.sub(r" +", " ", re.sub(r"( +(\d+|-)){2}$", "", row)) for row in story]
    assert words == [
        "session travel - opened",
        'input - - "Book me a flight to Lisbon, 2 nights."',
        "turn start - turn 1",
        "model sim:travel 1 called",
        "model sim:travel 1 ok, 1 call",
        "tool search_flights 1 ok",
        "model sim:travel 1 called",
        "model sim:travel 1 ok, 1 call",
        "tool charge_card 1 intent saved",
        "tool charge_card 1 in doubt (worker died)",
        "probe charge_card 1 happened",
        "model sim:travel 1 called",
        "model sim:travel 1 ok, 1 call",
        "approval send_email 1 waiting for a person",
        "approval send_email 1 approved by ana",
        "tool send_email 1 intent saved",
        "tool send_email 1 ok",
        "model sim:travel 1 called",
        "model sim:travel 1 ok",
        "turn end - finished",
    ]


def test_the_journal_comes_in_pages_and_as_json(booked: Path) -> None:
    first = look(booked, "journal", "show", "trip-1", "--limit", "5")
    assert first.err.endswith("more: --after 5\n")
    rest = look(booked, "journal", "show", "trip-1", "--after", "5", "--json").objects
    assert [row["seq"] for row in rest] == list(range(6, 6 + len(rest)))
    assert {row["type"] for row in rest} == {"record"}
    assert set(rest[0]) >= {"seq", "at", "kind", "name", "attempt", "result", "ms", "tokens", "session", "v"}


def test_one_record_is_shown_in_full(booked: Path) -> None:
    shown = look(booked, "journal", "show", "trip-1", "1")
    assert shown.out.startswith("#1  session travel  opened\n")
    assert json.loads(shown.out[shown.out.index("{") :]) == {"type": "session_opened", "agent": "travel"}
    (record,) = look(booked, "journal", "show", "trip-1", "1", "--json").objects
    assert record["record"] == {"type": "session_opened", "agent": "travel"}


@pytest.mark.parametrize("session", ["trip-1", "trip-2", "late-1"])
def test_a_sound_log_verifies(session: str, booked: Path) -> None:
    ran = look(booked, "journal", "verify", session)
    assert (ran.code, ran.err) == (0, "")
    assert re.match(
        rf"OK  {session}  \d+ records, 1 turn, \d effects, no snapshot yet, digest [0-9a-f]{{32}}\n", ran.out
    )


TAMPERED = {
    "a record is missing": ("DELETE FROM log WHERE seq = 6 AND stream = :stream", 6),
    "the end is missing": ("DELETE FROM log WHERE seq = 20 AND stream = :stream", 20),
    "an effect is answered twice": (
        "UPDATE log SET data = (SELECT data FROM log WHERE seq = 8 AND stream = :stream)"
        " WHERE seq = 13 AND stream = :stream",
        13,
    ),
    "a record is not one": ("UPDATE log SET kind = 'nonsense' WHERE seq = 5 AND stream = :stream", 5),
    "a fingerprint is lost": (
        """UPDATE log SET data = json_remove(data, '$.fingerprint') WHERE seq = 6 AND stream = :stream""",
        6,
    ),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_log_that_was_tampered_with_does_not(case: str, booked: Path, tmp_path: Path) -> None:
    change, seq = TAMPERED[case]
    for file in booked.glob("demo.db*"):
        if file.is_file():
            shutil.copy(file, tmp_path)
    with sqlite3.connect(tmp_path / "demo.db") as on:
        (stream,) = on.execute("SELECT id FROM streams WHERE name = 'trip-2'").fetchone()
        assert on.execute(change, {"stream": stream}).rowcount == 1
    on.close()
    ran = perdure("journal", "verify", "trip-2", "--db", "demo.db", cwd=tmp_path)
    assert ran.code == 1, ran.err
    assert f"record {seq} of 'default:session:trip-2' is damaged" in ran.out
    assert "\nFAIL  trip-2" in ran.out
    (verdict,) = perdure("journal", "verify", "trip-2", "--db", "demo.db", "--json", cwd=tmp_path).objects
    assert verdict["ok"] is False


# --- why, doctor, version


def test_why_says_what_is_the_matter_and_what_to_do(booked: Path) -> None:
    ran = look(booked, "why", "late-1")
    assert ran.code == 0
    assert "late-1  queued\n  because    interrupted during tool charge_card; the worker is gone\n" in ran.out
    assert "start a worker that has agent 'travel'" in ran.out
    (why,) = look(booked, "why", "late-1", "--json").objects
    assert (why["status"], why["worker_alive"], why["queued"]) == ("queued", False, 0)


def test_doctor_checks_and_counts(booked: Path) -> None:
    ran = look(booked, "doctor")
    assert ran.code == 0
    assert re.search(r"(\d+) checked, 0 failed\n", ran.err)
    whats = [str(check["what"]) for check in look(booked, "doctor", "--json").objects]
    for expected in ("python", "sqlite", "store", "integrity", "workers", "lease clock", "disk"):
        assert expected in whats


def test_version(tmp_path: Path) -> None:
    assert re.match(r"perdure \d+\.\d+\.\d+\n$", perdure("--version", cwd=tmp_path).out)
    assert perdure("version", cwd=tmp_path).out.startswith(perdure("--version", cwd=tmp_path).out.strip())
    (versions,) = perdure("version", "--json", cwd=tmp_path).objects
    assert set(versions) == {"type", "v", "perdure", "python", "sqlite"}


# --- run


def test_run_streams_an_answer_and_works_the_turn_itself(folder: Path) -> None:
    ran = perdure("run", "agents:app", "hello", "--session", "s1", cwd=folder)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("You said: hello")
    assert ran.err.endswith("Continue with --session s1\n")
    assert (folder / "app.db").exists()


def test_run_as_json_ends_with_the_result(folder: Path) -> None:
    objects = perdure("run", "agents:echo", "hello", "--json", "--db", "x.db", cwd=folder).objects
    assert {"fact", "result"} <= {str(one["type"]) for one in objects} <= {"fact", "delta", "result"}
    assert objects[-1]["type"] == "result"
    assert objects[-1]["status"] == "finished"


def test_replies_stand_on_lines_of_their_own(folder: Path) -> None:
    lines = perdure("run", "agents:slow", "Book a flight to Faro", "--db", "x.db", cwd=folder).out.splitlines()
    assert [re.sub(r" \(wording .*", "", line) for line in lines] == [
        "Looking for flights to Faro.",
        "I have searched, and charged nothing.",
    ]


def test_an_input_that_was_left_is_answered_by_the_next_worker(folder: Path) -> None:
    left = perdure("run", "agents:app", "later", "--session", "s", "--detach", cwd=folder)
    assert (left.code, left.out) == (0, "s\n")
    assert "no worker is running" in left.err
    assert '"queued"' in perdure("why", "s", "--db", "app.db", "--json", cwd=folder).out
    assert perdure("run", "agents:app", "now", "--session", "s", cwd=folder).code == 0
    said = perdure("journal", "show", "s", "--db", "app.db", cwd=folder).out
    assert said.count("finished") == 2


def test_ctrl_c_detaches_and_the_turn_goes_on_later(folder: Path) -> None:
    (folder / "agents.py").write_text(AGENTS.replace("SECONDS", "8"))
    args = [*COMMAND, "run", "agents:slow", "Book a flight to Faro", "--session", "s", "--db", "app.db"]
    running = subprocess.Popen(
        args, cwd=folder, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stdout
    assert "Looking for flights to Faro." in running.stdout.readline()
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "Detached from s. The turn is saved for the next worker.\n" in err
    assert "perdure sessions watch s --db app.db" in err
    assert "Traceback" not in err
    (folder / "agents.py").write_text(AGENTS.replace("SECONDS", "0"))
    assert perdure("run", "agents:slow", "Hello?", "--session", "s", "--db", "app.db", cwd=folder).code == 0
    assert perdure("journal", "show", "s", "--db", "app.db", cwd=folder).out.count("finished") == 2


# --- what goes wrong

BAD: dict[str, tuple[tuple[str, ...], int, str]] = {
    "an unknown session": (("why", "nobody"), 3, "error: unknown session 'nobody'"),
    "an unknown session to watch": (("sessions", "watch", "nobody"), 3, "error: unknown session 'nobody'"),
    "a prefix of two": (("sessions", "show", "trip"), 2, "error: 'trip' matches 2 sessions"),
    "an unknown record": (("journal", "show", "trip-1", "99"), 3, "error: trip-1 has no record 99"),
    "a bad cursor": (("sessions", "watch", "trip-1", "--after", "%%%"), 2, "is not a cursor"),
    "a bad list cursor": (("sessions", "list", "--after", "%%%"), 2, "invalid cursor"),
    "a blank id": (("why", " "), 2, "error: the session id is blank"),
    "a bad number": (("journal", "show", "trip-1", "--limit", "x"), 2, "error: invalid value for '--limit'"),
    "an unknown option": (("sessions", "list", "--colour"), 2, "error: no such option: --colour"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_arguments_are_refused_with_a_message(case: str, booked: Path) -> None:
    args, code, what = BAD[case]
    ran = look(booked, *args)
    assert ran.code == code, ran.err
    assert what in ran.err
    assert ran.err.startswith("error: ")
    assert ran.out == ""


BAD_TARGETS: dict[str, tuple[str, str]] = {
    "agents": ("invalid target 'agents'", "agent:app is `app` in agent.py"),
    "agents.py:app": ("invalid target 'agents.py:app'", "agents:app"),
    "nowhere:app": ("unknown module 'nowhere'", "cd to its folder"),
    "agents:ap": ("'agents' has no 'ap'", "try agents:echo"),
    "agents:AGENT_COUNT": ("'agents' has no 'AGENT_COUNT'", "try agents:echo"),
    "agents:nothing": ("agents:nothing is a list", "agent:app"),
    "agents:both": ("agents:both has 2 agents", "--agent echo"),
    "broken:app": ("cannot import module 'broken'", "PERDURE_DEBUG=1 shows the traceback"),
}


@pytest.mark.parametrize("target", BAD_TARGETS)
def test_a_target_that_is_none_is_refused_in_words(target: str, folder: Path) -> None:
    (folder / "broken.py").write_text("x = 1\n1 / 0\n")
    what, hint = BAD_TARGETS[target]
    ran = perdure("run", target, "hi", "--db", "x.db", cwd=folder)
    assert ran.code == 2
    assert ran.err.startswith(f"error: {what}\n  because  ")
    assert ran.err.endswith(f"  hint     {hint}\n")


def test_a_broken_module_says_where(folder: Path) -> None:
    (folder / "broken.py").write_text("x = 1\n1 / 0\n")
    assert "ZeroDivisionError: division by zero (broken.py:2)" in perdure("run", "broken:app", "hi", cwd=folder).err
    assert "Traceback" in perdure("run", "broken:app", "hi", cwd=folder, env={"PERDURE_DEBUG": "1"}).err


def test_unknown_model_is_refused(folder: Path) -> None:
    ran = perdure("run", "agents:echo", "hi", "--model", "nobody:gpt-9", "--db", "x.db", cwd=folder)
    assert ran.code == 2
    assert "error: unknown model 'nobody:gpt-9'" in ran.err


READING = (
    ("sessions", "list"),
    ("sessions", "show", "s"),
    ("sessions", "watch", "s"),
    ("journal", "show", "s"),
    ("journal", "show", "s", "1"),
    ("journal", "verify", "s"),
    ("why", "s"),
    ("doctor",),
)


@pytest.mark.parametrize("args", READING, ids=" ".join)
def test_looking_never_creates_a_store(args: tuple[str, ...], tmp_path: Path) -> None:
    ran = perdure(*args, cwd=tmp_path)
    assert ran.code == 7
    assert "error: no store at .perdure/dev.db\n  because  no such file\n  hint     " in ran.err
    assert list(tmp_path.iterdir()) == []


def test_the_store_of_the_demo_is_pointed_out(tmp_path: Path) -> None:
    (tmp_path / ".perdure").mkdir()
    (tmp_path / ".perdure" / "demo.db").touch()
    assert "the demo's store: --db .perdure/demo.db" in perdure("sessions", "list", cwd=tmp_path).err


def test_file_without_a_store_is_not_modified(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database" * 100)
    (tmp_path / "empty").touch()
    with sqlite3.connect(tmp_path / "other") as on:
        on.execute("CREATE TABLE theirs (x)")
    on.close()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for name in ("text", "empty", "other", "."):
        ran = perdure("sessions", "list", "--db", name, cwd=tmp_path)
        assert (ran.code, ran.out) == (7, ""), name
        assert ran.err.startswith("error: ")
    assert perdure("sessions", "list", "--db", "mysql://host/db", cwd=tmp_path).code == 2
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_damaged_store_is_an_error_and_not_a_traceback(booked: Path, tmp_path: Path) -> None:
    with sqlite3.connect(booked / "demo.db") as source, sqlite3.connect(tmp_path / "demo.db") as target:
        source.backup(target)
    source.close()
    target.close()
    data = bytearray((tmp_path / "demo.db").read_bytes())
    data[4096:-4096] = bytes(len(data) - 8192)
    (tmp_path / "demo.db").write_bytes(data)
    for args in (("sessions", "list"), ("journal", "show", "trip-1")):
        ran = perdure(*args, "--db", "demo.db", cwd=tmp_path)
        assert ran.code == 7, ran.err
        assert ran.err.startswith("error: ")
    assert perdure("doctor", "--db", "demo.db", cwd=tmp_path).code in (1, 7)


def test_the_environment_names_the_store_and_the_flag_wins(booked: Path, tmp_path: Path) -> None:
    env = {"PERDURE_DB": f"sqlite:///{booked / 'demo.db'}"}
    assert perdure("sessions", "list", "-q", cwd=tmp_path, env=env).out == "late-1\ntrip-2\ntrip-1\n"
    assert perdure("sessions", "list", "--db", "none.db", cwd=tmp_path, env=env).code == 7


# --- manners


def test_nothing_that_is_piped_is_coloured(booked: Path) -> None:
    for args in (("sessions", "list"), ("journal", "show", "trip-2"), ("doctor",), ("sessions", "show", "trip-2")):
        assert "\x1b" not in look(booked, *args).out


def test_closed_output_pipe_causes_no_traceback(booked: Path) -> None:
    args = " ".join([*COMMAND, "journal", "show", "trip-1", "--json", "--db", "demo.db"])
    ran = subprocess.run(
        ["bash", "-c", f"{args} | head -1 >/dev/null; echo ${{PIPESTATUS[0]}}"],
        cwd=booked,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.strip() in ("0", str(128 + signal.SIGPIPE))
    assert "Traceback" not in ran.stderr
    assert "Error" not in ran.stderr


def test_text_of_a_model_cannot_steer_the_terminal(folder: Path) -> None:
    ran = perdure("run", "agents:echo", "\x1b]0;owned\x07 hi", "--session", "s", "--db", "x.db", cwd=folder)
    assert ran.code == 0, ran.err
    shown = perdure("journal", "show", "s", "--db", "x.db", cwd=folder)
    for text in (ran.out, ran.err, shown.out):
        assert "\x1b" not in text
        assert "\x07" not in text


def test_every_code_has_an_exit_code_of_the_list() -> None:
    assert set(EXITS) <= set(Code)
    assert set(EXITS.values()) == {2, 3, 4, 7}


def test_a_bug_is_an_error_and_not_a_traceback(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom perdure.cli import app\nfrom perdure.cli.commands import version\n"
        "import perdure.cli.screen as s\ns.say = lambda *a: 1 / 0\nsys.exit(app.run_app(['version']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: internal error in perdure\n  because  ZeroDivisionError")


def test_read_commands_work_while_a_worker_writes(folder: Path) -> None:
    """Lists and journals on a store that another process is working on."""
    (folder / "agents.py").write_text(AGENTS.replace("SECONDS", "2"))

    async def both() -> tuple[int, list[int]]:
        args = [*COMMAND, "run", "agents:slow", "Book a flight to Faro", "--session", "s", "--db", "app.db"]
        running = await asyncio.create_subprocess_exec(
            *args, cwd=folder, env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert running.stdout
        await running.stdout.readline()
        codes = [
            (await asyncio.to_thread(perdure, *args, "--db", "app.db", cwd=folder)).code
            for args in (("sessions", "list"), ("journal", "verify", "s"), ("why", "s"))
        ]
        await running.communicate()
        return running.returncode or 0, codes

    assert asyncio.run(both()) == (0, [0, 0, 0])
    assert os.listdir(folder).count("app.db") == 1
