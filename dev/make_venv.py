"""Make `.venv` hold exactly the pinned packages, hash-checked, and this package editable. Needs only python3."""

from __future__ import annotations  # so that an old python3 reaches the message below

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
BOOTSTRAP = "requirements/uv.txt"
PINS = "requirements/dev.txt"


def run(*command: str | Path) -> int:
    return subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode


def pip(*arguments: str) -> int:
    return run(PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - python3 on the machine may be older than the package allows
        print(f"perdure needs Python 3.11 or newer; this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    if not PYTHON.exists() and (failed := run(sys.executable, "-m", "venv", "--clear", VENV)):
        return failed
    if failed := pip("--require-hashes", "-r", BOOTSTRAP):
        return failed
    # uv reads no pip configuration, so where a mirror is named only there, pip does the work more slowly.
    synced = run(UV, "pip", "sync", "--quiet", "--require-hashes", "--python", PYTHON, PINS)
    if synced and (failed := pip("--no-deps", "--require-hashes", "-r", PINS)):
        return failed
    # The build backend is one of the pins: no isolated build, nothing fetched unchecked.
    if failed := pip("--no-deps", "--no-build-isolation", "--editable", "."):
        return failed
    (VENV / "stamp").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
