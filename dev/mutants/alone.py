"""Run a command and end everything that it started: a broken supervisor outlives the test that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

TIMED_OUT = -1
_SUBREAPER = 36


def run_alone(command: list[str], *, folder: Path, env: Mapping[str, str], output: Path, timeout_s: float) -> int:
    """Its exit code, or `TIMED_OUT`. To be called in a process of its own: whatever is left under it is killed."""
    if sys.platform == "linux":  # orphans become children of this process, even those with a session of their own
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with output.open("wb") as told:
        started = subprocess.Popen(command, cwd=folder, env=env, stdout=told, stderr=told, start_new_session=True)
        try:
            return started.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            _end_the_rest()


def _end_the_rest() -> None:
    """Kill the children that are left, and theirs, which become ours by that."""
    while left := _children():
        for child in left:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in left:
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def _children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []
