"""Progress and output of running tools: in order, joined, bounded, from any thread."""

from __future__ import annotations

import asyncio

import pytest

from perdure.ids import CallId, EffectId, SessionId, TurnId
from perdure.observe.emit import EventContext, EventData, EventRequest, ToolOutputDeltaData, ToolProgressData
from perdure.observe.events import Live, ToolOutputDelta, ToolProgress
from perdure.observe.live import INTERVAL_S, MAX_PIECE_CHARS, MAX_WAITING, LiveEmitter, ProgressSink

WHERE = EventContext(turn_id=TurnId("t1"), exec_id=EffectId("c1.0.1"))
CALL = CallId("t1.1.0")


class Room:
    def __init__(self, *, empty: bool = False) -> None:
        self.heard: list[Live] = []
        self.lost = 0
        self.tellings = 0
        self.empty = empty

    def emitter(self) -> LiveEmitter:
        return LiveEmitter(ProgressSink(lambda: not self.empty, self.heard.append, self._miss))

    def _miss(self, count: int) -> None:
        self.lost += count

    @property
    def texts(self) -> list[str]:
        return [one.message if isinstance(one, ToolProgress) else getattr(one, "text", "") for one in self.heard]


def request(data: EventData) -> EventRequest:
    return EventRequest(SessionId("s1"), WHERE, data)


def progress(message: str) -> EventRequest:
    return request(ToolProgressData(CALL, "build", message))


def output(text: str, stream: str = "stdout") -> EventRequest:
    return request(ToolOutputDeltaData(CALL, "build", text, stream))


async def test_events_carry_turn_effect_call_and_tool() -> None:
    room = Room()
    emitter = room.emitter()
    event = emitter.emit(progress("half"))
    emitter.emit(output("cc", "stderr"))
    assert (event.type, event.sequence) == ("tool.progress", 0)
    assert room.heard == [], "emitting only takes; the loop tells"
    await asyncio.sleep(0.01)
    first, second = room.heard
    assert isinstance(first, ToolProgress)
    assert (first.turn, first.effect, first.call, first.tool) == ("t1", "c1.0.1", CALL, "build")
    assert isinstance(second, ToolOutputDelta)
    assert (second.text, second.stream) == ("cc", "stderr")


async def test_output_of_one_stream_is_joined_and_order_is_kept() -> None:
    room = Room()
    emitter = room.emitter()
    for item in (output("a"), output("b"), output("!", "stderr"), output("c"), progress("half"), output("d")):
        emitter.emit(item)
    emitter.flush()
    assert room.texts == ["ab", "!", "c", "half", "d"]


async def test_unencodable_text_is_replaced() -> None:
    room = Room()
    emitter = room.emitter()
    emitter.emit(progress("half\ud800"))
    emitter.emit(output("out\udcff"))
    emitter.flush()
    assert room.texts == ["half?", "out?"]


async def test_a_long_piece_is_split_and_nothing_of_it_lost() -> None:
    room = Room()
    emitter = room.emitter()
    text = "".join(chr(97 + index % 26) for index in range(3 * MAX_PIECE_CHARS + 5))
    emitter.emit(output(text))
    emitter.emit(output("end"))
    emitter.flush()
    assert "".join(room.texts) == f"{text}end"
    assert all(len(text) <= MAX_PIECE_CHARS for text in room.texts)


async def test_too_much_drops_the_oldest_and_says_how_much() -> None:
    room = Room()
    emitter = room.emitter()
    for number in range(MAX_WAITING + 7):
        emitter.emit(progress(str(number)))
    emitter.flush()
    assert room.lost == 7
    assert (len(room.heard), room.texts[0], room.texts[-1]) == (MAX_WAITING, "7", str(MAX_WAITING + 6))


async def test_the_loop_is_bothered_once_per_interval() -> None:
    room = Room()
    emitter = room.emitter()
    emitter.emit(progress("first"))
    await asyncio.sleep(0.01)
    assert room.texts == ["first"], "the first does not wait"
    emitter.emit(progress("second"))
    await asyncio.sleep(0)
    assert room.texts == ["first"], "the next one does"
    await asyncio.sleep(INTERVAL_S * 2)
    assert room.texts == ["first", "second"]


async def test_nothing_is_kept_for_an_empty_room() -> None:
    room = Room(empty=True)
    emitter = room.emitter()
    emitter.emit(progress("hello?"))
    room.empty = False
    emitter.flush()
    assert room.heard == []


async def test_threads_may_speak_at_once() -> None:
    room = Room()
    emitter = room.emitter()

    def speak() -> None:
        for number in range(50):
            emitter.emit(progress(str(number)))

    await asyncio.gather(*(asyncio.to_thread(speak) for _ in range(4)))
    emitter.flush()
    assert len(room.heard) + room.lost == 200


def test_a_closed_loop_is_an_error_of_the_emitter_not_a_hang() -> None:
    room = Room()

    async def make() -> LiveEmitter:
        return room.emitter()

    emitter = asyncio.run(make())
    with pytest.raises(RuntimeError):
        emitter.emit(progress("too late"))
