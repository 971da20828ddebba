"""Runs `perdure` as a user does: a process of its own, its output and its exit code."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import cast

from perdure.cli import main
from perdure.cli.app import run_app
from perdure.testing.children import WARM


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, object]]:
        """Every line of its output, as the JSON object it must be."""
        return [cast("dict[str, object]", json.loads(line)) for line in self.out.splitlines()]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours without anything that would change what a command does, in an activated venv."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), clean.get("PATH", "")])
    return {**clean, "PATH": path, "COLUMNS": "80", **(extra or {})}


COMMAND = (sys.executable, "-P", "-m", "perdure")


def in_this_process(*args: str, input: str = "") -> Ran:
    """The same without a process of its own: a hundredth of the time. For a thread, as a command has its own loop."""
    out, err, before = StringIO(), StringIO(), sys.stdin
    sys.stdin = StringIO(input)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run_app(list(args))
    finally:
        sys.stdin = before
    return Ran(code, out.getvalue(), err.getvalue())


_warm = multiprocessing.get_context("forkserver")
_warm.set_forkserver_preload(["tests.e2e.command", "tests.crash.scenarios", *WARM])


def perdure(*args: str, cwd: Path, env: Mapping[str, str] | None = None) -> Ran:
    """Run one command line to its end, in a process that has imported what every command does."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        command = _warm.Process(target=_command, args=(args, str(cwd), environment(env), str(out), str(err)))
        command.start()
        command.join(120)
        if command.is_alive():
            command.kill()
            command.join()
            raise AssertionError(f"perdure {' '.join(args)} is not over after two minutes")
        code = command.exitcode
        command.close()
        assert code is not None
        return Ran(code, out.read_text(), err.read_text())


def _command(args: tuple[str, ...], cwd: str, env: dict[str, str], out: str, err: str) -> None:
    for fd, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), fd)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["perdure", *args]
    main()
