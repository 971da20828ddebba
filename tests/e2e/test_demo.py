"""The five-minute tour, with a real worker and a real kill -9."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import perdure as package
from perdure import Runtime, RuntimeOptions
from perdure.cli.demo.tour import Tour, find_unfinished
from perdure.cli.demo.travel import AGENT, INPUT, TravelWorld, travel_agent
from tests.e2e.command import COMMAND, Ran, environment, perdure
from tests.scenarios.test_approvals import parked

pytestmark = pytest.mark.crash


def ledger(folder: Path) -> list[str]:
    return (folder / ".perdure" / "demo-ledger.csv").read_text().splitlines()


def emails(folder: Path) -> list[str]:
    return (folder / ".perdure" / "demo-outbox.csv").read_text().splitlines()


def allow(folder: Path, stopped: Ran) -> None:
    """Type what the demo says, where it stopped at the question."""
    assert stopped.code == 5, stopped.out + stopped.err
    assert "The approval request is in the store. Nothing runs meanwhile; nothing is lost." in stopped.out
    typed = re.search(r"perdure (approvals approve apr_\w+ --db \S+)$", stopped.out, re.M)
    assert typed
    assert not (folder / ".perdure" / "demo-outbox.csv").exists() or "trip-2" in stopped.out
    decided = perdure(*typed.group(1).split(), "--by", "ana", cwd=folder)
    assert decided.out.endswith("approved by ana\n"), decided.err


def demo(folder: Path, *args: str) -> Ran:
    """The demo to its end: once to the question, once from there."""
    allow(folder, perdure("demo", *args, cwd=folder))
    return perdure("demo", *(arg for arg in args if arg != "--reset"), cwd=folder)


def kill_while_it_charges(folder: Path, sig: signal.Signals, *, whom: str) -> Ran:
    """Start the demo, wait until it asks to be broken, and break it: the worker, or the command itself."""
    demo = subprocess.Popen(
        [*COMMAND, "demo", "--delay", "30"],
        cwd=folder,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert demo.stdout
    seen = ""
    for line in demo.stdout:
        seen += line
        if found := re.search(r"kill -9 (\d+)", line):
            break
    else:
        pytest.fail(f"never asked to be killed: {seen}")
    os.kill(int(found.group(1)) if whom == "worker" else demo.pid, sig)
    out, err = demo.communicate(timeout=30)
    return Ran(demo.returncode, seen + out, err)


@pytest.mark.slow
def test_printed_commands_can_be_pasted_when_the_folder_has_a_space(tmp_path: Path) -> None:
    stopped = perdure("demo", "--dir", "my dir", "--delay", "0", cwd=tmp_path)
    typed = re.search(r"perdure (approvals approve apr_\w+ --db .+)$", stopped.out, re.M)
    assert typed, stopped.out + stopped.err
    assert perdure(*shlex.split(typed[1]), "--by", "ana", cwd=tmp_path).code == 0
    ended = perdure("demo", "--dir", "my dir", "--delay", "0", cwd=tmp_path)
    shown = re.search(r"perdure (journal show trip-1 --db .+)$", ended.out, re.M)
    assert shown, ended.out + ended.err
    assert perdure(*shlex.split(shown[1]), cwd=tmp_path).code == 0


@pytest.mark.slow
def test_the_charge_is_made_once_although_its_worker_was_killed(tmp_path: Path) -> None:
    killed = kill_while_it_charges(tmp_path, signal.SIGKILL, whom="worker")
    assert killed.code == 1, killed.err
    assert "was killed. Nothing is lost: 9 records are in the store." in killed.out
    assert "Carry on with the same command:   perdure demo" in killed.out
    assert len(ledger(tmp_path)) == 1

    again = perdure("demo", "--delay", "30", cwd=tmp_path)  # were the charge run again, this would take half a minute
    assert "Recovered 1 interrupted turn (worker " in again.out
    assert again.out.count("replayed") == 3
    assert "in doubt: the worker died" in again.out
    assert "it happened: receipt kept, not charged again" in again.out
    assert "send_email      waiting for you" in again.out
    assert "Check the ledger:   ledger has 1 charge (expected 1)  OK" in again.out
    assert len(ledger(tmp_path)) == 1

    asked_again = perdure("demo", "--delay", "30", cwd=tmp_path)
    question = re.search(r"apr_\w+", again.out)
    assert question
    assert question.group() in asked_again.out  # the same question, and nothing else has happened meanwhile
    allow(tmp_path, asked_again)
    done = perdure("demo", "--delay", "30", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert "send_email      approved by ana" in done.out
    assert "here is your itinerary. It was mailed to you." in done.out
    assert "Check the ledger:   ledger has 1 charge (expected 1)  OK" in done.out
    assert (len(ledger(tmp_path)), len(emails(tmp_path))) == (1, 1)

    third = demo(tmp_path, "--delay", "0")
    assert third.code == 0, third.out + third.err
    assert "session trip-2" in third.out
    assert "ledger has 2 charges (expected 2, one per session)  OK" in third.out
    assert (len(ledger(tmp_path)), len(emails(tmp_path))) == (2, 2)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal to pretend to be")
def test_at_a_terminal_the_enter_key_allows_it(tmp_path: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "demo", "--delay", "0"],
        cwd=tmp_path,
        env=environment(),
        text=True,
        stdin=theirs,
        stdout=subprocess.PIPE,
    ) as shown:
        assert shown.stdout
        out = ""
        for line in shown.stdout:
            out += line
            if "press Enter here" in line:
                os.write(ours, b"\n")
        assert shown.wait(30) == 0, out
    os.close(ours)
    os.close(theirs)
    assert "send_email      approved by you" in out
    assert (len(ledger(tmp_path)), len(emails(tmp_path))) == (1, 1)


@pytest.mark.slow
def test_ctrl_c_stops_the_worker_and_the_next_run_carries_on(tmp_path: Path) -> None:
    stopped = kill_while_it_charges(tmp_path, signal.SIGINT, whom="command")
    assert stopped.code == 130
    assert "Stopped: the worker was killed" in stopped.out
    assert demo(tmp_path).code == 0
    assert len(ledger(tmp_path)) == 1


async def test_demo_resumes_a_session_parked_at_the_approval(tmp_path: Path) -> None:
    tour = Tour(tmp_path, 0.0, "perdure demo")
    world = TravelWorld(tour.ledger, tour.outbox)
    options = RuntimeOptions(idle_timeout_s=0)
    async with Runtime(f"sqlite:///{tour.store}", agents=[travel_agent(world)], deps=world, options=options) as rt:
        session = await rt.session("trip-1", agent=AGENT)
        await session.send(INPUT)
        await parked(rt, session)
    async with Runtime(f"sqlite:///{tour.store}", worker=False) as rt:
        found = await find_unfinished(rt)
        assert (found.session.id, found.bookings) == ("trip-1", 1)
        assert found.interrupted is not None


@pytest.mark.slow
def test_a_second_charge_would_be_noticed(tmp_path: Path) -> None:
    kill_while_it_charges(tmp_path, signal.SIGKILL, whom="worker")
    (line,) = ledger(tmp_path)
    with (tmp_path / ".perdure" / "demo-ledger.csv").open("a") as file:
        file.write(f"{line}\n")
    again = demo(tmp_path)
    assert "ledger has 2 charges (expected 1)  FAIL" in again.out
    assert again.code == 1


@pytest.mark.slow
def test_a_second_e_mail_would_be_noticed(tmp_path: Path) -> None:
    allow(tmp_path, perdure("demo", "--delay", "0", cwd=tmp_path))
    (tmp_path / ".perdure" / "demo-outbox.csv").write_text("trip-1,a,b,c\n")
    again = perdure("demo", cwd=tmp_path)
    assert "The outbox has 2 e-mails, at most 1 expected  FAIL" in again.out
    assert again.code == 1


@pytest.mark.slow
def test_a_running_demo_is_neither_joined_nor_deleted(tmp_path: Path) -> None:
    running = subprocess.Popen([*COMMAND, "demo"], cwd=tmp_path, env=environment(), text=True, stdout=subprocess.PIPE)
    assert running.stdout
    try:
        assert any("kill -9" in line for line in running.stdout)
        for args in ((), ("--reset",)):
            busy = perdure("demo", *args, cwd=tmp_path)
            assert busy.code == 4
            assert busy.err.startswith("error: a demo is already running here\n  because  the worker, pid ")
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=30)
    assert demo(tmp_path, "--reset", "--delay", "0").code == 0
    assert len(ledger(tmp_path)) == 1


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_crash_point_of_the_demo_is_survived(tmp_path: Path) -> None:
    ran = perdure("demo", "--auto", "--json", cwd=tmp_path)
    assert ran.code == 0, ran.out + ran.err
    found = {str(point["point"]): point for point in ran.objects}
    assert all(point["ok"] and point["at_end"] == 1 for point in found.values())
    sides = {name for name in found if ":" in name}
    assert len(sides) >= 20
    assert sides == {f"{n}:{side}" for n in range(1, len(sides) // 2 + 1) for side in ("before", "after")}
    expected = {
        "1:before": (0, "input sent again"),
        "1:after": (0, "input kept"),
        "pre-charge": (0, "probe: did not happen"),
        "post-charge": (1, "probe: happened"),
        "twice": (1, "probe: happened"),
        "pre-mail": (1, "probe: did not happen"),
        "post-mail": (1, "probe: happened"),
        "asked": (1, "5 replayed, re-run"),
    }
    assert {name: (found[name]["at_kill"], found[name]["recovery"]) for name in expected} == expected
    assert list(tmp_path.iterdir()) == []


def test_one_crash_point_can_be_chosen(tmp_path: Path) -> None:
    ran = perdure("demo", "--kill-at", "5:after", cwd=tmp_path)
    assert ran.code == 0, ran.out + ran.err
    assert "Counts vary: no model or pure call waits for the disk." in ran.out
    assert re.search(r"^5:after +save reply #2, intend charge +0 -> 1 +probe: did not happen +OK$", ran.out, re.M)
    assert perdure("demo", "--kill-at", "99:after", cwd=tmp_path).code == 2


MUTANTS = {
    "the probe lies": (
        "cli/demo/travel.py",
        "if charge else DidNotHappen()",
        "if False else DidNotHappen()",
        "post-charge",
    ),
    "a charge leaves no intent": (
        "effects/controller.py",
        'self.effect in ("once", "resumable")',
        'self.effect == "resumable"',
        "post-charge",
    ),
    "an approval is not needed": ("cli/demo/travel.py", ", needs_approval=True", "", "2:before"),
    "the worker never dies": ("testing/crash.py", "os.kill(os.getpid(), signal.SIGKILL)", "pass", "5:before"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_demo_can_fail(name: str, tmp_path: Path) -> None:
    where, right, wrong, point = MUTANTS[name]
    source = Path(package.__file__).parent
    shutil.copytree(source, tmp_path / "perdure", ignore=shutil.ignore_patterns("__pycache__"))
    text = (tmp_path / "perdure" / where).read_text()
    assert right in text
    (tmp_path / "perdure" / where).write_text(text.replace(right, wrong))
    ran = perdure("demo", "--kill-at", point, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert ran.code == 1, ran.out
    assert "FAIL" in ran.out
    shutil.rmtree(ran.err.split()[-1])
