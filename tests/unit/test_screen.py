"""Tables on terminals that are too narrow for them."""

from __future__ import annotations

from datetime import datetime

import pytest
from rich.console import Console

from perdure.cli import screen
from perdure.cli.screen import Column, clock, due, table

WHOLE = ("nightly-2026-11-16-with-a-long-name", "waiting", "2 h ago")
ROW = (*WHOLE, "python:nightly_reconciliation_of_accounts", "signal:approved:1, sleep:until tomorrow morning")
COLUMNS = [
    *(Column("ID"), Column("STATUS"), Column("SINCE")),
    *(Column("RUNS", gives=True), Column("WAITS FOR", gives=True)),
]


def drawn(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    def of_that_width(*, stderr: bool = False) -> Console:
        return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)

    monkeypatch.setattr(screen, "console", of_that_width)
    table(COLUMNS, [ROW])
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_only_what_gives_is_cut_the_last_one_first(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    title, line = drawn(width, monkeypatch, capsys)
    assert all(text in line for text in WHOLE), "text to be typed again is whole"
    assert all(column.title in title for column in COLUMNS), "and no column is missing"
    needed = sum(len(text) + 2 for text in WHOLE) + 2 * 12
    assert len(line) <= max(width, needed)
    assert (ROW[3] in line) or line.endswith("…"), "the last one is cut before the one before it"
    assert (ROW[4] in line) == (width == 160)


def test_due_time_has_a_date_unless_it_is_today() -> None:
    noon = int(datetime(2026, 3, 4, 12).astimezone().timestamp() * 1000)
    assert due(noon + 1, noon) == clock(noon)
    assert due(noon + 3 * 86_400_000, noon) == "2026-03-07 12:00:00"
