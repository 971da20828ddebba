"""Medians and spreads of many runs, and the ratio of Perdure to each candidate in the same round."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

OURS = "perdure"
COMPARED = {"per_s": 1, "all_done_s": -1, "wake_all_s": -1}  # 1: more is better; -1: less is better
LEFT_OUT = {"round", "work", "name", "items", "error"}

Run = dict[str, Any]


def report(runs: Iterable[Run]) -> Iterator[str]:
    """Yield a table for each workload."""
    known = list(runs)
    for work in dict.fromkeys(run["work"] for run in known):
        mine = [run for run in known if run["work"] == work]
        columns = list(dict.fromkeys(key for run in mine for key in run if key not in LEFT_OUT))
        yield f"\n## {work}\n"
        yield "| | runs | " + " | ".join(columns) + " | speed of perdure relative to it |"
        yield "|---" * (len(columns) + 3) + "|"
        for name in dict.fromkeys(run["name"] for run in mine):
            of_it = [run for run in mine if run["name"] == name]
            cells = [_cell([run[column] for run in of_it if column in run]) for column in columns]
            yield f"| {name} | {len(of_it)} | " + " | ".join(cells) + f" | {_ratio(mine, name)} |"
        yield from (f"{run['name']}: {run['error']}" for run in mine if "error" in run)


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    middle = f"{median(values):,.4g}"
    return middle if len(set(values)) == 1 else f"{middle} ({min(values):,.4g}-{max(values):,.4g})"


def _ratio(runs: list[Run], name: str) -> str:
    """Return the median of the ratios within each round, and their spread."""
    if name == OURS:
        return ""
    for column, better in COMPARED.items():
        if ratios := [ratio**better for ratio in _ratios(runs, name, column)]:
            return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    return ""


def _ratios(runs: list[Run], name: str, column: str) -> list[float]:
    """Return the ratio of Perdure to a candidate in each round that has both."""
    ours = {run["round"]: run[column] for run in runs if run["name"] == OURS and run.get(column)}
    theirs = {run["round"]: run[column] for run in runs if run["name"] == name and run.get(column)}
    return [ours[number] / theirs[number] for number in ours.keys() & theirs.keys()]


def middle_ratio(runs: list[Run], name: str, column: str) -> float | None:
    """Return the median ratio of Perdure to a candidate, or None without a round that has both."""
    ratios = _ratios(runs, name, column)
    return median(ratios) if ratios else None


def middle_of(runs: list[Run], name: str, column: str) -> float | None:
    """Return the median of one candidate's numbers, or None without any."""
    values = [run[column] for run in runs if run["name"] == name and column in run]
    return median(values) if values else None


if __name__ == "__main__":
    from bars import ON_POSTGRES, ON_SQLITE, bars

    parser = argparse.ArgumentParser(description="Print the tables and bars of recorded runs.")
    parser.add_argument("files", nargs="+", type=Path, help="files that bench/run.py --out has written")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite", help="store of the runs")
    chosen = parser.parse_args()
    recorded = [json.loads(line) for path in chosen.files for line in path.read_text().splitlines()]
    wanted = ON_SQLITE if chosen.store == "sqlite" else ON_POSTGRES
    print("\n".join((*report(recorded), *bars(recorded, wanted))))
