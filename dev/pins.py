"""Rewrite `requirements/` from pyproject.toml: universal, hashed, no index address, nothing younger than a week."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = ".venv/bin/uv"
OPTIONS = [
    *("--universal", "--python-version", "3.11", "--generate-hashes"),
    *("--no-header", "--no-emit-index-url", "--quiet", "--exclude-newer", "7 days"),
]
DEV = "requirements/dev.txt"


def compiled(target: str, *sources: str, stdin: str = "", upgrade: bool = False) -> None:
    command = [UV, "pip", "compile", *OPTIONS, *(["--upgrade"] if upgrade else []), "--output-file", target, *sources]
    subprocess.run(command, cwd=ROOT, check=True, input=stdin, text=True, stdout=subprocess.DEVNULL)


def main(arguments: list[str]) -> None:
    compiled(
        DEV, "pyproject.toml", "--all-extras", "--group", "dev", "--group", "bench", upgrade="--upgrade" in arguments
    )
    compiled("requirements/base.txt", "pyproject.toml", "--constraints", DEV, upgrade=True)
    compiled("requirements/demo.txt", "pyproject.toml", "--group", "build", "--constraints", DEV, upgrade=True)
    compiled("requirements/docs.txt", "--group", "docs", "--constraints", DEV, upgrade="--upgrade" in arguments)
    compiled("requirements/uv.txt", "-", "--constraints", DEV, stdin="uv\n", upgrade=True)


if __name__ == "__main__":
    main(sys.argv[1:])
