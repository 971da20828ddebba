"""The conversation of a session as its model is shown it, kept turn by turn so that a turn costs what is new."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perdure.ids import Seq
from perdure.session.view import Conversation, TurnView, turn_view
from perdure.vocab.messages import Message
from perdure.vocab.records import Record, Row, TurnEnded, TurnOpened


@dataclass(frozen=True, slots=True)
class ClosedTurn:
    """A turn that is over."""

    index: int
    first_seq: Seq
    view: TurnView
    size_bytes: int


class Transcript:
    """The turns a model may be shown, and the records of the turn that is open."""

    def __init__(self) -> None:
        self._closed: list[ClosedTurn] = []
        self._conversation = Conversation()
        self.open: list[Record] = []
        self._open_seq: Seq | None = None
        self._open_index = 0

    def add(self, seq: Seq, record: Record) -> None:
        """Take the next record of the session, in order."""
        if self._open_seq is None:
            self._open_seq = seq
        if isinstance(record, TurnOpened):
            self._open_index = record.index
        self.open.append(record)
        if isinstance(record, TurnEnded):
            self._close()

    def _close(self) -> None:
        view = turn_view(self.open)
        self._closed.append(ClosedTurn(self._open_index, self._open_seq or Seq(0), view, view.size_bytes))
        self._conversation.add(view)
        self.open = []
        self._open_seq = None

    def window(self, budget_bytes: int) -> tuple[int | None, Seq | None]:
        """Forget the oldest turns beyond the budget; the first one left and where it begins."""
        total = 0
        keep = len(self._closed)
        if keep and self._closed[-1].view.carried:
            keep -= 1  # whatever its size: the next turn must tell what it carries
        while keep and total + self._closed[keep - 1].size_bytes <= budget_bytes:
            keep -= 1
            total += self._closed[keep].size_bytes
        self._forget(keep)
        return (self._closed[0].index, self._closed[0].first_seq) if self._closed else (None, None)

    def begin_at(self, turn: int) -> None:
        """Show nothing older than this turn: what a turn was shown when it began, it is shown until it ends."""
        self._forget(sum(closed.index < turn for closed in self._closed))

    def _forget(self, count: int) -> None:
        if count:
            self._closed = self._closed[count:]
            self._conversation = Conversation(turn.view for turn in self._closed)

    @property
    def first_seq(self) -> Seq | None:
        """Where the oldest turn that is shown begins."""
        return self._closed[0].first_seq if self._closed else None

    def read_again(self, rows: Iterable[Row]) -> None:
        """What closed turns say has changed in the log: these are their records, from `first_seq` on."""
        fresh = Transcript()
        for row in rows:
            fresh.add(row.seq, row.record)
        self._closed = fresh._closed
        self._conversation = fresh._conversation

    def messages(self, records: Iterable[Record]) -> tuple[Message, ...]:
        """Everything shown, ending with the turn that these records tell of."""
        return self._conversation.with_turn(turn_view(records))
