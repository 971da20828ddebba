"""pytest in a process and a folder of its own, as a stranger runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ran:
    """Outcome of each test, by name."""

    code: int
    outcomes: dict[str, str]
    output: str

    @property
    def failed(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome != "passed"}


def run_pytest(folder: Path, files: Mapping[str, str], *options: str) -> Ran:
    """Write the files into the folder and run pytest there."""
    for name, text in files.items():
        (folder / name).write_text(text)
    # pytest-asyncio warns when the loop scope is not configured; a new project has none.
    quiet = "ignore:The configuration option:pytest.PytestDeprecationWarning"
    (folder / "pytest.ini").write_text(f"[pytest]\nfilterwarnings =\n  error\n  {quiet}\n")
    report = folder / "report.xml"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "PYTEST_"))}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *options],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    output = ran.stdout + ran.stderr
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
    return Ran(ran.returncode, {case.get("name", ""): _outcome(case) for case in cases}, output)


def _outcome(case: ElementTree.Element) -> str:
    return next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
