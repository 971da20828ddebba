"""Tests of the second look: a listed unstable test is forgiven; any other failure, and a law, is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from dev.second_look import LIST, LONGEST, listed

ROOT = Path(__file__).resolve().parents[3]
BROKEN = "def test_broken(): assert False\n"
FINE = "def test_fine(): pass\n"
LATE = """
from pathlib import Path

def test_late():
    count = Path(__file__).with_suffix(".count")
    seen = int(count.read_text()) if count.exists() else 0
    count.write_text(str(seen + 1))
    assert seen not in {fails}
"""
FAILS_ONCE = LATE.format(fails=(0,))


def write(folder: Path, files: dict[str, str], unstable: Iterable[str] = ()) -> None:
    entries = [f'[[test]]\nid = "{name}"\nsince = 2026-01-31\ncause = "a race"\n' for name in unstable]
    for name, text in {**files, LIST.name: "".join(entries)}.items():
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def looked_at(
    folder: Path, files: dict[str, str], *options: str, unstable: Iterable[str] = ()
) -> subprocess.CompletedProcess[str]:
    write(folder, files, unstable)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    command = [sys.executable, "-m", "pytest", "-p", "dev.second_look", "-n", "2", *options, "tests"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)}
    )


@pytest.mark.slow
def test_listed_test_that_passes_alone_is_forgiven(tmp_path: Path) -> None:
    run = looked_at(tmp_path, {"test_a.py": FINE, "test_b.py": FAILS_ONCE}, unstable=["tests/test_b.py::test_late"])
    assert run.returncode == 0, run.stdout
    assert "UNSTABLE tests/test_b.py::test_late (failed in the run, passed alone 3 times, listed)" in run.stdout
    assert "1 failed, 1 passed" in run.stdout  # the summary of the run stays


@pytest.mark.slow
def test_unlisted_test_that_passes_alone_fails_the_run(tmp_path: Path) -> None:
    run = looked_at(tmp_path, {"test_a.py": FAILS_ONCE, "test_b.py": FINE}, unstable=["tests/test_b.py::test_fine"])
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout
    assert f"passed alone 3 times, not in {LIST}: mend it)" in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"test_a.py": LATE.format(fails=(0, 3))}, id="fails a second time, on the last look"),
        pytest.param({"test_a.py": FAILS_ONCE, "test_b.py": BROKEN}, id="one late, one broken"),
        pytest.param({"test_a.py": FAILS_ONCE, "crash/test_b.py": FAILS_ONCE}, id="a law"),
        pytest.param({f"test_{n}.py": FAILS_ONCE for n in "abcd"}, id="too many"),
        pytest.param({"test_a.py": FAILS_ONCE, "test_b.py": "import nothing_like_it\n"}, id="not all were collected"),
    ],
)
def test_broken_test_fails_the_run(tmp_path: Path, files: dict[str, str]) -> None:
    run = looked_at(tmp_path, files, unstable=["tests/test_a.py::test_late"])
    assert run.returncode != 0, run.stdout


@pytest.mark.slow
def test_interrupted_run_is_not_judged(tmp_path: Path) -> None:
    files = {"test_a.py": FAILS_ONCE, "test_b.py": FINE}
    run = looked_at(tmp_path, files, "-x", unstable=["tests/test_a.py::test_late"])
    assert run.returncode != 0, run.stdout


@pytest.mark.slow
def test_passing_test_is_not_run_again(tmp_path: Path) -> None:
    run = looked_at(tmp_path, {"test_a.py": LATE.format(fails=(9,))})
    assert (run.returncode, (tmp_path / "tests" / "test_a.count").read_text()) == (0, "1")


def test_committed_list_keeps_its_rules() -> None:
    assert len(listed(ROOT)) <= LONGEST


@pytest.mark.slow
def test_invalid_list_fails_the_run(tmp_path: Path) -> None:
    run = looked_at(tmp_path, {"test_a.py": FINE}, unstable=["tests/test_a.py::test_gone"])
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "unknown test tests/test_a.py::test_gone" in run.stderr


@pytest.mark.parametrize(
    ("unstable", "message"),
    [
        ([f"tests/test_a.py::test_fine[{n}]" for n in range(6)], "lists 6 tests, at most 5"),
        (["tests/crash/test_a.py::test_fine"], "is a law"),
        (["tests/scenarios/test_takeover.py::test_fine"], "is a law"),
        (["tests/test_b.py::test_fine"], "unknown test"),
        (['x"\ncause2 = "'], "an entry has an id, a date `since` and a cause"),
    ],
)
def test_list_is_refused_when_it_breaks_a_rule(tmp_path: Path, unstable: list[str], message: str) -> None:
    write(tmp_path, {"test_a.py": FINE}, unstable)
    with pytest.raises(ValueError, match=message):
        listed(tmp_path)
