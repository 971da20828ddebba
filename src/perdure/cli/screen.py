"""Output of commands: tables for people, one JSON object per line for programs. Data on stdout, the rest on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from perdure.vocab.invisible import one_line_json, spelled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red", "dim": "dim", "doubt": "yellow", "": ""}
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_PROSE = "\n\t\u200c\u200d"
"""The invisible characters that prose needs: lines, and the joiners of several scripts and of pictures."""
_WIDE = 10_000
_GAP = 2
_LEAST = 12


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    On a narrow terminal the column takes its `short` title. Columns with `gives` are truncated, the last one first.
    Ids and other text that users retype or search for are never truncated.
    """

    title: str
    short: str = ""
    right: bool = False
    gives: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """The text and tone of one table cell."""

    text: str
    tone: str = ""


def plain(text: str) -> str:
    """Return text of several lines without terminal controls, and with other invisible characters spelled out."""
    return spelled(text.translate(_CONTROLS), keep=_PROSE)


def in_line(text: str) -> str:
    """Escape foreign text for use inside one line, so that it cannot forge lines of our output.

    Line ends, terminal controls, bidirectional controls and all other invisible characters are spelled out.
    """
    return spelled(text)  # threat: S20


def one_line(text: str, limit: int = 60) -> str:
    """Return the head of a text on one line."""
    flat = " ".join(plain(text).split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 turn`, `2 turns`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def console(*, stderr: bool = False) -> Console:
    """Return a console without markup and highlighting, which never wraps piped output."""
    from rich.console import Console

    file = sys.stderr if stderr else sys.stdout
    width = None if file.isatty() else _WIDE
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)


def say(text: str = "", tone: str = "") -> None:
    """Print a line of data to stdout."""
    if tone and sys.stdout.isatty():
        console().print(in_line(text), style=COLOURS[tone])
    else:
        print(in_line(text), flush=True)


def note(text: str) -> None:
    """Print a line for the user to stderr."""
    print(in_line(text), file=sys.stderr, flush=True)


def table(columns: Sequence[Column], rows: Iterable[Sequence[str | Cell]]) -> None:
    """Print rows in aligned columns, without borders.

    On a narrow terminal the columns with `gives` are truncated. If that is not enough, lines exceed its width.
    """
    from rich.table import Table

    screen = console()
    cells = [[_cell(cell) for cell in row] for row in rows]
    titles = [column.title for column in columns]
    widths = _widths(titles, cells)
    if sum(widths) > screen.width:
        titles = [column.short or column.title for column in columns]
        widths = _widths(titles, cells)
    rooms = _rooms(columns, widths, screen.width)
    grid = Table(
        box=None,
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
        header_style="dim",
        show_header=any(titles),
        width=sum(rooms) - _GAP,  # otherwise rich squeezes each column
    )
    for column, title, room in zip(columns, titles, rooms, strict=True):
        grid.add_column(
            title,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=room - _GAP,
        )
    for row in cells:
        grid.add_row(*(_styled(cell) for cell in row))
    _print_table(grid, screen)


def _widths(titles: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[int]:
    from rich.cells import cell_len

    return [
        max([cell_len(title), *(cell_len(row[index].text) for row in rows)]) + _GAP
        for index, title in enumerate(titles)
    ]


def _rooms(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """Return the column widths for a terminal of this width."""
    over, rooms = max(0, sum(widths) - _GAP - width), list(widths)
    for index in reversed([index for index, column in enumerate(columns) if column.gives]):
        rooms[index] = min(widths[index], max(_LEAST, widths[index] - over))
        over -= widths[index] - rooms[index]
    return rooms


def _print_table(grid: Table, screen: Console) -> None:
    with screen.capture() as captured:
        screen.print(grid, soft_wrap=False, crop=False)
    for line in captured.get().splitlines():
        print(line.rstrip())


def _cell(cell: str | Cell) -> Cell:
    return Cell(in_line(cell.text), cell.tone) if isinstance(cell, Cell) else Cell(in_line(cell))


def _styled(cell: Cell) -> Text:
    from rich.text import Text

    return Text(cell.text, style=COLOURS[cell.tone])


def emit(**fields: object) -> None:
    """Print one JSON object on one line. Invisible characters are escaped, as JSON permits."""
    from perdure.codec import encode

    print(one_line_json(encode(fields).decode()), flush=True)  # threat: S20


# --- time ---------------------------------------------------------------------------------------------------------


def utc(at_ms: int) -> str:
    """Format a time for programs: RFC 3339, UTC, milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(at_ms: int) -> str:
    """Format a time for people: the local time of day."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().strftime("%H:%M:%S")


def due(at_ms: int, now_ms: int | None = None) -> str:
    """Format a due time for people: the local time of day, after the date unless that is today."""
    from perdure.runtime.clock import SystemClock

    at = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone()
    now = datetime.fromtimestamp((SystemClock().wall_ms() if now_ms is None else now_ms) / 1000, UTC).astimezone()
    return clock(at_ms) if at.date() == now.date() else f"{at:%Y-%m-%d} {clock(at_ms)}"


def took(ms: int | None) -> str:
    """Format a duration in a readable unit."""
    if ms is None:
        return "-"
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes} m {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} m" if hours < 48 else f"{hours // 24} d"


def ago(at_ms: int, now_ms: int) -> str:
    """Format the time since an event."""
    return "now" if now_ms - at_ms < 1000 else f"{took(now_ms - at_ms)} ago"
