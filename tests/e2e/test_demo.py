"""The five-minute tour, with a real worker and a real kill -9."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import perdure as package
from tests.e2e.command import COMMAND, Ran, environment, perdure

pytestmark = pytest.mark.crash


def ledger(folder: Path) -> list[str]:
    return (folder / ".perdure" / "demo-ledger.csv").read_text().splitlines()


def kill_while_it_charges(folder: Path, sig: signal.Signals, *, whom: str) -> Ran:
    """Start the demo, wait until it asks to be broken, and break it: the worker, or the command itself."""
    demo = subprocess.Popen(
        [*COMMAND, "demo", "--dawdle", "30"],
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


def test_the_charge_is_made_once_although_its_worker_was_killed(tmp_path: Path) -> None:
    killed = kill_while_it_charges(tmp_path, signal.SIGKILL, whom="worker")
    assert killed.code == 1, killed.err
    assert "was killed. Nothing is lost: 9 records are in the store." in killed.out
    assert "Carry on with the same command:   perdure demo" in killed.out
    assert len(ledger(tmp_path)) == 1

    again = perdure("demo", "--dawdle", "30", cwd=tmp_path)  # were the charge run again, this would take half a minute
    assert again.code == 0, again.out + again.err
    assert "Recovered 1 interrupted turn (worker " in again.out
    assert again.out.count("replayed") == 3
    assert "in doubt: the worker died" in again.out
    assert "it happened: receipt kept, not charged again" in again.out
    assert "Check the outside world:  ledger has 1 charge (expected 1)  OK" in again.out
    assert len(ledger(tmp_path)) == 1

    third = perdure("demo", "--dawdle", "0", cwd=tmp_path)
    assert third.code == 0, third.out + third.err
    assert "Recovered" not in third.out
    assert "session trip-2" in third.out
    assert "ledger has 2 charges (expected 2, one per session)  OK" in third.out


def test_ctrl_c_stops_the_worker_and_the_next_run_carries_on(tmp_path: Path) -> None:
    stopped = kill_while_it_charges(tmp_path, signal.SIGINT, whom="command")
    assert stopped.code == 130
    assert "Stopped: the worker was killed" in stopped.out
    assert perdure("demo", cwd=tmp_path).code == 0
    assert len(ledger(tmp_path)) == 1


def test_a_second_charge_would_be_noticed(tmp_path: Path) -> None:
    kill_while_it_charges(tmp_path, signal.SIGKILL, whom="worker")
    (line,) = ledger(tmp_path)
    with (tmp_path / ".perdure" / "demo-ledger.csv").open("a") as file:
        file.write(f"{line}\n")
    again = perdure("demo", cwd=tmp_path)
    assert "ledger has 2 charges (expected 1)  FAIL" in again.out
    assert again.code == 1


def test_a_running_demo_is_neither_joined_nor_deleted(tmp_path: Path) -> None:
    demo = subprocess.Popen([*COMMAND, "demo"], cwd=tmp_path, env=environment(), text=True, stdout=subprocess.PIPE)
    assert demo.stdout
    try:
        assert any("kill -9" in line for line in demo.stdout)
        for args in ((), ("--fresh",)):
            busy = perdure("demo", *args, cwd=tmp_path)
            assert busy.code == 4
            assert busy.err.startswith("error: a demo is already running here\n  because  its worker, pid ")
    finally:
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=30)
    assert perdure("demo", "--fresh", "--dawdle", "0", cwd=tmp_path).code == 0
    assert len(ledger(tmp_path)) == 1


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_crash_point_of_the_demo_is_survived(tmp_path: Path) -> None:
    ran = perdure("demo", "--auto", "--json", cwd=tmp_path)
    assert ran.code == 0, ran.out + ran.err
    found = {str(point["point"]): point for point in ran.objects}
    assert all(point["ok"] and point["at_end"] == 1 for point in found.values())
    sides = {name for name in found if ":" in name}
    assert len(sides) >= 14
    assert sides == {f"{n}:{side}" for n in range(1, len(sides) // 2 + 1) for side in ("before", "after")}
    expected = {
        "1:before": (0, "input sent again"),
        "1:after": (0, "input kept"),
        "pre-charge": (0, "probe: did not happen"),
        "post-charge": (1, "probe: happened"),
        "twice": (1, "probe: happened"),
    }
    assert {name: (found[name]["at_kill"], found[name]["recovery"]) for name in expected} == expected
    assert list(tmp_path.iterdir()) == []


def test_one_crash_point_can_be_chosen(tmp_path: Path) -> None:
    ran = perdure("demo", "--kill-at", "5:after", cwd=tmp_path)
    assert ran.code == 0, ran.out + ran.err
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
    "the worker never dies": ("testing/crash.py", "os.kill(os.getpid(), signal.SIGKILL)", "pass", "5:before"),
}


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
