"""The conversation as a model is shown it, kept turn by turn so that only new content costs work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perdure.ids import Seq
from perdure.session.view import Conversation, TurnView, turn_view
from perdure.tools.result_truncation import can_be_continued
from perdure.vocab.messages import File, ImagePart, Message, ToolResultPart
from perdure.vocab.records import EffectSettled, EffectStarted, Record, Row, TurnEnded, TurnOpened

_EFFECTS = (EffectStarted, EffectSettled)


@dataclass(frozen=True, slots=True)
class VisibleMessages:
    """The messages for a model. `refers`: some refer to stored bytes. `cut`: some contain only the head of a result."""

    messages: tuple[Message, ...]
    refers: bool
    cut: bool


@dataclass(frozen=True, slots=True)
class ClosedTurn:
    """A turn that has ended."""

    index: int
    first_seq: Seq
    view: TurnView
    size_bytes: int
    refers: bool
    cut: bool


class Transcript:
    """The turns that a model may be shown, and the records of the open turn."""

    def __init__(self) -> None:
        self._keep([])
        self.open: list[Record] = []
        self._open_seq: Seq | None = None
        self._open_index = 0

    def add(self, seq: Seq, record: Record) -> None:
        """Add the next record of the session, in order."""
        if self._open_seq is None:
            self._open_seq = seq
        self.open.append(record)
        if isinstance(record, _EFFECTS):  # the common case
            return
        if isinstance(record, TurnOpened):
            self._open_index = record.index
        elif isinstance(record, TurnEnded):
            self._close()

    def _close(self) -> None:
        view = turn_view(self.open)
        size = view.size_bytes
        closed = ClosedTurn(self._open_index, self._open_seq or Seq(0), view, size, _refers(view), _is_cut(view))
        self._closed.append(closed)
        self._conversation.add(view)
        self._size_bytes += size
        self._refers |= closed.refers
        self._cut |= closed.cut
        self.open = []
        self._open_seq = None

    def window(self, budget_bytes: int) -> tuple[int | None, Seq | None]:
        """Drop the oldest turns beyond the budget. Return the index and the first seq of the oldest turn left."""
        total = 0
        keep = len(self._closed) if self._size_bytes > budget_bytes else 0
        if keep and self._closed[-1].view.carried:
            keep -= 1  # kept whatever its size: the next turn must show what it carries
        while keep and total + self._closed[keep - 1].size_bytes <= budget_bytes:
            keep -= 1
            total += self._closed[keep].size_bytes
        self._forget(keep)
        return (self._closed[0].index, self._closed[0].first_seq) if self._closed else (None, None)

    def begin_at(self, turn: int) -> None:
        """Drop all turns before this one. A turn keeps the window that it began with."""
        self._forget(sum(closed.index < turn for closed in self._closed))

    def _forget(self, count: int) -> None:
        if count:
            self._keep(self._closed[count:])

    def _keep(self, closed: list[ClosedTurn]) -> None:
        """Set the closed turns that are shown, and their totals."""
        self._closed = closed
        self._conversation = Conversation(turn.view for turn in closed)
        self._size_bytes = sum(turn.size_bytes for turn in closed)
        self._refers = any(turn.refers for turn in closed)
        self._cut = any(turn.cut for turn in closed)

    @property
    def first_seq(self) -> Seq | None:
        """The first seq of the oldest shown turn, or None."""
        return self._closed[0].first_seq if self._closed else None

    def read_again(self, rows: Iterable[Row]) -> None:
        """Rebuild the closed turns, whose records have changed in the log. `rows` begin at `first_seq`."""
        fresh = Transcript()
        for row in rows:
            fresh.add(row.seq, row.record)
        self._keep(fresh._closed)

    def messages(self, records: Iterable[Record]) -> tuple[Message, ...]:
        """Return all messages for the model. `records` are those of the last turn."""
        return self.shown(records).messages

    def shown(self, records: Iterable[Record]) -> VisibleMessages:
        """Return the messages with the flags that need care. Only the new turn is scanned."""
        view = turn_view(records)
        messages = self._conversation.with_turn(view)
        return VisibleMessages(messages, self._refers or _refers(view), self._cut or _is_cut(view))


_BYTES = (ImagePart, File)


def _refers(view: TurnView) -> bool:
    return any(isinstance(part, _BYTES) for message in view.messages for part in message.parts)


def _is_cut(view: TurnView) -> bool:
    results = (part for message in view.messages for part in message.parts if isinstance(part, ToolResultPart))
    return any(can_be_continued(part.output) for part in results)
