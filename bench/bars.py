"""Performance bars, and which of them a set of runs meets, by the median over its rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from report import OURS, Run, middle_of, middle_ratio


@dataclass(frozen=True, slots=True)
class Bar:
    """A bound on `column` of a workload, absolute or as a ratio to the candidate `beside`.

    With `workflows`, only runs with that many workflows count.
    """

    work: str
    column: str
    limit: float
    beside: str = ""
    at_most: bool = False
    is_aim: bool = False
    workflows: int | None = None

    def measured(self, runs: list[Run]) -> float | None:
        """Return the median of these runs, or None without a measurement."""
        mine = [run for run in runs if run["work"] == self.work]
        if self.workflows is not None:
            mine = [run for run in mine if run["name"] != OURS or run.get("waiting") == self.workflows]
        return middle_ratio(mine, self.beside, self.column) if self.beside else middle_of(mine, OURS, self.column)

    def line(self, value: float | None) -> str:
        """Return a row of the table."""
        what = f"{self.column} beside {self.beside}" if self.beside else self.column
        if self.workflows is not None:
            what += f" ({self.workflows:,})"
        wanted = f"{'aim, ' if self.is_aim else ''}at {'most' if self.at_most else 'least'} {self.limit:,g}"
        if value is None:
            return f"| {self.work} | {what} | {wanted} | | not measured |"
        met = value <= self.limit if self.at_most else value >= self.limit
        return f"| {self.work} | {what} | {wanted} | {value:,.4g} | {'met' if met else '**not met**'} |"


ON_SQLITE = (
    Bar("w1a", "per_s", 0.65, "raw"),
    Bar("w1a", "per_s", 0.6, "raw, in the loop", is_aim=True),
    Bar("w1a", "per_s", 4, "dbos"),
    Bar("w1a", "per_s", 4, "langgraph sync"),
    Bar("w1a", "per_s", 3, "restate"),
    Bar("w1a", "commits_each", 1.02, at_most=True),
    Bar("w1b", "per_s", 0.35, "raw"),
    Bar("w1b", "per_s", 25, "dbos"),
    Bar("w1b", "per_s", 5, "restate"),
    Bar("w1b", "commits_each", 0.1, at_most=True),
    Bar("w2a", "per_s", 3.5, "restate"),
    Bar("w2a", "per_s", 9, "langgraph sync"),
    Bar("w2a", "per_s", 14, "pydantic-ai on dbos"),
    Bar("w2a", "per_s", 0.4, "raw", is_aim=True),
    Bar("w2a", "growth", 1.3, at_most=True),
    Bar("w2a", "stored_for_turns", 600_000, at_most=True),
    Bar("w2b", "per_s", 3, "restate"),
    Bar("w2b", "per_s", 1, "pydantic-ai bare"),
    Bar("chat", "stored", 2_500_000, at_most=True),
    Bar("cold", "ratio", 2, at_most=True),
    Bar("w3", "added_mb", 3, at_most=True, workflows=5_000),
    Bar("w3", "added_mb", 10, at_most=True, workflows=50_000),
    Bar("w3", "idle_cpu", 0.01, at_most=True),
    Bar("w3", "wake_all_s", 10, "raw", at_most=True),
    Bar("w4", "all_done_s", 2, at_most=True),
    Bar("w4", "steps_missing", 0, at_most=True),
    Bar("w4", "steps_twice", 0, at_most=True),
    Bar("startup", "ratio", 1.5, at_most=True),
)

ON_POSTGRES = (
    Bar("w1a", "per_s", 0.5, "raw"),
    Bar("w1a", "per_s", 2, "absurd"),
    Bar("w1b", "per_s", 0.12, "raw"),
    Bar("w1b", "per_s", 5, "absurd"),
    Bar("w1b", "per_s", 4, "restate"),
    Bar("w2b", "per_s", 10, "pydantic-ai on dbos"),
    Bar("w5", "per_s", 1 / 1.6, "perdure, two workers", at_most=True),
)


def bars(runs: Iterable[Run], wanted: Iterable[Bar]) -> Iterator[str]:
    """Yield the bars of the workloads that ran: bound, median, and whether the bar is met."""
    known = list(runs)
    works = {run["work"] for run in known}
    judged = [(bar, bar.measured(known)) for bar in wanted if bar.work in works]
    yield "\n## bars\n"
    yield "| | what | wanted | median | |"
    yield "|---|---|---|---|---|"
    yield from (bar.line(value) for bar, value in judged)
