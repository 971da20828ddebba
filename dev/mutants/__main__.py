"""`make mutants`: run all of them, a few at a time; some, by a part of their name; or a commit's share of them."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from dev.mutants import MUTANTS
from dev.mutants.bench import Bench
from dev.mutants.mutant import Mutant

AT_ONCE = 4  # one in ten hangs until it is given up
SHARES = 2
VERDICTS = ("killed", "SURVIVED", "BROKEN", "STALE")


@dataclass(frozen=True)
class Tried:
    """A mutant, and what became of it."""

    mutant: Mutant
    verdict: str
    output: str
    seconds: float


def main() -> int:
    """Try the chosen mutants; the number that were not killed is the exit code."""
    asked = argparse.ArgumentParser(prog="make mutants")
    asked.add_argument("words", nargs="*", help="only those whose name contains this")
    asked.add_argument("--share-of", metavar="COMMIT", help=f"only the one in {SHARES} that this commit runs")
    options = asked.parse_args()
    chosen = [mutant for mutant in MUTANTS if " ".join(options.words) in mutant.name]
    if options.share_of:
        chosen = [mutant for mutant in chosen if share(mutant.name) == share(options.share_of)]
    survivors = 0
    for tried in try_all(chosen):
        if tried.verdict == "BROKEN":
            print(tried.output[-4000:])
        survivors += tried.verdict != "killed"
        print(f"{tried.verdict:9} {tried.seconds:4.0f} s  {tried.mutant.name}\n{'':18}{tried.mutant.test}", flush=True)
    print(f"{len(chosen) - survivors} passed, {survivors} failed")
    return min(survivors, 99) if chosen else 1


def share(text: str) -> int:
    """Which of the shares a mutant or a commit has."""
    return int(sha256(text.encode()).hexdigest(), 16) % SHARES


def try_all(mutants: Sequence[Mutant]) -> Iterator[Tried]:
    """Try them, as many at a time as there are benches, each in a process of its own."""
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
