"""The inbox of a session: which input opens the next turn, and which inputs join the running one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from perdure.errors import Error
from perdure.ids import InputId, TurnId
from perdure.inbox.admit import admitted
from perdure.inbox.items import Input, Item
from perdure.offload import LARGE_BYTES, offload
from perdure.store.shapes import InboxRow
from perdure.turn.state import Turn
from perdure.vocab.records import CancelRequested, InputAdmitted, Record

MAX_JOINING = 64
"""Most inputs that join a turn at once. The rest stay in the inbox."""


@dataclass(frozen=True, slots=True)
class Joining:
    """An input that joins a running turn: its inbox row, the turn id it was sent with, and its admission record."""

    row: int
    asked_for: TurnId
    said: InputAdmitted


class InboxView:
    """The inbox as last read, without rows taken since: their removal may not be durable yet."""

    def __init__(self) -> None:
        self._rows: tuple[InboxRow, ...] = ()
        self._items: dict[int, Item] = {}
        self._taken: set[int] = set()
        self._asked_for: dict[InputId, TurnId] = {}
        self._cancelled: set[TurnId] = set()

    def see(self, rows: Iterable[InboxRow]) -> None:
        """Replace the rows with a new reading of the inbox."""
        self._rows = tuple(row for row in rows if row.id not in self._taken)
        self._items = {row.id: self._items[row.id] for row in self._rows if row.id in self._items}

    async def decode(self, rows: Iterable[InboxRow]) -> bool:
        """Decode large items in a thread, before `see`. Return True if other tasks ran, so that the rows may be old."""
        new = [row for row in rows if row.id not in self._items]
        if (size := sum(len(row.data) for row in new)) <= LARGE_BYTES:  # threat: T-TOOL-03
            return False
        self._items |= await offload(size, _decoded, new)
        return True

    def item(self, row: InboxRow) -> Item:
        """Return the item of a row, decoded once."""
        if row.id not in self._items:
            self._items[row.id] = row.item
        return self._items[row.id]

    def take(self, row: InboxRow) -> bool:
        """Mark a row as taken. Return False if it was taken before."""
        if row.id in self._taken:
            return False
        self._taken.add(row.id)
        return True

    def settled(self) -> None:
        """Forget the taken rows, because their removal is durable."""
        self._taken.clear()

    def joined(self, record: Record) -> TurnId | None:
        """Return the turn id of an input that durably joined another turn, or None.

        No turn with that id will be opened.
        """
        return self._asked_for.pop(record.input, None) if isinstance(record, InputAdmitted) and record.joins else None

    def _inputs(self, mode: str) -> Iterator[tuple[InboxRow, Input]]:
        for row in self._rows:
            item = self.item(row)
            if isinstance(item, Input) and item.mode == mode and row.id not in self._taken:
                yield row, item

    def line(self) -> Iterator[tuple[InboxRow, Input]]:
        """Return the waiting inputs in the order in which they open turns: interrupting, queued, then steering ones.

        Within a mode, the oldest comes first. Steering inputs join whatever turn opens.
        """
        return (one for mode in ("interrupt", "queue", "steer") for one in self._inputs(mode))

    def first(self) -> tuple[InboxRow, Input] | None:
        """Return the input that opens the next turn, or None."""
        return next(self.line(), None)

    def interruption(self, turn: Turn) -> CancelRequested | None:
        """Return the cancel request of the first waiting input that interrupts this turn, or None."""
        for _, item in self._inputs("interrupt"):
            return interrupting(item, turn.id)
        return None

    def asks_for(self, turn: TurnId) -> bool:
        """Return True if a waiting input was sent with this turn id."""
        return any(isinstance(item := self.item(row), Input) and item.turn == turn for row in self._rows)

    def cancel(self, turn: TurnId) -> None:
        """Remember a cancel request for a turn. A waiting input may have been sent with that turn id."""
        self._cancelled.add(turn)

    def joining(self, turn: Turn, opener: InputAdmitted | None, *, together: bool) -> list[Joining]:
        """Take the inputs that join the turn before its model call.

        Steering inputs join every time. With `together`, queued inputs join before the first call, up to the first one
        with other settings than the opener, so that none overtakes another. Cancelled inputs do not join: each opens
        its own turn, which ends at once.
        """
        found = list(self._inputs("steer"))
        if together and turn.iteration == 1 and opener is not None:
            alike = takewhile(lambda one: _asks_for(one[1]) == _asks_for(opener), self._inputs("queue"))
            found = sorted([*found, *alike], key=lambda one: one[0].id)
        found = [(row, item) for row, item in found if item.turn not in self._cancelled][:MAX_JOINING]
        for row, item in found:
            self.take(row)
            self._asked_for[item.input] = item.turn
        return [Joining(row.id, item.turn, admitted(item, turn.id)) for row, item in found]


def _decoded(rows: Iterable[InboxRow]) -> dict[int, Item]:
    """Return the items by row, without those that cannot be read: their first use raises."""
    found: dict[int, Item] = {}
    for row in rows:
        with suppress(Error):
            found[row.id] = row.item
    return found


def opener_of(turn: Turn, records: Iterable[Record]) -> InputAdmitted | None:
    """Return the input that opened the turn, from the turn's records, or None."""
    inputs = (one for one in records if isinstance(one, InputAdmitted))
    return next((one for one in inputs if one.turn == turn.id and not one.joins), None)


def _asks_for(said: Input | InputAdmitted) -> tuple[object, ...]:
    """Return the settings that apply to a whole turn. Inputs that differ in them cannot share one."""
    return said.model, said.plugin_input, said.output


def interrupting(item: Input, turn: TurnId) -> CancelRequested:
    """Return the request of an interrupting input to cancel the running turn."""
    return CancelRequested(
        turn=turn,
        request=item.input,
        origin=item.source,
        reason="interrupted by a newer input",
        superseded_by=item.input,
    )
