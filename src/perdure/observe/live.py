"""Bounded queue of live tool events for the observers of this process. Events are never stored.

Laws: `emit` returns at once, from any thread. The event loop runs at most once per `INTERVAL_S` for them, with at most
`MAX_WAITING` events. Surplus events are dropped, oldest first, and counted.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from perdure.ids import EffectId, TurnId
from perdure.observe.emit import EmittedEvent, EventRequest, ToolOutputDeltaData, ToolProgressData
from perdure.observe.events import Cursor, Live, ToolOutputDelta, ToolProgress

INTERVAL_S = 0.05
MAX_WAITING = 256
MAX_PIECE_CHARS = 8192


@dataclass(frozen=True, slots=True)
class ProgressSink:
    """Access to the observers of one stream: check for observers, publish an event, report dropped events."""

    listens: Callable[[], bool]
    publish: Callable[[Live], None]
    missed: Callable[[int], None]


class LiveEmitter:
    """Emitter for the tools of one session. Create it in the event loop of the observers."""

    def __init__(self, audience: ProgressSink) -> None:
        self._audience = audience
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: deque[Live] = deque()
        self._missed = 0
        self._taken = 0
        self._scheduled = False
        self._next_at = 0.0

    def emit(self, request: EventRequest) -> EmittedEvent:
        """Accept an event; without observers, drop it.

        Raises:
            RuntimeError: the event loop is closed.
        """
        wake = False
        with self._lock:
            self._taken += 1
            event = request.into_event(f"event_{request.context.turn_id or ''}.{self._taken}", 0)
            if self._audience.listens():
                for item in _live(request):
                    self._keep(item)
                wake, self._scheduled = not self._scheduled, True
        if wake:
            self._loop.call_soon_threadsafe(self._begin)
        return event

    def _keep(self, item: Live) -> None:
        last = self._waiting[-1] if self._waiting else None
        if (
            isinstance(item, ToolOutputDelta)
            and isinstance(last, ToolOutputDelta)
            and (last.call, last.effect, last.stream) == (item.call, item.effect, item.stream)
            and len(last.text) + len(item.text) <= MAX_PIECE_CHARS
        ):
            self._waiting[-1] = replace(last, text=last.text + item.text)
            return
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self._missed += 1
        self._waiting.append(item)

    def _begin(self) -> None:
        pause = self._next_at - self._loop.time()
        if pause > 0:
            self._loop.call_later(pause, self.flush)
        else:
            self.flush()

    def flush(self) -> None:
        """Publish the queued events. Call it in the event loop only, and at the end of a call."""
        self._next_at = self._loop.time() + INTERVAL_S
        with self._lock:
            self._scheduled = False
            waiting, self._waiting = self._waiting, deque[Live]()
            missed, self._missed = self._missed, 0
        if missed:
            self._audience.missed(missed)
        for item in waiting:
            self._audience.publish(item)


def _live(request: EventRequest) -> Iterator[Live]:
    turn, effect = request.context.turn_id or TurnId(""), request.context.exec_id or EffectId("")
    match request.data:
        case ToolProgressData(tool_call_id=call, tool_name=tool, message=message, display_name=shown):
            yield ToolProgress(Cursor(), turn, effect, call, tool, _clean(message[:MAX_PIECE_CHARS]), shown or "")
        case ToolOutputDeltaData(tool_call_id=call, tool_name=tool, delta=text, stream=stream):
            for start in range(0, len(text), MAX_PIECE_CHARS):
                piece = _clean(text[start : start + MAX_PIECE_CHARS])
                yield ToolOutputDelta(Cursor(), turn, effect, call, tool, piece, stream)


def _clean(text: str) -> str:
    # A lone surrogate cannot be encoded; the output of a tool must not break observers.
    return text.encode("utf-8", "replace").decode()
