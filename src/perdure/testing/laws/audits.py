"""Laws of audit records: each is in the transaction of its change, or nowhere."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from perdure.commit.changes import Audit, Intervention, NewStream, Note, Redaction
from perdure.commit.plan import Entry
from perdure.errors import Code, Error
from perdure.ids import DEFAULT_TENANT, PromiseId, Seq, TurnId, audit_stream
from perdure.store.protocol import Store
from perdure.store.shapes import Accepted, AlreadyResolved
from perdure.testing.laws.bench import ANN, Bench, enlist, note, notes, open_stream, stream_of
from perdure.vocab.promises import Ok, PromiseState
from perdure.vocab.records import CancelRequested, RecordRedacted, write

MONTH = audit_stream(DEFAULT_TENANT, "2026-11")
NOWHERE = audit_stream(DEFAULT_TENANT, "1999-12")
ONE = stream_of("one")


def of(text: str) -> Audit:
    """Return one audit record that carries a text."""
    return (Note(MONTH, note(text)),)


def promise(name: str) -> PromiseState:
    """Return an open promise of the session."""
    return PromiseState(id=PromiseId(name), stream=ONE)


def redaction(audit: Audit) -> Redaction:
    """Return the redaction of the session's first record."""
    removed = Entry.of(RecordRedacted(seq=Seq(1), sha256="0" * 64), at=9)
    empty = write(CancelRequested(turn=TurnId("t"), request="gone"))
    return Redaction(stream=ONE, seq=Seq(1), data=empty, note=removed, at=9, audit=audit)


def imported(audit: Audit) -> NewStream:
    """Return a new session with a past."""
    return NewStream(stream_of("two"), "agent", (note("past"),), at=7, audit=audit)


async def begun(bench: Bench) -> Store:
    """Open a session and an empty audit stream."""
    await open_stream(bench.store, "one")
    await bench.store.create(NewStream(MONTH, "", (), at=7))
    return bench.store


Change = Callable[[Store, Audit], Awaitable[object]]

CHANGES: dict[str, Change] = {
    "resolve": lambda store, audit: store.resolve(PromiseId("p"), Ok(), now=1, make=promise("p"), audit=audit),
    "resolve_all": lambda store, audit: store.resolve_all([(promise("q"), Ok())], now=1, audit=audit),
    "intervene": lambda store, audit: store.intervene(Intervention(ONE, notes=(note("stop", key="g"),), audit=audit)),
    "redact": lambda store, audit: store.redact(redaction(audit)),
    "create": lambda store, audit: store.create(imported(audit)),
    "delete": lambda store, audit: store.delete(ONE, audit=audit),
}
"""Every change with an audit record. A repetition of any of them takes no effect."""


class AuditLaws:
    """Laws of the records that a change writes into an audit stream."""

    @pytest.mark.parametrize("change", CHANGES)
    async def test_change_and_its_audit_record_are_durable_together(self, bench: Bench, change: str) -> None:
        store = await begun(bench)
        await CHANGES[change](store, of(change))
        assert notes(await (await bench.reopen()).read(MONTH)) == [(1, change)]

    @pytest.mark.parametrize("change", CHANGES)
    async def test_change_without_effect_leaves_no_audit_record(self, bench: Bench, change: str) -> None:
        store = await begun(bench)
        await CHANGES[change](store, of("first"))
        with suppress(Error):  # an existing session is refused
            await CHANGES[change](store, of("again"))
        assert notes(await store.read(MONTH)) == [(1, "first")]

    @pytest.mark.parametrize("change", CHANGES)
    async def test_change_without_its_audit_record_is_not_made(self, bench: Bench, change: str) -> None:
        store = await begun(bench)
        with pytest.raises(Error) as caught:
            await CHANGES[change](store, (Note(NOWHERE, note("lost")),))
        assert caught.value.code is Code.SESSION_UNKNOWN
        await CHANGES[change](store, of("then"))  # it takes effect now, so it had none before
        assert notes(await store.read(MONTH)) == [(1, "then")]

    async def test_late_resolution_leaves_no_audit_record(self, bench: Bench) -> None:
        store = await begun(bench)
        made = PromiseState(id=PromiseId("p"), stream=ONE, deadline_at=await store.now() - 1)
        await store.promise(made)
        late = await store.resolve(made.id, Ok(), now=1, audit=of("late"))
        assert isinstance(late, AlreadyResolved)
        assert await store.resolve_all([(made, Ok())], now=1, audit=of("late")) != {}
        assert notes(await store.read(MONTH)) == []

    async def test_audit_record_outlives_the_stream_of_its_change(self, bench: Bench) -> None:
        store = await begun(bench)
        await store.resolve(PromiseId("p"), Ok(), now=1, make=promise("p"), audit=of("decided"))
        await store.delete(ONE, audit=of("deleted"))
        assert notes(await store.read(MONTH)) == [(1, "decided"), (2, "deleted")]

    async def test_sixty_four_changes_at_once_leave_as_many_audit_records(self, bench: Bench) -> None:
        """Half of them also lock the stream of the session: no order of locks may deadlock."""
        stores = (await begun(bench), await bench.reopen())

        async def change(n: int) -> None:
            store, audit = stores[n % 2], of(str(n))
            if n % 4 < 2:
                made = promise(f"p{n}")
                assert await store.resolve(made.id, Ok(), now=1, make=made, audit=audit) == Accepted()
            else:
                assert (await store.intervene(Intervention(ONE, notes=(note(f"n{n}"),), audit=audit))).done

        await asyncio.gather(*(change(n) for n in range(64)))
        found = notes(await stores[0].read(MONTH))
        assert [seq for seq, _ in found] == list(range(1, 65))
        assert {text for _, text in found} == {str(n) for n in range(64)}

    async def test_audit_stream_is_never_claimable(self, bench: Bench) -> None:
        store = await begun(bench)
        await enlist(bench, ANN)
        await store.resolve(PromiseId("p"), Ok(), now=1, make=promise("p"), audit=of("decided"))
        assert MONTH not in await store.claimable(ANN, limit=9, now=99)
