"""A connection that breaks at any statement: nothing is lost, nothing is repeated, the receipt decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

import pytest
from msgspec.structs import replace

from perdure.commit.plan import Blob, Plan, Receipt, SetTimer, blob_of
from perdure.errors import Code, Error
from perdure.ids import PromiseId, Seq, StreamId, WorkerId
from perdure.inbox.admit import Admitted, Duplicate, delivery
from perdure.inbox.items import Wake
from perdure.store.postgres import PostgresStore, writer
from perdure.store.postgres import connections as module
from perdure.store.postgres.driver import Cells, PgConnection, dial
from perdure.store.shapes import Accepted, AlreadyResolved, Claim
from perdure.vocab.promises import Ok, PromiseState
from tests.postgres import Server
from tests.unit.store.parties import RealClock, entry, owned, plan, stream_named

ANN, BOB = WorkerId("ann"), WorkerId("bob")
PICTURE: Blob = blob_of(b"picture", "image/png")

Side = Literal["before", "after"]


@dataclass
class Saboteur:
    """Cuts a connection at the n-th statement: the server ends it before, or its reply gets lost after."""

    server: Server
    at: int = 0
    side: Side = "before"
    count: int = 0
    done: list[str] = field(default_factory=list[str])

    def arm(self, at: int, side: Side) -> None:
        self.at, self.side, self.count = at, side, 0

    async def around(self, connection: PgConnection, sql: str, run: Callable[[], Awaitable[Cells]]) -> Cells:
        quiet = sql.startswith("ROLLBACK") or "commit_counter" in sql or not self.at
        if not quiet:
            self.count += 1
        hit = not quiet and self.count == self.at
        if hit and self.side == "before":
            (pid,) = (await connection.fetch("SELECT pg_backend_pid()"))[0]
            await self.server.execute(f"SELECT pg_terminate_backend({pid})")
        result = await run()
        if hit and self.side == "after":
            connection.terminate()
            self.done.append(sql[:40])
            raise ConnectionResetError("the reply was lost")
        return result


class Mortal:
    """A real connection with a saboteur around it."""

    def __init__(self, connection: PgConnection, saboteur: Saboteur) -> None:
        self._connection = connection
        self._saboteur = saboteur

    async def fetch(self, query: str, *args: object) -> list[Cells]:
        return await self._saboteur.around(self._connection, query, lambda: self._connection.fetch(query, *args))

    async def execute(self, query: str) -> str:
        return await self._saboteur.around(self._connection, query, lambda: self._connection.execute(query))

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)


@pytest.fixture
def saboteur(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> Saboteur:
    saboteur = Saboteur(postgres)

    async def dial_mortal(dsn: str, **options: object) -> Mortal:
        return Mortal(await dial(dsn, **options), saboteur)  # type: ignore[arg-type] - handed on

    monkeypatch.setattr(module, "dial", dial_mortal)
    return saboteur


@pytest.fixture
async def store(postgres_url: str, saboteur: Saboteur) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url, RealClock())
    await store.open()
    await store.register(ANN, pid=1, version="1", now=0)
    yield store
    await store.close()


async def swept(store: PostgresStore, saboteur: Saboteur, story: Callable[[str], Awaitable[None]]) -> int:
    """Tell a story again and again, with a cut at each of its statements, before and after it."""
    saboteur.arm(10**9, "before")
    await story("undisturbed")
    statements = saboteur.count
    for side in ("before", "after"):
        for at in range(1, statements + 1):
            saboteur.arm(at, side)
            await story(f"{side}-{at}")
            assert saboteur.count >= at, "the cut never came"
    saboteur.at = 0
    return statements


def rows_of(receipts: list[Receipt]) -> list[tuple[int, int]]:
    return [(receipt.first_seq, receipt.last_seq) for receipt in receipts]


async def texts(store: PostgresStore, stream: StreamId) -> list[str]:
    return [row.data.decode() for row in await store.read(stream, after=Seq(1))]


@pytest.mark.slow
@pytest.mark.parametrize("solo", [0, 3])
async def test_appends_survive_a_cut_at_every_statement(
    store: PostgresStore, saboteur: Saboteur, solo: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SOLO", solo)

    async def story(name: str) -> None:
        claim = await owned(store, name, ANN)
        (opening,) = await store.inbox(claim.stream)
        plans = [
            plan(claim, ANN, 1, entry("a"), known=1),
            replace(plan(claim, ANN, 2, entry("b"), entry("c", key="k"), known=2), consume=(opening.id,)),
            replace(plan(claim, ANN, 3, entry("d"), known=4), timers=(SetTimer("t", 9),), blobs=(PICTURE,)),
            plan(claim, ANN, 4, entry("e"), entry("f"), known=5),
            replace(plan(claim, ANN, 5, entry("g"), known=5), ahead=2),
            replace(plan(claim, ANN, 6, known=8), waits=(PromiseId(f"p-{name}"),), lease="release", active=False),
        ]
        receipts = [await store.append(each) for each in plans]
        assert rows_of(receipts) == [(2, 2), (3, 4), (5, 5), (6, 7), (8, 8), (9, 8)]
        assert await texts(store, claim.stream) == [f'{{"text":"{letter}"}}' for letter in "abcdefg"]
        assert await store.inbox(claim.stream) == ()
        info = await store.stream(claim.stream)
        assert info is not None
        assert (info.last_seq, info.owner, info.active) == (8, None, False)

    assert await swept(store, saboteur, story) > 15


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True])
async def test_a_crowd_of_appends_survives_a_cut(store: PostgresStore, saboteur: Saboteur, known: bool) -> None:
    """Appends with a known last sequence have a separate statement."""

    async def story(name: str) -> None:
        claims = [await owned(store, f"{name}-{i}", ANN) for i in range(5)]
        plans: list[Plan] = [
            plan(claim, ANN, n, entry(str(n)), known=n if known else 0) for n in (1, 2, 3) for claim in claims
        ]
        receipts = await asyncio.gather(*(store.append(each) for each in plans))
        assert rows_of(receipts) == [(n + 1, n + 1) for n in (1, 2, 3) for _ in claims]
        for claim in claims:
            assert len(await texts(store, claim.stream)) == 3

    await swept(store, saboteur, story)


@pytest.mark.slow
async def test_sends_survive_a_cut_at_every_statement(store: PostgresStore, saboteur: Saboteur) -> None:
    """A plan is durable as a whole: its record, and its messages to a stream that is there and a new one."""
    await owned(store, "there", ANN)

    async def story(name: str) -> None:
        claim = await owned(store, name, ANN)
        there, new = stream_named("there"), stream_named(f"new-{name}")
        outbox = (
            delivery(there, f"from-{name}", Wake(reason="x"), at=1),
            delivery(new, "start", Wake(reason="x"), at=1, agent="a"),
            delivery(there, "open", Wake(reason="other"), at=1),
            delivery(stream_named("nowhere"), "x", Wake(reason="x"), at=1),
        )
        receipt = await store.append(replace(plan(claim, ANN, 1, entry("a"), known=1), outbox=outbox))
        assert [sent.verdict for sent in receipt.sent] == ["accepted", "accepted", "conflict", "discarded"]
        assert await texts(store, claim.stream) == ['{"text":"a"}']
        assert [row.source_key for row in await store.inbox(there)].count(f"from-{name}") == 1
        assert [row.source_key for row in await store.inbox(new)] == ["start"]

    assert await swept(store, saboteur, story) >= 10


async def test_admissions_survive_a_cut_at_every_statement(store: PostgresStore, saboteur: Saboteur) -> None:
    async def story(name: str) -> None:
        stream = stream_named(name)
        first = delivery(stream, "k", Wake(reason="x"), at=1, agent="a")
        assert isinstance(await store.admit(first, claim_for=ANN), Admitted | Duplicate)
        with_bytes = replace(delivery(stream, "k2", Wake(reason="y"), at=1), blobs=(PICTURE,))
        assert isinstance(await store.admit(with_bytes), Admitted | Duplicate)
        assert [row.source_key for row in await store.inbox(stream)] == ["k", "k2"]
        assert [row.seq for row in await store.read(stream)] == [1]

    await swept(store, saboteur, story)


@pytest.mark.slow
async def test_claims_and_promises_survive_a_cut_at_every_statement(store: PostgresStore, saboteur: Saboteur) -> None:
    async def story(name: str) -> None:
        claim = await owned(store, name, ANN)
        again = await store.claim(claim.stream, ANN)
        assert isinstance(again, Claim)
        assert again.fence > claim.fence
        promise = PromiseId(f"p-{name}")
        await store.promise(PromiseState(id=promise, stream=claim.stream))
        await store.append(replace(plan(again, ANN, 1), waits=(promise,), lease="release", active=False))
        resolved = await store.resolve(promise, Ok(value=1), now=1)
        assert resolved in (Accepted(), AlreadyResolved(Ok(value=1)))
        assert len(await store.inbox(claim.stream)) == 2, "the opening, and one wake"
        noted = await store.annotate(claim.stream, entry("note", key="gate"))
        assert noted.row.seq == 2
        assert len(await store.read(claim.stream)) == 2
        await store.renew(ANN)
        assert store.lease_live(ANN)
        await store.delete(claim.stream)
        assert await store.stream(claim.stream) is None

    await swept(store, saboteur, story)


async def test_keyless_note_is_not_repeated_after_a_lost_reply(store: PostgresStore, saboteur: Saboteur) -> None:
    claim = await owned(store, "one", ANN)
    saboteur.arm(1, "after")
    with pytest.raises(Error) as caught:
        await store.annotate(claim.stream, entry("once"))
    assert caught.value.code is Code.STORE_UNAVAILABLE
    assert await texts(store, claim.stream) == ['{"text":"once"}']


async def test_patience_ends(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = await owned(store, "one", ANN)
    connections = store._connections  # pyright: ignore[reportPrivateUsage] - to be impatient
    assert connections is not None
    connections.reconnect_timeout_s = 0.05

    async def nobody(dsn: str, **options: object) -> Mortal:
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(module, "dial", nobody)
    for session in connections._idle:  # pyright: ignore[reportPrivateUsage] - the server is gone for all of them
        session.connection.terminate()
    with pytest.raises(Error) as caught:
        await store.append(plan(claim, ANN, 1, entry("a")))
    assert caught.value.code is Code.STORE_UNAVAILABLE
    monkeypatch.undo()
    connections.reconnect_timeout_s = 10
    assert (await store.append(plan(claim, ANN, 1, entry("a")))).first_seq == 2
