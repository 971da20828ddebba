"""Run the benchmarks: `bench/run.py`, with its options."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> int:
    return subprocess.run(
        [sys.executable, str(ROOT / "bench" / "run.py"), *arguments], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
