"""A copy of the tree for running mutants, one after the other. Compiled once."""

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
"""The plugins that the tests need. Loading all installed ones would double the start time."""


class Bench:
    """One copy of the tree."""

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
        """Apply a mutant, run its test, restore the sources, and return the verdict."""
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
        ):  # a file of equal second and size would pass for this one
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
        if code in (1, TIMED_OUT):  # a hanging test fails too
            return "killed"
        return "SURVIVED" if code == 0 else "BROKEN"
