"""Deleted and redacted means gone: not in the file, not in its write-ahead log."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from perdure.commit.changes import Redaction
from perdure.commit.plan import Blob, Entry, blob_of
from perdure.ids import EffectId, InputId, Seq, TurnId, WorkerId
from perdure.inbox.admit import delivery
from perdure.inbox.items import Input
from perdure.store.live import Piece
from perdure.store.shapes import Claim
from perdure.store.sqlite import SqliteStore
from perdure.vocab.messages import Text
from perdure.vocab.records import CancelRequested, RecordRedacted, write
from tests.unit.store.parties import entry, opened, owned, plan, stream_named

ANN = WorkerId("ann")


def everywhere(path: Path) -> bytes:
    """All bytes that the store keeps on disk."""
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*") if file.is_file())


async def say(store: SqliteStore, name: str, text: str, *blobs: Blob) -> None:
    item = Input(input=InputId("i"), turn=TurnId("t"), parts=(Text(text=text),))
    new = delivery(stream_named(name), f"key-{len(text)}", item, at=1, agent="a")
    await store.admit(replace(new, blobs=blobs))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def busy(store: SqliteStore, claim: Claim, n: int, *, secret: str, rng: random.Random) -> None:
    """Appends of all sizes, some of which carry the secret."""
    size = rng.choice([10, 200, 1500, 5000, 20_000])
    text = (secret if n % 3 == 0 else "harmless") + "x" * size
    await store.append(plan(claim, ANN, n, entry(text)))


async def test_a_deleted_session_leaves_no_byte_behind(path: Path) -> None:
    rng = random.Random(7)
    store = await opened(path, ANN)
    secret, kept = await owned(store, "secret", ANN), await owned(store, "kept", ANN)
    await say(store, "secret", "MY-SECRET" * 3000, blob_of(b"MY-SECRET" * 9000, "text/plain"))
    await say(store, "secret", "MY-SECRET")
    for n in range(1, 120):
        await busy(store, secret, n, secret="MY-SECRET", rng=rng)
        await busy(store, kept, n, secret="PUBLIC", rng=rng)
    assert b"MY-SECRET" in everywhere(path)
    await store.delete(secret.stream)
    assert b"MY-SECRET" not in everywhere(path)
    assert b"PUBLIC" in everywhere(path)
    assert len(await store.read(kept.stream)) == 120
    await store.close()


async def test_a_redacted_record_leaves_no_byte_behind(path: Path) -> None:
    store = await opened(path, ANN)
    claim = await owned(store, "one", ANN)
    picture = blob_of(b"MY-SECRET" * 5000, "image/png")
    secret = Entry(kind="cancel_requested", data=write(CancelRequested(turn=TurnId("t"), request="MY-SECRET")), at=1)
    for n in range(1, 40):
        await store.append(plan(claim, ANN, n, entry("x" * 900)))
    await store.append(replace(plan(claim, ANN, 40, secret), blobs=(picture,)))
    assert b"MY-SECRET" in everywhere(path)
    hollow = write(CancelRequested(turn=TurnId("t"), request="", redacted="0" * 64))
    note = Entry.of(RecordRedacted(seq=Seq(41), sha256="0" * 64), at=2)
    (waiting,) = await store.inbox(claim.stream)
    await store.redact(Redaction(claim.stream, Seq(41), hollow, note, 2, (picture.hash,), Seq(41), waiting.id))
    assert b"MY-SECRET" not in everywhere(path)
    assert b"x" * 900 in everywhere(path)
    await store.close()


async def test_a_consumed_input_that_filled_pages_is_gone_with_its_session(path: Path) -> None:
    store = await opened(path, ANN)
    await say(store, "one", "MY-SECRET" * 3000)
    claim = await owned(store, "one", ANN)
    rows = await store.inbox(claim.stream)
    await store.append(replace(plan(claim, ANN, 1), consume=tuple(row.id for row in rows)))
    await store.delete(claim.stream)
    assert b"MY-SECRET" not in everywhere(path)
    await store.close()


async def test_s19_deleted_and_redacted_text_leaves_the_side_channel_and_its_log(path: Path) -> None:
    store = await opened(path, ANN)
    for name, erase in (("one", False), ("two", True)):
        claim = await owned(store, name, ANN)
        asked = write(CancelRequested(turn=TurnId("t"), request="MY-SECRET"))
        await store.append(plan(claim, ANN, 1, Entry(kind="cancel_requested", data=asked, at=1)))
        for run in range(1, 40):
            piece = Piece(
                claim.stream, TurnId("t"), EffectId("m1.1"), run, Seq(1), 0, "MY-SECRET" * 300, thinking=False
            )
            await store.live.put([piece], over=[(claim.stream, run - 1)], now=1)
        assert b"MY-SECRET" in everywhere(path)
        if erase:
            await store.delete(claim.stream)
        else:
            hollow = write(CancelRequested(turn=TurnId("t"), request="", redacted="0" * 64))
            note = Entry.of(RecordRedacted(seq=Seq(2), sha256="0" * 64), at=2)
            await store.redact(Redaction(claim.stream, Seq(2), hollow, note, 2, (), Seq(2), 0))
        assert b"MY-SECRET" not in everywhere(path)
    assert path.with_name("store.db-live").exists()
    await store.close()
