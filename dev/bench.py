"""Run every `bench/bench_*.py` in its own process, or only those whose name contains an argument."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(wanted: list[str]) -> int:
    scripts = sorted((ROOT / "bench").glob("bench_*.py"))
    chosen = [script for script in scripts if not wanted or any(word in script.stem for word in wanted)]
    if not chosen:
        print("no benchmarks" + (f" match {' '.join(wanted)}" if wanted else " yet: add bench/bench_<what>.py"))
        return 1 if wanted else 0
    codes = [subprocess.run([sys.executable, str(script)], cwd=ROOT, check=False).returncode for script in chosen]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
