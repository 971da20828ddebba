"""Laws of bounded queues: a session accepts inputs up to its limit exactly, and nothing accepted is lost."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from perdure.commit.changes import Intervention
from perdure.errors import Code, Error
from perdure.ids import StreamId, Tenant
from perdure.inbox.admit import Admitted, Delivery, Duplicate, Room, Waiting, delivery
from perdure.inbox.items import Wake
from perdure.testing.laws.bench import ANN, Bench, enlist, said, stream_of, take
from perdure.testing.laws.blobs import PICTURE

MANY = 1_000_000


def asked(stream: StreamId, text: str, *, inputs: int = MANY, size: int = MANY) -> Delivery:
    """Return an input for a queue with a limit."""
    return replace(said(stream, text), room=Room(inputs, size))


async def waiting(bench: Bench, stream: StreamId) -> list[str]:
    """Return the keys of the queued rows."""
    return [row.source_key for row in await bench.store.inbox(stream)]


class RoomLaws:
    """Laws of limited queues."""

    async def test_input_without_room_is_refused_and_writes_nothing(self, bench: Bench) -> None:
        stream = stream_of("one")
        for text in "ab":
            assert isinstance(await bench.store.admit(asked(stream, text, inputs=2)), Admitted)
        with pytest.raises(Error) as caught:
            await bench.store.admit(asked(stream, "c", inputs=2))
        assert caught.value.code is Code.QUEUE_FULL
        assert caught.value.retry == "later"
        assert await waiting(bench, stream) == ["key-a", "key-b"]
        # Nothing was written under its key: it is new when there is room.
        assert isinstance(await bench.store.admit(asked(stream, "c", inputs=3)), Admitted)

    async def test_room_is_counted_in_bytes_with_new_attachments(self, bench: Bench) -> None:
        tenant, sizes = Tenant("default"), list[int]()
        for name, blobs in (("one", ()), ("two", (PICTURE,))):  # as stored: with a codec, bytes are encoded
            before = (await bench.store.waiting(tenant)).bytes
            await bench.store.admit(replace(asked(stream_of(name), "a"), blobs=blobs))
            sizes.append((await bench.store.waiting(tenant)).bytes - before)
        plain, shown = sizes
        assert shown >= plain + len(PICTURE.data)
        again = replace(said(stream_of("one"), "b"), blobs=(PICTURE,))
        with pytest.raises(Error) as caught:
            await bench.store.admit(replace(again, room=Room(MANY, plain + shown - 1)))
        assert caught.value.code is Code.QUEUE_FULL
        assert isinstance(await bench.store.admit(replace(again, room=Room(MANY, plain + shown))), Admitted)
        assert await bench.store.waiting(tenant) == Waiting(3, plain + 2 * shown)

    async def test_repeated_input_is_a_duplicate_in_a_full_queue(self, bench: Bench) -> None:
        stream = stream_of("one")
        await bench.store.admit(asked(stream, "a", inputs=1))
        assert isinstance(await bench.store.admit(asked(stream, "a", inputs=1)), Duplicate)

    async def test_consumed_input_makes_room(self, bench: Bench) -> None:
        stream = stream_of("one")
        await enlist(bench, ANN)
        await bench.store.admit(asked(stream, "a", inputs=1))
        hold = await take(bench.store, stream, ANN)
        (row,) = await bench.store.inbox(stream)
        await bench.store.append(hold.plan(consume=(row.id,)))
        assert isinstance(await bench.store.admit(asked(stream, "b", inputs=1)), Admitted)
        assert (await bench.store.waiting(Tenant("default"))).inputs == 1

    async def test_only_inputs_need_and_take_room(self, bench: Bench) -> None:
        stream = stream_of("one")
        await bench.store.admit(asked(stream, "a", inputs=1))
        for n in range(3):
            woken = replace(delivery(stream, f"wake:{n}", Wake(reason="test"), at=5), room=Room(1, 1))
            assert isinstance(await bench.store.admit(woken), Admitted)
        assert isinstance(await bench.store.admit(asked(stream, "b", inputs=2)), Admitted)

    async def test_intervention_without_room_changes_nothing(self, bench: Bench) -> None:
        stream = stream_of("one")
        await bench.store.admit(asked(stream, "a", inputs=1))
        with pytest.raises(Error) as caught:
            await bench.store.intervene(Intervention(stream, delivery=asked(stream, "b", inputs=1)))
        assert caught.value.code is Code.QUEUE_FULL
        assert await waiting(bench, stream) == ["key-a"]

    async def test_concurrent_senders_fill_a_queue_exactly(self, bench: Bench) -> None:
        stream, others = stream_of("one"), [await bench.reopen() for _ in range(3)]
        await bench.store.admit(said(stream, "first"))
        stores = [bench.store, *others]

        async def send(n: int) -> bool:
            new = replace(said(stream, f"n{n}", agent=None), room=Room(10, MANY))
            if n % 3 == 0:  # with bytes, an input is admitted in a transaction of its own
                new = replace(new, blobs=(PICTURE,))
            try:
                return isinstance(await stores[n % 4].admit(new), Admitted)
            except Error as refusal:
                if refusal.code is not Code.QUEUE_FULL:
                    raise
                return False

        accepted = await asyncio.gather(*(send(n) for n in range(60)))
        assert sum(accepted) == 9
        assert len(await waiting(bench, stream)) == 10

    async def test_queues_of_a_tenant_are_counted_together(self, bench: Bench) -> None:
        for name in ("one", "two"):
            await bench.store.admit(said(stream_of(name), "a"))
            await bench.store.admit(delivery(stream_of(name), "w", Wake(reason="test"), at=5))
        assert (await bench.store.waiting(Tenant("default"))).inputs == 2
        assert await bench.store.waiting(Tenant("other")) == Waiting()
