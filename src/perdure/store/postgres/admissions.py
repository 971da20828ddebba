"""What enters the inbox of a stream from outside: deliveries, many at once."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from perdure.commit.changes import Label
from perdure.commit.plan import Sent, first_entry, sent_as
from perdure.errors import Error
from perdure.ids import StreamId, WorkerId, stream_names
from perdure.inbox.admit import Admission, Admitted, Conflict, Delivery, blob_unknown, decide, ids_of, is_news, opens
from perdure.store.postgres.columns import flags, numbers, pieces, texts
from perdure.store.postgres.driver import Cells, ForeignKeyViolationError
from perdure.store.postgres.streams import begin_stream, put, refer, relabel
from perdure.store.postgres.tx import Session
from perdure.store.postgres.writer import Job
from perdure.vocab.records import FORMAT

MAX_DELIVERIES = 256


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
    times = Counter(jobs[i].item.delivery.stream for i in simple)
    given: set[StreamId] = set()
    answered: set[int] = set()
    for i, inbox_id, claimer, fence, opened in rows:
        job = jobs[int(i)]
        answered.add(int(i))
        stream, wanted_by = job.item.delivery.stream, job.item.claim_for
        mine = wanted_by is not None and wanted_by == claimer and stream not in given
        if mine:  # the first that asked; the others find the stream held
            given.add(stream)
        job.result = Admitted(inbox_id, fence if mine else None, opened and times[stream] == 1)
    return [job for i, job in enumerate(jobs) if i not in answered]


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


def _deliveries(places: Sequence[int], asked: Sequence[Asked]) -> list[object]:
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


def _openings(asked: Sequence[Asked], now: int) -> list[object]:
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


async def deliver(on: Session, new: Delivery, now: int) -> Admission:
    """Inside a transaction: put something into a stream's inbox, once; open the stream if the delivery says so."""
    stream = await _target(on, new, now)
    if stream is None:
        return Conflict(new.source_key)
    if new.blobs or new.refers:
        known = await on.one("admission_find", stream, new.source_key)
        if known is None:  # bytes of what is refused are not kept
            await refer(on, stream, new.blobs)
            await _refer_again(on, stream, new)
    added = await on.one("admission_insert", stream, new.source_key, new.content, *ids_of(new.item))
    if added is None:
        judged = decide(tuple(await on.one("admission_find", stream, new.source_key)), new)
        assert judged is not None
        return judged
    return Admitted(await put(on, stream, new))


async def _target(on: Session, new: Delivery, now: int) -> int | None:
    """The stream that a delivery is for, opened if need be; None if it may not be."""
    target = await on.one("stream_target", new.stream)
    if not opens(target[1] if target else None, new):
        return None if new.fresh else target[0]
    if new.once and await on.one("grave_find", new.stream) is not None:
        return None
    place = (new.queue, new.priority)
    stream = await begin_stream(on, new.stream, new.agent or "", (first_entry(new),), now, place)
    if stream is not None:
        if new.tags:
            await relabel(on, stream, new.stream, Label(tags=new.tags))
        return stream
    target = await on.one("stream_target", new.stream)  # somebody else was faster
    opens(target[1], new)
    return None if new.fresh else target[0]


async def _refer_again(on: Session, stream: int, new: Delivery) -> None:
    """Bytes may be referred to again by whose tenant has them."""
    if not new.refers:
        return
    known = {hash for (hash,) in await on.all("blobs_refer", stream, list(new.refers), stream_names(new.stream)[0])}
    for hash in new.refers:
        if hash not in known:
            raise blob_unknown(hash)
