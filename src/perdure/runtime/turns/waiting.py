"""What waits in the inbox of a session: which input opens the next turn, and which ones the running turn takes in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from perdure.ids import InputId, TurnId
from perdure.inbox.admit import admitted
from perdure.inbox.items import Input
from perdure.store.shapes import InboxRow
from perdure.turn.state import Turn
from perdure.vocab.records import CancelRequested, InputAdmitted, Record

MAX_JOINING = 64
"""How many inputs a turn takes in at once; the rest waits for the next time."""


@dataclass(frozen=True, slots=True)
class Joining:
    """An input that a running turn takes in: its row, the turn it had asked for, and what the log says of it."""

    row: int
    asked_for: TurnId
    said: InputAdmitted


class Waiting:
    """The inbox as it was last read, without what was taken since: rows whose removal may not be durable yet."""

    def __init__(self) -> None:
        self._rows: tuple[InboxRow, ...] = ()
        self._taken: set[int] = set()
        self._asked_for: dict[InputId, TurnId] = {}
        self._cancelled: set[TurnId] = set()

    def see(self, rows: Iterable[InboxRow]) -> None:
        """The inbox, read again."""
        self._rows = tuple(row for row in rows if row.id not in self._taken)

    def take(self, row: InboxRow) -> bool:
        """Count a row as taken; False if it was before."""
        if row.id in self._taken:
            return False
        self._taken.add(row.id)
        return True

    def settled(self) -> None:
        """Everything that was taken is gone from the store as well."""
        self._taken.clear()

    def joined(self, record: Record) -> TurnId | None:
        """The turn that an input had asked for which has durably joined another: it will never be."""
        return self._asked_for.pop(record.input, None) if isinstance(record, InputAdmitted) and record.joins else None

    def _inputs(self, mode: str) -> Iterator[tuple[InboxRow, Input]]:
        for row in self._rows:
            item = row.item
            if isinstance(item, Input) and item.mode == mode and row.id not in self._taken:
                yield row, item

    def line(self) -> Iterator[tuple[InboxRow, Input]]:
        """In the order in which they would open turns: interruptions, then the oldest input. Steering goes into
        whatever opens."""
        return (one for mode in ("interrupt", "queue", "steer") for one in self._inputs(mode))

    def first(self) -> tuple[InboxRow, Input] | None:
        """What opens the next turn."""
        return next(self.line(), None)

    def interruption(self, turn: Turn) -> CancelRequested | None:
        """The request that ends a turn in favour of an input that interrupts it."""
        for _, item in self._inputs("interrupt"):
            return interrupting(item, turn.id)
        return None

    def asks_for(self, turn: TurnId) -> bool:
        """Whether an input waits that has asked for this turn."""
        return any(isinstance(row.item, Input) and row.item.turn == turn for row in self._rows)

    def cancel(self, turn: TurnId) -> None:
        """Somebody asked for a turn to end; perhaps one that an input has asked for which waits."""
        self._cancelled.add(turn)

    def joining(self, turn: Turn, opener: InputAdmitted | None, *, together: bool) -> list[Joining]:
        """What the turn takes in before its model is asked: steering; and, at its beginning, what is drained together
        with the input that opened it, up to the first one that asks for something else: none overtakes another. They
        count as taken. What was cancelled while it waited is left alone: it gets the turn it had asked for, which ends
        at once.
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


def opener_of(turn: Turn, records: Iterable[Record]) -> InputAdmitted | None:
    """The input that opened a turn, among its records."""
    inputs = (one for one in records if isinstance(one, InputAdmitted))
    return next((one for one in inputs if one.turn == turn.id and not one.joins), None)


def _asks_for(said: Input | InputAdmitted) -> tuple[object, ...]:
    """What holds for a whole turn: inputs that differ in it cannot share one."""
    return said.model, said.plugin_input, said.output


def interrupting(item: Input, turn: TurnId) -> CancelRequested:
    """An input's request to end the running turn."""
    return CancelRequested(
        turn=turn,
        request=item.input,
        origin=item.source,
        reason="interrupted by a newer input",
        superseded_by=item.input,
    )
