"""`make chaos`: a fleet under fire, and the verdict. `--seed N` replays the faults of an earlier run."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import Order, run


def _order() -> Order:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="which faults, and when")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long there is load (60)")
    parser.add_argument("--sessions", type=int, default=200, help="how many sessions (200)")
    parser.add_argument("--lease", type=float, default=2.0, help="how long a lease lasts, in seconds (2)")
    parser.add_argument("--store", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a run that went well")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="perdure-chaos-"))
    return Order(given.seed, given.seconds, given.sessions, given.lease, given.store, folder, keep=given.keep)


def main() -> int:
    """Run, tell, and clean up after what went well."""
    order = _order()
    report = asyncio.run(run(order, tell=lambda line: print(line, flush=True)))
    if report.problems or order.keep:
        print(f"what it left is in {order.folder}")
    else:
        shutil.rmtree(order.folder)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
