"""A test that lost a race in the crowd does not refuse a change; one that is broken, and a law, do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


def looked_at(folder: Path, files: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    command = [sys.executable, "-m", "pytest", "-p", "dev.second_look", "-n", "2", *options, "tests"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)}
    )


def test_what_passes_alone_is_named_and_refuses_nothing(tmp_path: Path) -> None:
    run = looked_at(tmp_path, {"test_a.py": FINE, "test_b.py": LATE.format(fails=(0,))})
    assert run.returncode == 0, run.stdout
    assert "UNSTABLE tests/test_b.py::test_late (failed in the crowd, passed alone 3 times)" in run.stdout
    assert "1 failed, 1 passed" in run.stdout  # the run says what it saw


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"test_a.py": BROKEN}, id="broken"),
        pytest.param({"test_a.py": LATE.format(fails=(0, 3))}, id="fails a second time, on the last look"),
        pytest.param({"test_a.py": LATE.format(fails=(0,)), "test_b.py": BROKEN}, id="one late, one broken"),
        pytest.param({"crash/test_a.py": LATE.format(fails=(0,))}, id="a law"),
        pytest.param({f"test_{n}.py": LATE.format(fails=(0,)) for n in range(4)}, id="too many"),
        pytest.param(
            {"test_a.py": LATE.format(fails=(0,)), "test_b.py": "import nothing_like_it\n"}, id="not all were seen"
        ),
    ],
)
def test_what_is_broken_refuses(tmp_path: Path, files: dict[str, str]) -> None:
    run = looked_at(tmp_path, files)
    assert run.returncode != 0, run.stdout
    assert "UNSTABLE" not in run.stdout


def test_a_run_that_is_broken_off_is_not_judged(tmp_path: Path) -> None:
    run = looked_at(tmp_path, {"test_a.py": LATE.format(fails=(0,)), "test_b.py": FINE}, "-x")
    assert run.returncode != 0, run.stdout


def test_what_is_fine_is_not_looked_at_again(tmp_path: Path) -> None:
    run = looked_at(tmp_path, {"test_a.py": LATE.format(fails=(9,))})
    assert (run.returncode, (tmp_path / "tests" / "test_a.count").read_text()) == (0, "1")
