"""What a session's turn says while it runs, on its way to observers: not before every fact before it is durable."""

from __future__ import annotations

from collections.abc import Callable

from perdure.ids import EffectId, Fence, Seq, StreamId
from perdure.observe.events import Cursor, Delta, Live
from perdure.observe.hub import QUEUE_LIMIT
from perdure.observe.live import Audience, LiveEmitter
from perdure.runtime.shared import Shared
from perdure.runtime.worker.owned import OwnedStream
from perdure.store.live import Piece
from perdure.turn.state import Turn


class LivePieces:
    """What models and tools say in one owned stream; `at` is the seq that they stand behind."""

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
        self.emitter = LiveEmitter(Audience(self._watched, self._tell, self._missed))

    def on_delta(self, turn: Turn, effect: EffectId, text: str, thinking: bool) -> None:
        """A model wrote something."""
        offset = self._offsets.get(effect, 0) + len(text)
        self._offsets[effect] = offset
        self._tell(Delta(Cursor(self._at(), effect, offset, self._fence), turn.id, effect, text, thinking))

    def facts_are_durable(self) -> None:
        """Something became durable: if everything is, what was held back may leave."""
        if self._held_back and self._owned.settled:
            pieces, self._held_back = self._held_back, []
            self._publish(*pieces)

    def turn_is_over(self) -> None:
        """No model of it writes any more."""
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
            if isinstance(piece, Delta):
                at, start = piece.cursor, piece.cursor.offset - len(piece.text)
                self._shared.texts.say(
                    Piece(self._stream, piece.turn, piece.effect, at.run, at.seq, start, piece.text, piece.thinking)
                )
        self._shared.hub.publish(self._stream, *pieces)

    def _missed(self, count: int) -> None:
        self._shared.hub.miss(self._stream, count)
