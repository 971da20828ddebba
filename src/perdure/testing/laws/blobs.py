"""Laws of blobs: bytes and reference are one transaction, and the last reference takes the bytes with it."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import pytest

from perdure.commit.plan import blob_of
from perdure.errors import Code, Error
from perdure.testing.laws.bench import Bench, held, note

PICTURE = blob_of(bytes(range(256)) * 40, "image/png")


class BlobLaws:
    """Laws of blobs."""

    async def test_bytes_are_read_as_they_were_written(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a"), blobs=(PICTURE,)))
        assert await (await bench.reopen()).blob(PICTURE.hash) == PICTURE

    async def test_missing_blob_is_reported_as_unknown(self, bench: Bench) -> None:
        with pytest.raises(Error) as caught:
            await bench.store.blob(PICTURE.hash)
        assert caught.value.code is Code.BLOB_UNKNOWN

    async def test_the_same_bytes_may_be_put_again(self, bench: Bench) -> None:
        one, two = await held(bench, "one"), await held(bench, "two")
        await bench.store.append(one.plan(blobs=(PICTURE, PICTURE)))
        await bench.store.append(one.plan(blobs=(PICTURE,)))
        await bench.store.append(two.plan(blobs=(PICTURE,)))
        assert await bench.store.blob(PICTURE.hash) == PICTURE

    async def test_a_stream_reads_only_what_it_holds_a_reference_to(self, bench: Bench) -> None:
        one, two = await held(bench, "one"), await held(bench, "two")
        await bench.store.append(one.plan(blobs=(PICTURE,)))
        assert await bench.store.blob(PICTURE.hash, stream=one.stream) == PICTURE
        with pytest.raises(Error) as caught:
            await bench.store.blob(PICTURE.hash, stream=two.stream)
        assert caught.value.code is Code.BLOB_UNKNOWN

    async def test_bytes_go_with_their_last_reference(self, bench: Bench) -> None:
        one, two = await held(bench, "one"), await held(bench, "two")
        await bench.store.append(one.plan(blobs=(PICTURE,)))
        await bench.store.append(two.plan(blobs=(PICTURE,)))
        await bench.store.delete(one.stream)
        assert await bench.store.blob(PICTURE.hash) == PICTURE
        await bench.store.delete(two.stream)
        with pytest.raises(Error) as caught:
            await bench.store.blob(PICTURE.hash)
        assert caught.value.code is Code.BLOB_UNKNOWN

    async def test_bytes_that_were_collected_can_be_put_again(self, bench: Bench) -> None:
        one = await held(bench, "one")
        await bench.store.append(one.plan(blobs=(PICTURE,)))
        await bench.store.delete(one.stream)
        two = await held(bench, "two")
        await bench.store.append(two.plan(blobs=(PICTURE,)))
        assert await bench.store.blob(PICTURE.hash) == PICTURE

    async def test_append_deletes_a_dropped_blob_without_other_references(self, bench: Bench) -> None:
        one, two = await held(bench, "one"), await held(bench, "two")
        await bench.store.append(one.plan(blobs=(PICTURE,)))
        await bench.store.append(two.plan(blobs=(PICTURE,)))
        letting_go = one.plan(note("a"), drops=(PICTURE.hash,))
        await bench.store.append(letting_go)
        with pytest.raises(Error, match="blob_unknown"):
            await bench.store.blob(PICTURE.hash, stream=one.stream)
        assert await bench.store.blob(PICTURE.hash, stream=two.stream) == PICTURE
        await bench.store.append(one.plan(note("b"), blobs=(PICTURE,)))
        assert (await bench.store.append(letting_go)).replayed
        assert await bench.store.blob(PICTURE.hash, stream=one.stream) == PICTURE, "a replayed plan drops nothing again"
        await bench.store.append(one.plan(drops=(PICTURE.hash,)))
        await bench.store.append(two.plan(drops=(PICTURE.hash,)))
        with pytest.raises(Error, match="blob_unknown"):
            await bench.store.blob(PICTURE.hash)

    async def test_a_refused_append_lets_nothing_go(self, bench: Bench) -> None:
        one = await held(bench, "one")
        await bench.store.append(one.plan(note("a", key="k"), blobs=(PICTURE,)))
        with pytest.raises(Error, match="gate_closed"):
            await bench.store.append(one.plan(note("b", key="k"), drops=(PICTURE.hash,)))
        assert await (await bench.reopen()).blob(PICTURE.hash, stream=one.stream) == PICTURE
