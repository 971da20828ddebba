"""First speed reading: W1a, W1b and W2a against the bare loop, interleaved in rounds. Compare ratios, not times.

make bench          or      python bench/bench_kernel.py --rounds 5 --dir /some/disk
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from workloads import WORKLOADS, Measured


def main() -> None:
    """Run the rounds and print medians and spreads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path(), help="a folder on the disk to measure")
    options = parser.parse_args()
    runs: dict[str, list[tuple[Measured, Measured]]] = {name: [] for name in WORKLOADS}
    for _ in range(options.rounds):
        for name, (ours, raw) in WORKLOADS.items():
            with tempfile.TemporaryDirectory(dir=options.dir) as folder:
                bare = asyncio.run(_measure(raw, folder))
                mine = asyncio.run(_measure(ours, folder))
                runs[name].append((mine, bare))
    print(f"{'':5} {'ours/s':>9} {'raw/s':>9} {'ratio (min-max)':>22} {'commits/item':>13} {'notes'}")
    for name, pairs in runs.items():
        _show(name, pairs)


async def _measure(run: object, folder: str) -> Measured:
    return await run(Path(folder))  # type: ignore[operator]


def _show(name: str, pairs: list[tuple[Measured, Measured]]) -> None:
    ratios = sorted(mine.per_s / bare.per_s for mine, bare in pairs)
    mine = sorted((mine for mine, _ in pairs), key=lambda m: m.per_s)[len(pairs) // 2]
    bare = sorted((bare for _, bare in pairs), key=lambda m: m.per_s)[len(pairs) // 2]
    spread = f"{ratios[len(ratios) // 2]:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    notes = ""
    if mine.awaited:
        growth = mine.late_ms / mine.early_ms if mine.early_ms else 0.0
        notes = f"awaited {mine.awaited / mine.items:.2f} a turn, late/early {growth:.2f}, {mine.stored_bytes} bytes"
    print(f"{name:5} {mine.per_s:9.0f} {bare.per_s:9.0f} {spread:>22} {mine.commits / mine.items:13.2f} {notes}")


if __name__ == "__main__":
    main()
