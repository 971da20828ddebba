"""Runs `perdure` as a user does: a process of its own, its output and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast


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
    """Ours without anything that would change what a command does."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    return {**clean, "COLUMNS": "80", **(extra or {})}


COMMAND = (sys.executable, "-P", "-m", "perdure")


def perdure(*args: str, cwd: Path, env: Mapping[str, str] | None = None) -> Ran:
    """Run one command line to its end."""
    ran = subprocess.run(
        [*COMMAND, *args], cwd=cwd, env=environment(env), capture_output=True, text=True, timeout=120, check=False
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)
