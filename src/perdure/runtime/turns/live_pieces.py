"""Live output of a running turn on its way to observers. A piece leaves once all earlier facts are durable."""

from __future__ import annotations

from collections.abc import Callable

from perdure.ids import EffectId, Fence, Seq, StreamId
from perdure.observe.events import Cursor, Live, TextDelta
from perdure.observe.hub import QUEUE_LIMIT
from perdure.observe.live import LiveEmitter, ProgressSink
from perdure.runtime.shared import Shared
from perdure.runtime.worker.owned import OwnedStream
from perdure.store.live import Piece
from perdure.turn.state import Turn


class LivePieces:
    """The live pieces of one owned stream. `at` returns the seq that they follow."""

    def __init__(
        self, shared: Shared, stream: StreamId, fence: Fence, owned: OwnedStream, at: Callable[[], Seq]
    ) -> None:
        self._shared = shared
        self._stream = stream
        self._fence = fence
        self._owned = owned
        self._at = at
        self._held_back: list[Live] = []
        self._offsets: dict[EffectId, int] = {}
        self.emitter = LiveEmitter(ProgressSink(self._watched, self._tell, self._missed))

    def on_delta(self, turn: Turn, effect: EffectId, text: str, thinking: bool) -> None:
        """Publish text that a model wrote. A secret is masked at its length, because offsets count characters."""
        text = self._owned.redactor.masked(text)
        offset = self._offsets.get(effect, 0) + len(text)
        self._offsets[effect] = offset
        self._tell(TextDelta(Cursor(self._at(), effect, offset, self._fence), turn.id, effect, text, thinking))

    def facts_are_durable(self) -> None:
        """Publish the pieces that were held back, if all facts are durable."""
        if self._held_back and self._owned.settled:
            pieces, self._held_back = self._held_back, []
            self._publish(*pieces)

    def turn_is_over(self) -> None:
        """Forget the text offsets of a turn that stopped running."""
        self._offsets.clear()

    def _watched(self) -> bool:
        return self._shared.hub.watched(self._stream)

    def _tell(self, piece: Live) -> None:
        if self._owned.settled:
            self._publish(piece)
        elif len(self._held_back) < QUEUE_LIMIT:
            self._held_back.append(piece)
        else:
            self._missed(1)

    def _publish(self, *pieces: Live) -> None:
        for piece in pieces:
            if isinstance(piece, TextDelta):
                at, start = piece.cursor, piece.cursor.offset - len(piece.text)
                self._shared.texts.say(
                    Piece(self._stream, piece.turn, piece.effect, at.run, at.seq, start, piece.text, piece.thinking)
                )
        self._shared.hub.publish(self._stream, *pieces)

    def _missed(self, count: int) -> None:
        self._shared.hub.miss(self._stream, count)
