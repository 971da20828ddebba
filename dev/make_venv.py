"""Make a venv hold exactly the pinned packages, hash-checked. Needs only python3.

`.venv` holds this package too, editable: with all that developers need, or with what the demo needs (argument: `demo`).
`.venv-docs` (argument: `docs`) builds the site and reads the source as text.
"""

from __future__ import annotations  # lets an old python3 reach the message below

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOOTSTRAP = "requirements/uv.txt"


def run(*command: str | Path) -> int:
    return subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode


def main(name: str) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - python3 on the machine may be older than the package allows
        print(f"perdure needs Python 3.11 or newer; this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    venv = ROOT / (".venv-docs" if name == "docs" else ".venv")
    python = venv / "bin" / "python"
    pins = f"requirements/{name}.txt"

    def pip(*arguments: str) -> int:
        return run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)

    if not python.exists() and (failed := run(sys.executable, "-m", "venv", "--clear", venv)):
        return failed
    if failed := pip("--require-hashes", "-r", BOOTSTRAP):
        return failed
    # uv ignores pip's configuration. Where only that names a mirror, pip installs instead, more slowly.
    uv = venv / "bin" / "uv"
    synced = run(uv, "pip", "sync", "--quiet", "--require-hashes", "--python", python, pins)
    if synced and (failed := pip("--no-deps", "--require-hashes", "-r", pins)):
        return failed
    # The build backend is one of the pins: no isolated build, nothing fetched unchecked.
    if name != "docs" and (failed := pip("--no-deps", "--no-build-isolation", "--editable", ".")):
        return failed
    (venv / ("demo-stamp" if name == "demo" else "stamp")).touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or ["dev"]))
