"""`make mutants`: run all mutants, those with a part of a name, or those of the checked-out change."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dev.mutants import MUTANTS, choice
from dev.mutants.bench import Bench
from dev.mutants.mutant import Mutant

AT_ONCE = 4  # one in ten hangs until its timeout
VERDICTS = ("killed", "SURVIVED", "BROKEN", "STALE")


@dataclass(frozen=True)
class Tried:
    """A mutant with its verdict."""

    mutant: Mutant
    verdict: str
    output: str
    seconds: float


def main() -> int:
    """Run the chosen mutants. The exit code is the number of mutants not killed."""
    asked = argparse.ArgumentParser(prog="make mutants")
    asked.add_argument("words", nargs="*", help="run only mutants whose name contains this")
    asked.add_argument("--of-change", action="store_true", help="run only mutants that the change affects, and a tenth")
    options = asked.parse_args()
    chosen = [mutant for mutant in MUTANTS if " ".join(options.words) in mutant.name]
    if options.of_change:
        chosen = choice.of_change(chosen)
    survivors = 0
    for tried in try_all(chosen):
        if tried.verdict == "BROKEN":
            print(tried.output[-4000:])
        survivors += tried.verdict != "killed"
        print(f"{tried.verdict:9} {tried.seconds:4.0f} s  {tried.mutant.name}\n{'':18}{tried.mutant.test}", flush=True)
    print(f"{len(chosen) - survivors} passed, {survivors} failed")
    return min(survivors, 99) if chosen else 1


def try_all(mutants: Sequence[Mutant]) -> Iterator[Tried]:
    """Run mutants, one per bench at a time, each in a separate process."""
    with tempfile.TemporaryDirectory(prefix="perdure-mutants-") as folder:
        idle = [Bench(Path(folder, str(n))) for n in range(AT_ONCE)]
        busy: dict[int, tuple[Bench, Mutant, Path, float]] = {}
        left = list(reversed(mutants))
        while left or busy:
            while left and idle:
                bench, mutant = idle.pop(), left.pop()
                output = Path(folder, f"output-{len(left)}")
                busy[_begin(bench, mutant, output)] = (bench, mutant, output, time.monotonic())
            pid, status = os.wait()
            bench, mutant, output, since = busy.pop(pid)
            idle.append(bench)
            code = os.waitstatus_to_exitcode(status)
            verdict = VERDICTS[code] if 0 <= code < len(VERDICTS) else "BROKEN"
            said = output.read_text(errors="replace") if output.exists() else ""
            yield Tried(mutant, verdict, said, time.monotonic() - since)


def _begin(bench: Bench, mutant: Mutant, output: Path) -> int:
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    try:
        os._exit(VERDICTS.index(bench.judge(mutant, output)))
    finally:
        os._exit(len(VERDICTS))


if __name__ == "__main__":
    sys.exit(main())
