"""Laws of the side channel: it may lose anything and must never show wrong text."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

from msgspec.structs import replace

from perdure.ids import EffectId, Seq, TurnId
from perdure.store.live import KEPT_MS, Piece
from perdure.testing.laws.bench import Bench, open_stream, stream_of


def piece(
    text: str, start: int, *, run: int = 1, name: str = "one", effect: str = "m1.1", thinking: bool = False
) -> Piece:
    """Return a piece of a reply."""
    return Piece(stream_of(name), TurnId("t"), EffectId(effect), run, Seq(3), start, text, thinking=thinking)


class LiveLaws:
    """Laws of the side channel."""

    async def test_deltas_are_read_in_order_by_another_process(self, bench: Bench) -> None:
        hel, lo = replace(piece("Hel\u00e4\U0001f600", 0), thinking=True), piece('lo "quoted" \\ {x,y}', 5)
        await bench.store.live.put([lo], now=1)
        await bench.store.live.put([hel, piece("else", 0, name="two")], now=2)
        other = await bench.reopen()
        assert await other.live.read(stream_of("one")) == (hel, lo)
        assert await other.live.read(stream_of("three")) == ()

    async def test_deltas_of_an_ended_call_are_deleted_alone(self, bench: Bench) -> None:
        old, new = piece("old", 0), piece("new", 0, run=2)
        await bench.store.live.put([old, new, piece("else", 0, name="two")], now=1)
        await bench.store.live.put([], over=[(stream_of("one"), 1)], now=2)
        assert await bench.store.live.read(stream_of("one")) == (new,)
        next_call = piece("next", 0, run=2, effect="m2.1")
        await bench.store.live.put([next_call], over=[(stream_of("one"), 2)], now=3)
        assert await bench.store.live.read(stream_of("one")) == (next_call,)
        assert len(await bench.store.live.read(stream_of("two"))) == 1

    async def test_a_deleted_stream_leaves_nothing_there(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        await bench.store.live.put([piece("Hel", 0)], now=1)
        await bench.store.delete(stream)
        assert await bench.store.live.read(stream) == ()

    async def test_deltas_of_dead_workers_are_swept(self, bench: Bench) -> None:
        await bench.store.live.put([piece("left behind", 0)], now=1)
        await bench.store.live.put([piece("new", 0, name="two")], now=KEPT_MS + 2)
        assert await bench.store.live.read(stream_of("one")) == ()
        assert len(await bench.store.live.read(stream_of("two"))) == 1
