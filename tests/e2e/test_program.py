"""Printed commands start the program that printed them: `perdure` on the PATH, or the path that was typed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def printed_command(*typed: str, cwd: Path, path: str) -> str:
    """Start the program without a store, and return the command of its hint."""
    env = {**os.environ, "PATH": path}
    ran = subprocess.run([*typed, "sessions", "list"], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    return ran.stderr.partition("`")[2].partition("`")[0]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with a link to the installation: `bin/perdure`."""
    (tmp_path / "my bin").mkdir()
    (tmp_path / "my bin" / "perdure").symlink_to(BIN / "perdure")
    return tmp_path


def test_program_on_the_path_is_printed_by_its_name(elsewhere: Path) -> None:
    assert printed_command(str(BIN / "perdure"), cwd=elsewhere, path=f"{BIN}:/usr/bin:/bin") == "perdure demo"
    linked = str(elsewhere / "my bin" / "perdure")
    assert printed_command(linked, cwd=elsewhere, path=f"{elsewhere / 'my bin'}:/usr/bin:/bin") == "perdure demo"


def test_program_off_the_path_is_printed_as_typed(elsewhere: Path) -> None:
    assert printed_command("my bin/perdure", cwd=elsewhere, path="/usr/bin:/bin") == "'my bin/perdure' demo"


def test_another_perdure_on_the_path_is_not_printed(elsewhere: Path) -> None:
    other = elsewhere / "other"
    other.mkdir()
    (other / "perdure").write_text("#!/bin/sh\n")
    (other / "perdure").chmod(0o755)
    assert printed_command(str(BIN / "perdure"), cwd=elsewhere, path=f"{other}:/usr/bin:/bin") == f"{BIN}/perdure demo"


def test_module_is_printed_with_its_interpreter(elsewhere: Path) -> None:
    typed = (sys.executable, "-m", "perdure")
    assert printed_command(*typed, cwd=elsewhere, path="/usr/bin:/bin") == f"{shlex.join(typed)} demo"
    assert printed_command(*typed, cwd=elsewhere, path=f"{BIN}:/usr/bin:/bin") == "perdure demo"
