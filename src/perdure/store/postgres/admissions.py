"""Admission of deliveries, in batches of one statement."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from perdure.commit.changes import Label
from perdure.commit.plan import OutboxResult, first_entry, sent_as
from perdure.errors import Error
from perdure.ids import Seq, StreamId, WorkerId, stream_names
from perdure.inbox.admit import (
    Admission,
    Admitted,
    Conflict,
    Delivery,
    Waiting,
    blob_unknown,
    check_queue,
    decide,
    ids_of,
    is_news,
    opens,
)
from perdure.store.digest_chain import DigestChain
from perdure.store.postgres.columns import flags, hexes, numbers, pieces, texts
from perdure.store.postgres.driver import Cells, ForeignKeyViolationError
from perdure.store.postgres.streams import begin_stream, put, refer, relabel
from perdure.store.postgres.tx import PgTransaction
from perdure.store.postgres.writer import PgWrite
from perdure.vocab.records import FORMAT

MAX_DELIVERIES = 256


@dataclass(frozen=True, slots=True)
class AdmitQuery:
    """A delivery, and the worker that asks to claim its stream."""

    delivery: Delivery
    claim_for: WorkerId | None


AdmitJob = PgWrite[AdmitQuery, Admission]


def take(queue: deque[AdmitJob]) -> list[AdmitJob]:
    """Take a batch of deliveries from the queue. A second delivery under one source key stays for the next batch."""
    taken: dict[tuple[StreamId, str], AdmitJob] = {}
    rest: list[AdmitJob] = []
    while queue and len(taken) < MAX_DELIVERIES:
        job = queue.popleft()
        name = (job.item.delivery.stream, job.item.delivery.source_key)
        if name in taken:
            rest.append(job)
        else:
            taken[name] = job
    queue.extendleft(reversed(rest))
    return list(taken.values())


async def together(on: PgTransaction, jobs: Sequence[AdmitJob], now: int) -> list[AdmitJob]:
    """Admit deliveries in one statement and store their results; return the jobs that were not admitted.

    An admitted delivery gets no fence if its stream has an owner, even a dead one.
    """
    simple = [i for i, job in enumerate(jobs) if _is_simple(job.item.delivery)]
    if not simple:
        return list(jobs)
    rows = await _admit_many(on, simple, [jobs[i].item for i in simple], now)
    on.counters.commits += 1
    times = Counter(jobs[i].item.delivery.stream for i in simple)
    given: set[StreamId] = set()
    answered: set[int] = set()
    for i, inbox_id, claimer, fence, opened in rows:
        job = jobs[int(i)]
        answered.add(int(i))
        stream, wanted_by = job.item.delivery.stream, job.item.claim_for
        mine = wanted_by is not None and wanted_by == claimer and stream not in given
        if mine:  # the first request gets the claim; for the others the stream is owned
            given.add(stream)
        job.result = Admitted(inbox_id, fence if mine else None, opened and times[stream] == 1)
    return [job for i, job in enumerate(jobs) if i not in answered]


def _is_simple(new: Delivery) -> bool:
    """Return whether the batch statement supports a delivery: an item without bytes, tags or `once`."""
    return not (new.blobs or new.refers or new.tags or new.once)


async def _admit_many(on: PgTransaction, places: Sequence[int], asked: Sequence[AdmitQuery], now: int) -> list[Cells]:
    opening = {a.delivery.stream: a for a in reversed(asked) if a.delivery.agent is not None}
    first = {stream: _begun(on.heads.chain, a.delivery) for stream, a in opening.items()}
    ends = (hexes([head for _, head in first.values()]), hexes([digest for digest, _ in first.values()]))
    values = (*_deliveries(places, asked), *_openings(list(opening.values()), now), *_rooms(asked), *ends)
    rows = await on.all("admit", *values)
    for a, opened in zip(asked, _are_opened(places, rows), strict=True):
        if opened:
            on.heads.note(a.delivery.stream, Seq(1), first[a.delivery.stream][1])
    return rows


def _begun(chain: DigestChain, new: Delivery) -> tuple[bytes, bytes]:
    """Return the digest of the first record of a stream, and the head after it."""
    (digest,), head = chain.extend(new.stream, chain.empty(new.stream), Seq(0), (first_entry(new),))
    return digest, head


def _are_opened(places: Sequence[int], rows: Sequence[Cells]) -> list[bool]:
    opened = {int(i) for i, *_, opened in rows if opened}
    return [place in opened for place in places]


async def send(on: PgTransaction, outbox: Sequence[Delivery], now: int) -> list[OutboxResult]:
    """Deliver outbox entries to other streams inside a transaction; return one result each.

    One statement admits all new entries. The rest are judged one by one.
    """
    first: dict[tuple[StreamId, str], int] = {}
    for place, new in enumerate(outbox):
        if _is_simple(new):
            first.setdefault((new.stream, new.source_key), place)
    places = list(first.values())
    rows = await _admit_many(on, places, [AdmitQuery(outbox[place], None) for place in places], now) if places else []
    accepted = {place for place, *_ in rows}
    rest = sorted(set(range(len(outbox))) - accepted, key=lambda place: (outbox[place].stream, place))
    judged = {place: await send_one(on, outbox[place], now) for place in rest}
    return [judged.get(place, OutboxResult("accepted")) for place in range(len(outbox))]


async def send_one(on: PgTransaction, new: Delivery, now: int) -> OutboxResult:
    """Deliver one outbox entry inside a transaction; retry if its stream is deleted concurrently."""
    while True:
        try:
            async with on.attempt():
                return sent_as(await deliver(on, new, now))
        except Error as refusal:
            return OutboxResult("discarded", refusal.code)
        except ForeignKeyViolationError:
            continue  # the stream was deleted between our read and our write


def _deliveries(places: Sequence[int], asked: Sequence[AdmitQuery]) -> list[object]:
    new = [a.delivery for a in asked]
    ids = [ids_of(d.item) for d in new]
    return [
        numbers(places),
        texts([d.stream for d in new]),
        texts([d.source_key for d in new]),
        texts([d.content for d in new]),
        texts([turn for turn, _ in ids]),
        texts([input_id for _, input_id in ids]),
        numbers([d.at for d in new]),
        flags([is_news(d.item) for d in new]),
        *pieces([d.data for d in new]),
        texts([d.agent for d in new]),
        texts([a.claim_for for a in asked]),
        flags([d.fresh for d in new]),
    ]


def _rooms(asked: Sequence[AdmitQuery]) -> list[object]:
    new = [a.delivery for a in asked]
    return [
        numbers([d.input_bytes for d in new]),
        numbers([d.room.inputs if d.room else None for d in new]),
        numbers([d.room.bytes if d.room else None for d in new]),
    ]


def _openings(asked: Sequence[AdmitQuery], now: int) -> list[object]:
    names = [stream_names(a.delivery.stream) for a in asked]
    opened = [first_entry(a.delivery) for a in asked]
    return [
        texts([a.delivery.stream for a in asked]),
        texts([tenant for tenant, _, _ in names]),
        texts([kind for _, kind, _ in names]),
        texts([name for _, _, name in names]),
        texts([a.delivery.agent for a in asked]),
        FORMAT,
        now,
        texts([a.claim_for for a in asked]),
        numbers([entry.at for entry in opened]),
        texts([entry.kind for entry in opened]),
        *pieces([entry.data for entry in opened]),
        texts([a.delivery.queue for a in asked]),
        numbers([a.delivery.priority for a in asked]),
    ]


async def deliver(on: PgTransaction, new: Delivery, now: int) -> Admission:
    """Put a delivery into a stream's inbox once, inside a transaction; open a missing stream if it allows that."""
    stream = await _target(on, new, now)
    if stream is None:
        return Conflict(new.source_key)
    if new.blobs or new.refers:
        known = await on.one("admission_find", stream, new.source_key)
        if known is None:  # do not store the bytes of a refused delivery
            await refer(on, stream, new.blobs)
            await _refer_again(on, stream, new)
    statement = "admission_insert_counted" if new.room else "admission_insert"
    added = await on.one(statement, stream, new.source_key, new.content, *ids_of(new.item))
    if added is None:
        judged = decide(tuple(await on.one("admission_find", stream, new.source_key)), new)
        assert judged is not None
        return judged
    if new.room is not None:
        check_queue(new, Waiting(*added))
    return Admitted(await put(on, stream, new))


async def _target(on: PgTransaction, new: Delivery, now: int) -> int | None:
    """Return the id of a delivery's stream, opened if needed; None if the delivery forbids the present state."""
    target = await on.one("stream_target", new.stream)
    if not opens(target[1] if target else None, new):
        return None if new.fresh else target[0]
    if new.once and await on.one("tombstone_find", new.stream) is not None:
        return None
    place = (new.queue, new.priority)
    stream = await begin_stream(on, new.stream, new.agent or "", (first_entry(new),), now, place)
    if stream is not None:
        if new.tags:
            await relabel(on, stream, new.stream, Label(tags=new.tags))
        return stream
    target = await on.one("stream_target", new.stream)  # another transaction opened it first
    opens(target[1], new)
    return None if new.fresh else target[0]


async def _refer_again(on: PgTransaction, stream: int, new: Delivery) -> None:
    """Add references to stored bytes; refuse bytes that no stream of the tenant refers to."""
    if not new.refers:
        return
    known = {hash for (hash,) in await on.all("blobs_refer", stream, list(new.refers), stream_names(new.stream)[0])}
    for hash in new.refers:
        if hash not in known:
            raise blob_unknown(hash)
