"""What enters a stream from outside: deliveries (many at once), admitted records, promises, removal, secrets."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from perdure.codec import decode, encode
from perdure.commit.changes import (
    REDACTED,
    Amendment,
    Intervention,
    Label,
    NewStream,
    Note,
    Pause,
    Redaction,
    check_admissions,
    record_unknown,
    stream_exists,
    stream_moved,
)
from perdure.commit.plan import Blob, Entry, Sent, ends, first_entry, sent_as
from perdure.errors import Error
from perdure.ids import Fence, PromiseId, Seq, StreamId, WorkerId, stream_names
from perdure.inbox.admit import (
    Admission,
    Admitted,
    Conflict,
    Delivery,
    blob_unknown,
    decide,
    delivery,
    ids_of,
    is_news,
    opens,
    stream_unknown,
    wake,
)
from perdure.inbox.items import Wake
from perdure.store.postgres.driver import Cells, ForeignKeyViolationError, UniqueViolationError
from perdure.store.postgres.log import admitted_row, append_admitted, check_keys, find_row, write_log
from perdure.store.postgres.tx import Session
from perdure.store.postgres.writer import Job
from perdure.store.protocol import Accepted, AlreadyResolved, Annotated, Intervened, Resolved, Unknown
from perdure.vocab.promises import PromiseState, Resolution, TimedOut
from perdure.vocab.records import FORMAT

T = TypeVar("T")

MAX_DELIVERIES = 256
MAX_DISTURBED = 100


@dataclass(frozen=True, slots=True)
class Asked:
    """A delivery, and the worker that would drive its stream."""

    delivery: Delivery
    claim_for: WorkerId | None


AdmitJob = Job[Asked, Admission]


def take(queue: deque[AdmitJob]) -> list[AdmitJob]:
    """As many deliveries as go together. The same thing twice does not: the second is judged after the first."""
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


async def together(on: Session, jobs: Sequence[AdmitJob], now: int) -> list[AdmitJob]:
    """Admit deliveries in one statement and keep the answers. Those that come back were not admitted.

    One that was admitted and might be driven by its sender, if only the worker that holds the stream were gone, has an
    answer without a fence.
    """
    simple = [i for i, job in enumerate(jobs) if _is_simple(job.item.delivery)]
    if not simple:
        return list(jobs)
    rows = await _admit_many(on, simple, [jobs[i].item for i in simple], now)
    on.counters.commits += 1
    answers: dict[int, tuple[int, WorkerId | None, Fence | None]] = {i: (id, by, fence) for i, id, by, fence in rows}
    given: set[StreamId] = set()
    for i, (inbox_id, claimer, fence) in answers.items():
        new, wanted_by = jobs[i].item.delivery, jobs[i].item.claim_for
        mine = wanted_by is not None and wanted_by == claimer and new.stream not in given
        if mine:  # the first that asked; the others find the stream held
            given.add(new.stream)
        jobs[i].result = Admitted(inbox_id, fence if mine else None)
    return [job for i, job in enumerate(jobs) if i not in answers]


def _is_simple(new: Delivery) -> bool:
    """Whether the statement for many can take it: it is an item, and no more."""
    return not (new.blobs or new.refers or new.tags or new.once)


async def _admit_many(on: Session, places: Sequence[int], asked: Sequence[Asked], now: int) -> list[Cells]:
    opening = {a.delivery.stream: a for a in reversed(asked) if a.delivery.agent is not None}
    return await on.all("admit", *_deliveries(places, asked), *_openings(list(opening.values()), now))


async def send(on: Session, sends: Sequence[Delivery], now: int) -> list[Sent]:
    """Inside a transaction: put things into the inboxes of other streams, and tell what became of each.

    One statement takes all that are new. Only what it leaves out is looked at by itself.
    """
    first: dict[tuple[StreamId, str], int] = {}
    for place, new in enumerate(sends):
        if _is_simple(new):
            first.setdefault((new.stream, new.source_key), place)
    places = list(first.values())
    rows = await _admit_many(on, places, [Asked(sends[place], None) for place in places], now) if places else []
    accepted = {place for place, *_ in rows}
    rest = sorted(set(range(len(sends))) - accepted, key=lambda place: (sends[place].stream, place))
    judged = {place: await send_one(on, sends[place], now) for place in rest}
    return [judged.get(place, Sent("accepted")) for place in range(len(sends))]


async def send_one(on: Session, new: Delivery, now: int) -> Sent:
    """Inside a transaction: put one thing into the inbox of another stream, whatever happens to that meanwhile."""
    while True:
        try:
            async with on.attempt():
                return sent_as(await deliver(on, new, now))
        except Error as refusal:
            return Sent("discarded", refusal.code)
        except ForeignKeyViolationError:
            continue  # its stream was deleted between our look and our turn


def _deliveries(places: Sequence[int], asked: Sequence[Asked]) -> list[list[object]]:
    new = [a.delivery for a in asked]
    ids = [ids_of(d.item) for d in new]
    return [
        list(places),
        [d.stream for d in new],
        [d.source_key for d in new],
        [d.content for d in new],
        [turn for turn, _ in ids],
        [input_id for _, input_id in ids],
        [d.at for d in new],
        [is_news(d.item) for d in new],
        [d.data for d in new],
        [d.agent for d in new],
        [a.claim_for for a in asked],
    ]


def _openings(asked: Sequence[Asked], now: int) -> list[object]:
    names = [stream_names(a.delivery.stream) for a in asked]
    opened = [first_entry(a.delivery) for a in asked]
    return [
        [a.delivery.stream for a in asked],
        [tenant for tenant, _, _ in names],
        [kind for _, kind, _ in names],
        [name for _, _, name in names],
        [a.delivery.agent for a in asked],
        FORMAT,
        now,
        [a.claim_for for a in asked],
        [entry.at for entry in opened],
        [entry.kind for entry in opened],
        [entry.data for entry in opened],
        [a.delivery.queue for a in asked],
        [a.delivery.priority for a in asked],
    ]


async def deliver(on: Session, new: Delivery, now: int) -> Admission:
    """Inside a transaction: put something into a stream's inbox, once; open the stream if the delivery says so."""
    stream = await _target(on, new, now)
    if stream is None:
        return Conflict(new.source_key)
    if new.blobs or new.refers:
        known = await on.one("admission_find", stream, new.source_key)
        if known is None:  # bytes of what is refused are not kept
            await _refer(on, stream, new.blobs)
            await _refer_again(on, stream, new)
    added = await on.one("admission_insert", stream, new.source_key, new.content, *ids_of(new.item))
    if added is None:
        judged = decide(tuple(await on.one("admission_find", stream, new.source_key)), new)
        assert judged is not None
        return judged
    return Admitted(await _put(on, stream, new))


async def _target(on: Session, new: Delivery, now: int) -> int | None:
    """The stream that a delivery is for, opened if need be; None if it may not be."""
    target = await on.one("stream_target", new.stream)
    if not opens(target[1] if target else None, new):
        return target[0]
    if new.once and await on.one("grave_find", new.stream) is not None:
        return None
    place = (new.queue, new.priority)
    stream = await _begin_stream(on, new.stream, new.agent or "", (first_entry(new),), now, place)
    if stream is not None:
        if new.tags:
            await _relabel(on, stream, new.stream, Label(tags=new.tags))
        return stream
    target = await on.one("stream_target", new.stream)  # somebody else was faster
    opens(target[1], new)
    return target[0]


async def _begin_stream(
    on: Session,
    name: StreamId,
    agent: str,
    entries: Sequence[Entry],
    now: int,
    place: tuple[str | None, int | None] = (None, None),
) -> int | None:
    """A new stream with these records; None if there is one of that name."""
    format = max([FORMAT, *(entry.version for entry in entries)])
    opened = await on.one("stream_open", name, *stream_names(name), agent, format, now, len(entries), *place)
    if opened is None:
        return None
    await check_keys(on, name, opened[0], entries)
    await write_log(on, opened[0], Seq(1), entries, by=None)
    return opened[0]


async def create(on: Session, new: NewStream, now: int) -> None:
    """A stream with its past."""
    check_admissions(new)
    async with on.transaction():
        if new.beside is not None and await on.one("stream_keep", new.beside) is None:
            raise stream_unknown(new.beside)
        stream = await _begin_stream(on, new.stream, new.agent, new.entries, now)
        if stream is None:
            raise stream_exists(new.stream)
        await _refer(on, stream, new.blobs)
        if new.admissions:
            rows = [(a.source_key, a.content, a.turn, a.input) for a in new.admissions]
            await on.all("admissions_put", stream, *([row[i] for row in rows] for i in range(4)))
        await _relabel(on, stream, new.stream, new.label)


async def _refer(on: Session, stream: int, blobs: Iterable[Blob]) -> None:
    """Store bytes that are not there yet, and let a stream refer to them."""
    by_hash = {blob.hash: blob for blob in blobs}
    if by_hash:
        sorted_blobs = [by_hash[hash] for hash in sorted(by_hash)]
        media_types, data = [b.media_type for b in sorted_blobs], [b.data for b in sorted_blobs]
        await on.all("blobs_put", stream, sorted(by_hash), media_types, data)


async def _refer_again(on: Session, stream: int, new: Delivery) -> None:
    """Bytes may be referred to again by whose tenant has them."""
    if not new.refers:
        return
    known = {hash for (hash,) in await on.all("blobs_refer", stream, list(new.refers), stream_names(new.stream)[0])}
    for hash in new.refers:
        if hash not in known:
            raise blob_unknown(hash)


async def annotate(on: Session, name: StreamId, entry: Entry, label: Label | None, now: int) -> Annotated:
    """Append an admitted record; under a key that is taken, the record that has it."""
    if label is not None or ends((entry,)):
        async with on.transaction():
            stream, _, row, new = await append_admitted(on, name, entry, now)
            if new and label is not None:
                await _relabel(on, stream, name, label)
        return Annotated(row, new=new)
    while True:
        try:
            added = await on.one(
                "annotate", name, entry.at, entry.kind, entry.version, entry.key, entry.data, now
            )  # fmt: skip
        except UniqueViolationError:
            continue  # somebody took the key between our look and our turn
        if added is not None:
            on.counters.commits += 1
            return Annotated(admitted_row(name, added[0], entry), new=True)
        if await on.one("stream_target", name) is None:
            raise stream_unknown(name)
        known = await find_row(on, name, entry.key) if entry.key is not None else None
        if known is not None:
            return Annotated(known, new=False)


async def amend(on: Session, amendment: Amendment, now: int) -> Annotated:
    """Add a record, with the bytes it brings and without those it lets go; nothing if its key is taken."""
    snapshot = amendment.snapshot
    async with on.transaction():
        stream, _, row, new = await append_admitted(on, amendment.stream, amendment.entry, now)
        if not new:
            return Annotated(row, new=False)
        await _refer(on, stream, amendment.blobs)
        if amendment.drops:
            await on.all("blobs_unrefer", stream, list(amendment.drops))
            await on.all("blob_collect", sorted(amendment.drops))
        if snapshot is not None:
            await on.all("snapshot_put", stream, snapshot.seq, snapshot.code, snapshot.data)
    return Annotated(row, new=True)


async def undisturbed(work: Callable[[], Awaitable[T]]) -> T:
    """Do something to a stream, or to bytes that others may refer to, that somebody may delete at the same moment: then
    once more, because what was looked at is not true any more. Each time somebody else got on."""
    for _ in range(MAX_DISTURBED):
        with suppress(ForeignKeyViolationError):
            return await work()
    return await work()


async def intervene(on: Session, intervention: Intervention, now: int) -> Intervened:
    """Do something to a stream from outside: all of it or nothing."""
    name, new, pause = intervention.stream, intervention.delivery, intervention.pause
    async with on.transaction():
        found = await on.one("stream_ownership", name)
        if found is None:
            raise stream_unknown(name)
        stream, paused_at = found[0], found[-1]
        (last_inbox,) = await on.one("inbox_last", stream)
        if intervention.known_inbox is not None and last_inbox > intervention.known_inbox:
            raise stream_moved(name)
        if pause is not None and (pause.since is None) == (paused_at is None):
            return Intervened(done=False)
        admission = await deliver(on, new, now) if new is not None else None
        if new is not None and not isinstance(admission, Admitted):
            return Intervened(done=False, admission=admission)
        if intervention.withdraw:
            gone = await on.all("inbox_consume", list(intervention.withdraw), stream)
            if len(gone) != len(intervention.withdraw):
                raise stream_moved(name)
        if pause is not None:
            await _pause(on, stream, pause)
        noted = [await append_admitted(on, name, entry, now) for entry in intervention.notes]
    return Intervened(True, admission, tuple(Annotated(row, new=fresh) for _, _, row, fresh in noted))


async def _pause(on: Session, stream: int, pause: Pause) -> None:
    await on.all("stream_pause", stream, pause.since, pause.by if pause.since is not None else None)
    if pause.since is not None:
        await on.all("stream_take_back", stream)


async def _relabel(on: Session, stream: int, name: StreamId, label: Label) -> None:
    if label.title is not None:
        await on.all("title_put", stream, label.title)
    if label.tags is not None:
        await on.all("tags_clear", stream)
    if label.drops:
        await on.all("tags_drop", stream, list(label.drops))
    if adds := [*(label.tags or ()), *label.adds]:
        await on.all("tags_put", stream_names(name)[0], stream, adds)


async def annotate_all(on: Session, notes: Sequence[Note], now: int) -> tuple[Annotated, ...]:
    """Append admitted records to several streams: all or nothing. They are locked in one order, like everybody's."""
    told: dict[int, Annotated] = {}
    async with on.transaction():
        for place in sorted(range(len(notes)), key=lambda place: (notes[place].stream, place)):
            note = notes[place]
            stream, _, row, new = await append_admitted(on, note.stream, note.entry, now)
            if new and note.label is not None:
                await _relabel(on, stream, note.stream, note.label)
            told[place] = Annotated(row, new=new)
    return tuple(told[place] for place in range(len(notes)))


async def redact(on: Session, redaction: Redaction, now: int) -> Annotated:
    """Replace what a record said, once; its snapshot and the references it alone had go too."""
    name = redaction.stream
    async with on.transaction():
        if redaction.answers:  # before the stream, like everybody
            await on.all("promises_lock", sorted(promise for promise, _ in redaction.answers))
        stream, last_seq, row, new = await append_admitted(on, name, redaction.note, now)
        if not new:
            return Annotated(row, new=False)
        (last_inbox,) = await on.one("inbox_last", stream)
        if redaction.drops and (last_seq != redaction.known_seq or last_inbox > redaction.known_inbox):
            raise stream_moved(name)
        if redaction.seq > last_seq or not await on.all("log_rewrite", stream, redaction.seq, redaction.data):
            raise record_unknown(name, redaction.seq)
        await on.all("snapshot_drop", name)
        if redaction.drops:
            await on.all("blobs_unrefer", stream, list(redaction.drops))
            await on.all("blob_collect", list(redaction.drops))
        for promise, told in redaction.answers:
            await on.all("promise_rewrite", promise, stream, encode(told))
        wake_owner = delivery(name, f"{REDACTED}:{redaction.seq}", Wake(reason=REDACTED), at=redaction.at)
        await _put(on, stream, wake_owner)
    return Annotated(row, new=True)


async def _put(on: Session, stream: int, new: Delivery) -> int:
    (inbox_id,) = await on.one("inbox_insert", stream, new.source_key, new.at, is_news(new.item), new.data)
    return inbox_id


async def delete(on: Session, name: StreamId, beside: Sequence[StreamId], edges: Sequence[str], now: int) -> bool:
    """Remove a stream and everything it owns; whoever waits for one of its promises is woken to find it gone."""
    async with on.transaction():
        await _lock_promises(on, name)  # before the stream, like everybody
        deleted = await _delete(on, name, now)
        for other in beside:
            await _delete(on, other, now)
        for begins in edges:
            await on.all("tags_cut", stream_names(name)[0], begins, f"{begins}\U0010ffff")
    return deleted


async def _delete(on: Session, name: StreamId, now: int) -> bool:
    found = await on.one("stream_remove", name)
    if found is None:
        return False
    stream, fence = found
    blobs = [hash for (hash,) in await on.all("blob_owned", stream)]
    promises = await _lock_promises(on, name)  # also those made meanwhile; from now on there can be no more
    await on.all("grave_dig", name, fence)
    await on.all("log_delete", stream)
    await on.all("stream_delete", stream)
    if blobs:
        await on.all("blob_collect", blobs)
    for promise in promises:
        await _wake(on, promise, now)
    return True


async def _lock_promises(on: Session, name: StreamId) -> list[PromiseId]:
    promises = [promise for (promise,) in await on.all("promise_owned", name)]
    if promises:
        await on.all("promises_lock", promises)
    return promises


async def make_promise(on: Session, promise: PromiseState) -> PromiseState:
    """Create a promise, or find the one that exists."""
    known = await read_promise(on, promise.id)
    if known is not None:
        return known
    async with on.transaction():
        await on.all("promises_lock", [promise.id])
        return await _make(on, promise)


async def _make(on: Session, promise: PromiseState) -> PromiseState:
    """Create a promise whose lock we have, unless it exists."""
    known = await read_promise(on, promise.id)
    if known is not None:
        return known
    target = await on.one("stream_target", promise.stream)
    if target is None:
        raise stream_unknown(promise.stream)
    resolution = encode(promise.resolution) if promise.resolution is not None else None
    await on.all("promise_insert", promise.id, target[0], resolution, promise.deadline_at)
    return promise


async def resolve(
    on: Session, promise: PromiseId, resolution: Resolution, now: int, make: PromiseState | None = None
) -> Resolved:
    """Answer a promise, made for it if need be, if nobody was first, and wake who waits."""
    async with on.transaction():
        await on.all("promises_lock", [promise])
        if make is not None:
            await _make(on, make)
        if await on.one("promise_resolve", promise, encode(resolution)) is not None:
            await _wake(on, promise, now)
            return Accepted()
        known = await read_promise(on, promise)
        if known is None:
            return Unknown()
        if known.resolution is None:  # too late
            await on.all("promise_lapse", promise, encode(TimedOut()))
            await _wake(on, promise, now)
            return Accepted() if isinstance(resolution, TimedOut) else AlreadyResolved(TimedOut())
    return AlreadyResolved(known.resolution)


class _Closed(Exception):
    """Takes back what was written so far."""


async def resolve_all(
    on: Session, answers: Sequence[tuple[PromiseState, Resolution]], now: int
) -> dict[PromiseId, Resolution]:
    """Answer several promises, made for it if need be: all of them or none; what stood in the way."""
    closed: dict[PromiseId, Resolution] = {}
    with suppress(_Closed):
        async with on.transaction():
            await on.all("promises_lock", [made.id for made, _ in answers])
            for made, resolution in answers:
                known = await _make(on, made)
                if await on.one("promise_resolve", made.id, encode(resolution)) is None:
                    closed[made.id] = known.resolution or TimedOut()
                else:
                    await _wake(on, made.id, now)
            if closed:
                raise _Closed
    return closed


async def _wake(on: Session, promise: PromiseId, now: int) -> None:
    new = wake(StreamId(""), promise, at=now)  # the same for every stream that waits
    await on.all("promise_wake", promise, new.source_key, new.at, is_news(new.item), new.data)


async def read_promise(on: Session, promise: PromiseId) -> PromiseState | None:
    """A promise as it is now."""
    found = await on.one("promise_read", promise)
    return None if found is None else promise_state(found)


def promise_state(found: Cells) -> PromiseState:
    """A promise from its row."""
    promise, stream, resolution, deadline_at, asks, asked_at, consumed_at = found
    return PromiseState(
        id=promise,
        stream=stream,
        resolution=decode(resolution, Resolution) if resolution is not None else None,
        deadline_at=deadline_at,
        asks=asks,
        asked_at=asked_at,
        consumed_at=consumed_at,
    )


async def server_now(on: Session) -> int:
    """The moment on the server's clock."""
    (now,) = await on.one("now")
    return now


async def secret(on: Session, name: str) -> bytes:
    """The secret of that name; made if there is none."""
    while (found := await on.one("secret", name, os.urandom(32))) is None:
        pass  # somebody made it at the same moment, and our view is from before
    return found[0]
