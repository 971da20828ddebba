"""A copy of the tree in which one mutant after another is tried: compiled once, and nothing else is ever broken."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from dev.mutants.alone import TIMED_OUT, run_alone
from dev.mutants.mutant import ROOT, Mutant

TIMEOUT_S = 90
COPIED = ("src", "tests", "dev", "pyproject.toml")
PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout", "anyio.pytest_plugin", "perdure.testing.plugin")
"""What the tests need. All that are installed would take as long to load as everything else that a start does."""


class Bench:
    """One copy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources = folder / "src" / "perdure"
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / name)

    def judge(self, mutant: Mutant, output: Path) -> str:
        """Break the sources, run the test, and mend them: killed, SURVIVED, or that there is nothing to be seen."""
        whole = {part.file: (self._sources / part.file).read_text() for part in mutant.parts}
        try:
            for part in mutant.parts:
                text = (self._sources / part.file).read_text()
                if part.before not in text:
                    return "STALE"
                self._write(part.file, text.replace(part.before, part.after))
            return self._verdict(mutant, output)
        finally:
            for file, text in whole.items():
                self._write(file, text)

    def _write(self, file: str, text: str) -> None:
        path = self._sources / file
        path.write_text(text)
        for compiled in path.parent.glob(
            f"__pycache__/{path.stem}.*"
        ):  # of the same second and size, it would pass for this
            compiled.unlink()

    def _verdict(self, mutant: Mutant, output: Path) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=native", "--timeout=30", "-p", "no:cacheprovider"]
        command += [argument for plugin in PLUGINS for argument in ("-p", plugin)]
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPATH": str(self._folder / "src"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        code = run_alone(
            [*command, *mutant.arguments], folder=self._folder, env=environment, output=output, timeout_s=TIMEOUT_S
        )
        if code in (1, TIMED_OUT):  # it hangs, which no test would let pass
            return "killed"
        return "SURVIVED" if code == 0 else "BROKEN"
