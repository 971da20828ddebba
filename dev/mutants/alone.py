"""A command runner that ends every process the command started, because a broken supervisor outlives its test."""

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
    """Run a command and return its exit code, or `TIMED_OUT`. Kills all remaining children, so call it in its own
    process.
    """
    if sys.platform == "linux":  # adopt orphans, even those in other sessions
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
    """Kill the remaining children, and the orphans that this process adopts by that."""
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
