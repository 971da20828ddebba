"""The owned append: many plans in one statement, or one plan in one transaction after a conflict.

The statement advances only streams in exactly the state that their plans expect. Every other plan is judged by the
rules of `commit/plan.py`, with the stream's row locked. A repeated plan then gets its receipt, a refused one its
error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from msgspec.structs import replace

from perdure.codec import decode
from perdure.commit.plan import (
    AlreadyApplied,
    Blob,
    Entry,
    OutboxResult,
    Plan,
    Receipt,
    Refuse,
    SetTimer,
    Snapshot,
    StreamState,
    check_use,
    ends,
    inbox_gone,
    judge,
    key_taken,
    lease_lost,
    recall,
)
from perdure.errors import Error
from perdure.ids import BlobHash, PromiseId, Seq, StreamId, WorkerId, stream_names
from perdure.store.postgres.admissions import send, send_one
from perdure.store.postgres.columns import flags, hexes, numbers, pieces, texts
from perdure.store.postgres.driver import Cells
from perdure.store.postgres.heads import Heads
from perdure.store.postgres.leases import PgLeases
from perdure.store.postgres.log import check_keys, log_rows, write_log
from perdure.store.postgres.promises import read_promise, server_now
from perdure.store.postgres.tx import PgTransaction
from perdure.store.postgres.writer import PgWrite
from perdure.vocab.promises import Resolution
from perdure.vocab.records import Row

Answers = tuple[tuple[PromiseId, Resolution], ...]
AppendJob = PgWrite[Plan, Receipt]

MAX_PLANS = 256
MAX_BYTES = 4_000_000
FEW = 4
"""Maximum number of records in `append_lone`."""

NO_STREAMS: Set[StreamId] = frozenset()
NOTHING = (None, None, None, None)


@dataclass(slots=True)
class Chain:
    """Consecutive plans of one stream, written together."""

    jobs: list[AppendJob]
    digests: list[bytes] | None = None
    """The digests of all records; None if the head of the stream is not known."""
    head: bytes = b""
    before: int = 0
    """The last seq of the stream before these plans, and the head after them."""

    @property
    def first(self) -> Plan:
        """The first plan: it defines the expected state of the stream."""
        return self.jobs[0].item

    @property
    def last(self) -> Plan:
        """The last plan: it defines the resulting state of the stream."""
        return self.jobs[-1].item

    @property
    def plans(self) -> Iterable[Plan]:
        """All plans, in order."""
        return (job.item for job in self.jobs)

    @property
    def entries(self) -> list[Entry]:
        """The records of all plans, in order."""
        return [entry for plan in self.plans for entry in plan.entries]

    def extend(self, heads: Heads) -> None:
        """Compute the digests of all records, if the head of the stream is known and fits the key."""
        known = heads.known(self.first.stream)
        if not (entries := self.entries):
            self.digests = []
        elif known is not None:
            with suppress(Error):  # for this stream only: its append with a lock raises the error
                self.digests, self.head = heads.extend(self.first.stream, entries) or (None, b"")
                self.before = known[0]

    def note(self, heads: Heads) -> None:
        """Store the head of the stream after the write."""
        result = self.jobs[-1].result
        if self.digests and result is not None:
            heads.note(self.first.stream, result.last_seq, self.head)

    @property
    def known(self) -> Seq:
        """The lowest `known_seq` of the plans."""
        return min(plan.known_seq for plan in self.plans)

    def takes(self, plan: Plan) -> bool:
        """Return whether a plan can extend this chain. A plan that parks or releases the stream ends a chain."""
        last = self.last
        return (
            (plan.fence, plan.worker, plan.n) == (last.fence, last.worker, last.n + 1)
            and last.lease == "keep"
            and not last.waits
            and not (last.is_rare or plan.is_rare)
        )

    @property
    def lone(self) -> bool:
        """True if the chain is one plan that only contains a few records of one version."""
        plan = self.first
        if (
            self.digests is None
            or len(self.jobs) > 1
            or plan.waits
            or plan.consume
            or plan.timers
            or plan.blobs
            or plan.snapshot
        ):
            return False
        if plan.outbox or plan.is_rare or len(plan.entries) > FEW or ends(plan.entries):
            return False
        return len({entry.version for entry in plan.entries}) <= 1

    @property
    def alone(self) -> bool:
        """True if the plans need checks that the batch statement does not support, or the head of the stream."""
        twice = any(len(set(plan.consume)) != len(plan.consume) for plan in self.plans if plan.consume)
        return self.first.is_rare or twice or self.digests is None


def take(queue: deque[AppendJob], busy: Set[StreamId] = NO_STREAMS) -> list[Chain]:
    """Take a batch of plans from the queue, oldest first, as one chain per stream.

    A plan stays queued if it cannot extend its stream's chain, or if its stream is `busy` with a plan in flight."""
    if len(queue) == 1 and queue[0].item.stream not in busy:  # the common case: a single plan
        return [Chain([queue.popleft()])]
    chains: dict[StreamId, Chain] = {}
    waiting = set(busy)
    rest: list[AppendJob] = []
    plans = size = 0
    while queue and plans < MAX_PLANS and size < MAX_BYTES:
        job = queue.popleft()
        plan, stream = job.item, job.item.stream
        chain = chains.get(stream)
        if stream in waiting or (chain is not None and not chain.takes(plan)):
            waiting.add(stream)
            rest.append(job)
            continue
        if chain is None:
            chains[stream] = Chain([job])
        else:
            chain.jobs.append(job)
        plans += 1
        size += sum([len(one.data) for held in (plan.entries, plan.blobs, plan.outbox) for one in held])
    queue.extendleft(reversed(rest))
    return [chains[stream] for stream in sorted(chains)]  # all transactions lock rows in this order


# --- one by itself


def shortest_way(job: AppendJob, leases: PgLeases, now: int) -> Callable[[PgTransaction], Awaitable[bool]] | None:
    """Return a fast write for a lone plan of a few records, or None for another plan.

    The fast write returns whether the plan was written."""
    if _goes_on(job.item):
        return lambda on: _go_on(on, job, now)
    if Chain([job], digests=[]).lone:  # the digests are computed when the write begins
        return lambda on: _go_lone(on, Chain([job]), leases, now)
    return None


def _goes_on(plan: Plan) -> bool:
    """Return whether a plan only contains one or two records without keys, and the worker keeps the stream."""
    entries = plan.entries
    if not 0 < len(entries) <= 2 or not plan.is_progress or plan.is_rare:
        return False
    if plan.parked or plan.waits or plan.consume or plan.timers or plan.blobs or plan.snapshot:
        return False
    first, last = entries[0], entries[-1]
    return first.key is last.key is None and first.version == last.version


async def _go_lone(on: PgTransaction, chain: Chain, leases: PgLeases, now: int) -> bool:
    return not await together(on, [chain], leases, now)


async def _go_on(on: PgTransaction, job: AppendJob, now: int) -> bool:
    """Write a plan of one or two records and store its receipt.

    Return False if the stream is not in the expected state; the plan then needs the normal path."""
    plan = job.item
    entries, before = plan.entries, plan.known_seq + plan.ahead
    first, last = entries[0], entries[-1]
    known = on.heads.known(plan.stream)
    extended = on.heads.extend(plan.stream, entries) if known and known[0] == before else None
    if extended is None:
        return False
    digests, head = extended
    moved = await on.all(
        "append_on",
        *(plan.stream, plan.fence, plan.n, plan.worker, before, len(entries), now, first.version),
        *(first.at, first.kind, first.data),
        *(last.at, last.kind, last.data),
        *(head, digests[0], digests[-1]),
    )
    if not moved:
        return False
    on.heads.note(plan.stream, Seq(before + len(entries)), head)
    on.counters.commits += 1
    on.counters.plans += 1
    job.result = Receipt(plan.stream, plan.fence, plan.n, Seq(before + 1), Seq(before + len(entries)))
    return True


# --- many at once


@dataclass(slots=True)
class _Extras:
    """The contents of plans other than records, as columns. Changes of a timer are merged into their net effect."""

    cleared: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    timed: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])
    reset: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])
    refs: list[tuple[int, BlobHash]] = field(default_factory=list[tuple[int, BlobHash]])
    blobs: dict[BlobHash, Blob] = field(default_factory=dict[BlobHash, Blob])
    snapshots: dict[int, Snapshot] = field(default_factory=dict[int, Snapshot])
    ended: list[int] = field(default_factory=list[int])

    def add(self, i: int, plans: Iterable[Plan]) -> None:
        """Add the contents of a chain."""
        timers: dict[str, tuple[bool, int | None]] = {}
        for plan in plans:
            for timer in plan.timers:
                cleared, due_at = timers.get(timer.name, (False, None))
                if not isinstance(timer, SetTimer):
                    timers[timer.name] = (True, None)
                elif due_at is None:
                    timers[timer.name] = (cleared, timer.due_at)
            for blob in plan.blobs:
                self.blobs[blob.hash] = blob
                self.refs.append((i, blob.hash))
            if plan.snapshot is not None:
                self.snapshots[i] = plan.snapshot
            if ends(plan.entries):
                self.ended.append(i)
        for name, (cleared, due_at) in timers.items():
            if due_at is None:
                self.cleared.append((i, name))
            else:
                (self.reset if cleared else self.timed).append((i, name, due_at))

    @property
    def any(self) -> bool:
        """True if there is any content."""
        return bool(self.refs) or self.any_but_bytes

    @property
    def any_but_bytes(self) -> bool:
        """True if there is content that the statement `append` does not support."""
        return bool(self.cleared or self.timed or self.reset or self.snapshots or self.ended)

    def bytes(self) -> list[object]:
        """Return the columns of blob references and blobs."""
        blobs = [self.blobs[hash] for hash in sorted(self.blobs)]
        return [
            *_as_text(self.refs, (numbers, texts)),
            *_as_text([(blob.hash, blob.media_type) for blob in blobs], (texts, texts)),
            *pieces([blob.data for blob in blobs]),
        ]

    def columns(self) -> list[object]:
        """Return the arguments of `append_more` after the streams."""
        return [
            *_as_text(self.cleared, (numbers, texts)),
            *_as_text(self.timed, (numbers, texts, numbers)),
            *_as_text(self.reset, (numbers, texts, numbers)),
            *self.bytes(),
            *_as_text([(i, s.seq, s.code) for i, s in self.snapshots.items()], (numbers, numbers, texts)),
            *pieces([s.data for s in self.snapshots.values()]),
            numbers(self.ended),
        ]


async def together(on: PgTransaction, chains: Sequence[Chain], leases: PgLeases, now: int) -> list[Chain]:
    """Write chains in one transaction and store their receipts; return the chains that were not written."""
    unknown = [chain.first.stream for chain in chains if chain.entries and not on.heads.known(chain.first.stream)]
    for stream, last_seq, head in await on.all("stream_ends", texts(unknown)) if unknown else ():
        on.heads.note(stream, last_seq, head)
    for chain in chains:
        chain.extend(on.heads)
    moved = set[int]()
    if len(chains) == 1 and chains[0].lone and not leases.due([chains[0].first.worker]):
        moved = await _move_lone(on, 0, chains[0], now)
        on.counters.commits += 1
    else:
        if _all_go_on(chains, leases):
            moved = await _move_on(on, chains, now)
            on.counters.commits += bool(moved)
        if len(moved) < len(chains):
            moved |= await _move_many(on, chains, leases, now, besides=moved)
    on.counters.plans += sum([len(chains[i].jobs) for i in moved])
    for i in moved:
        chains[i].note(on.heads)
    return [chain for i, chain in enumerate(chains) if i not in moved]


def _all_go_on(chains: Sequence[Chain], leases: PgLeases) -> bool:
    """Return whether all chains are single plans of one worker, each with one or two records without keys."""
    first = chains[0].first
    for chain in chains:
        plan = chain.first
        if len(chain.jobs) > 1 or chain.digests is None or not _goes_on(plan):
            return False
        if chain.before != plan.known_seq + plan.ahead:
            return False
        if plan.worker != first.worker or plan.entries[0].version != first.entries[0].version:
            return False
    return not leases.is_due(first.worker)


async def _move_on(on: PgTransaction, chains: Sequence[Chain], now: int) -> set[int]:
    """Write the chains whose streams are in the expected state; return their indexes."""
    plans = [(chain.first, chain.first.known_seq + chain.first.ahead) for chain in chains]
    heads = [(plan.stream, plan.fence, plan.n, before, len(plan.entries)) for plan, before in plans]
    rows = [
        (i, seq, entry.at, entry.kind)
        for i, (plan, before) in enumerate(plans, 1)
        for seq, entry in enumerate(plan.entries, before + 1)
    ]
    first = plans[0][0]
    moved = await on.all(
        "append_on_many",
        *_as_text(heads, (texts, numbers, numbers, numbers, numbers)),
        *(first.worker, now, first.entries[0].version),
        *_as_text(rows, (numbers, numbers, numbers, texts)),
        *pieces([entry.data for plan, _ in plans for entry in plan.entries]),
        hexes([chain.head for chain in chains]),
        hexes([digest for chain in chains for digest in chain.digests or ()]),
    )
    places: set[int] = {i - 1 for (i,) in moved}
    for place in places:
        _keep_receipts(chains[place], plans[place][1], (), (), quiet=False)
    return places


async def _move_many(
    on: PgTransaction, chains: Sequence[Chain], leases: PgLeases, now: int, *, besides: Set[int]
) -> set[int]:  # fmt: skip
    moving = [(i, chain) for i, chain in enumerate(chains) if i not in besides and not chain.alone]
    if not moving:
        return set()
    sending = any(plan.outbox for _, chain in moving for plan in chain.plans)
    waits = sorted({wait for _, chain in moving for wait in chain.last.waits})
    extras = _Extras()
    for i, chain in moving:
        extras.add(i, chain.plans)
    if not waits and not extras.any_but_bytes and not sending:
        moved = await _move(on, moving, extras, leases, now)
        on.counters.commits += 1
        return moved
    async with on.transaction():
        if waits:
            await on.all("promises_watch", waits)
        moved = await _move(on, moving, extras, leases, now)
        if extras.any_but_bytes:
            await _write_more(on, chains, moved)
        if sending and moved:
            await _send_all(on, [job for i in sorted(moved) for job in chains[i].jobs if job.item.outbox], now)
    return moved


async def _send_all(on: PgTransaction, jobs: Sequence[AppendJob], now: int) -> None:
    """Deliver the outbox of plans that were just written, in one batch, and add the results to their receipts."""
    told = iter(await send(on, [new for job in jobs for new in job.item.outbox], now))
    for job in jobs:
        assert job.result is not None  # the plan was written
        job.result = replace(job.result, sent=tuple(islice(told, len(job.item.outbox))))
    await _note(on, [(job.item, job.result.sent) for job in jobs if job.result is not None])


async def _send_alone(on: PgTransaction, plan: Plan, now: int) -> tuple[OutboxResult, ...]:
    places = sorted(range(len(plan.outbox)), key=lambda place: (plan.outbox[place].stream, place))
    told = {place: await send_one(on, plan.outbox[place], now) for place in places}
    sent = tuple(told[place] for place in range(len(plan.outbox)))
    await _note(on, [(plan, sent)])
    return sent


async def _note(on: PgTransaction, verdicts: Sequence[tuple[Plan, tuple[OutboxResult, ...]]]) -> None:
    """Store rejected outbox entries, so that a repeated plan returns the same results."""
    noted = [
        (plan.stream, plan.fence, plan.n, place, one.verdict, one.because)
        for plan, sent in verdicts
        for place, one in enumerate(sent)
        if one.verdict != "accepted"
    ]
    if noted:
        await on.all("outbox_rejections_put", *map(list, zip(*noted, strict=True)))


async def _move_lone(on: PgTransaction, i: int, chain: Chain, now: int) -> set[int]:
    plan, entries = chain.first, chain.first.entries
    version = entries[0].version if entries else 0
    rows = [cell for entry in entries for cell in (entry.at, entry.kind, entry.key, entry.data)]
    found = await on.one(
        "append_lone",
        *(
            plan.stream,
            plan.fence,
            plan.n,
            len(entries),
            plan.worker,
            plan.lease == "release",
            plan.active,
            plan.parked,
        ),
        *(version, now, plan.known_seq),
        *rows,
        *NOTHING * (FEW - len(entries)),
        *(chain.before, chain.head),
        *(chain.digests or ()),
        *(None,) * (FEW - len(entries)),
    )
    if found is None:
        return set()
    stream, before, own, quiet = found
    missed = await _missed_by(on, chain, stream, before, own)
    _keep_receipts(chain, before, missed, (), quiet=quiet)
    return {i}


async def _move(
    on: PgTransaction, moving: Sequence[tuple[int, Chain]], extras: _Extras, leases: PgLeases, now: int
) -> set[int]:  # fmt: skip
    until = leases.end()
    renewed = leases.due(chain.first.worker for _, chain in moving)
    rows = await on.all("append", *_arguments(moving, now), renewed, leases.lease_ms, *extras.bytes(), *_ends(moving))
    chains = dict(moving)
    for i, stream, before, met, own, quiet, leased, _ in rows:
        chain = chains[i]
        missed = await _missed_by(on, chain, stream, before, own)
        answers = await _answers(on, chain.last.waits) if met else ()
        _keep_receipts(chain, before, missed, answers, quiet=quiet)
        for worker in leased or ():
            leases.remember(WorkerId(worker), until)
    return {row[0] for row in rows}


def _arguments(moving: Sequence[tuple[int, Chain]], now: int) -> list[object]:
    heads: list[tuple[object, ...]] = []
    entries: list[tuple[object, ...]] = []
    data: list[bytes] = []
    consumed: list[tuple[int, int]] = []
    waits: list[tuple[int, PromiseId]] = []
    for i, chain in moving:
        first, last = chain.first, chain.last
        place, format = 0, 0
        for plan in chain.plans:
            for entry in plan.entries:
                place += 1
                format = max(format, entry.version)
                entries.append((i, place, entry.at, entry.kind, entry.version, entry.key, plan.n))
                data.append(entry.data)
            consumed += [(i, inbox_id) for inbox_id in plan.consume]
        waits += [(i, wait) for wait in last.waits]
        where = (i, first.stream, first.fence, first.n, last.n, first.worker)
        left = (last.lease == "release", last.active, last.parked, format, place, chain.known)
        heads.append((*where, *left))
    return [
        *_as_text(heads, _HEAD),
        now,
        *_as_text(entries, _ENTRY),
        *pieces(data),
        *_as_text(consumed, (numbers, numbers)),
        *_as_text(waits, (numbers, texts)),
    ]


def _ends(moving: Sequence[tuple[int, Chain]]) -> list[str]:
    chains = [chain for _, chain in moving]
    digests = [digest for chain in chains for digest in chain.digests or ()]
    return [numbers([chain.before for chain in chains]), hexes([chain.head for chain in chains]), hexes(digests)]


_HEAD = (numbers, texts, numbers, numbers, numbers, texts, flags, flags, flags, numbers, numbers, numbers)
_ENTRY = (numbers, numbers, numbers, texts, numbers, texts, numbers)


def _as_text(rows: Sequence[tuple[Any, ...]], kinds: Sequence[Callable[[Iterable[Any]], str]]) -> list[str]:
    columns: Iterable[Iterable[Any]] = zip(*rows, strict=True) if rows else ((),) * len(kinds)
    return [kind(column) for kind, column in zip(kinds, columns, strict=True)]


async def _write_more(on: PgTransaction, chains: Sequence[Chain], moved: set[int]) -> None:
    extras = _Extras()
    for i in sorted(moved):
        extras.add(i, chains[i].plans)
    extras.refs.clear()  # already written with the records
    extras.blobs.clear()
    if extras.any:
        places = sorted(moved)
        await on.all("append_more", numbers(places), texts(chains[i].first.stream for i in places), *extras.columns())


async def _missed_by(on: PgTransaction, chain: Chain, stream: int, before: int, own: int | None) -> tuple[Row, ...]:
    """Return the admitted records that the owner of a chain does not know.

    `before` is the last seq before the append. `own` counts the rows of owners between the chain's known seq and
    `before` in the statement's snapshot. A difference means admitted rows, or rows committed during the lock wait.
    """
    if own is None or own == before - chain.known:
        return ()
    return log_rows(chain.first.stream, await on.all("log_admitted_between", stream, chain.known, before + 1))


def _keep_receipts(chain: Chain, before: int, missed: tuple[Row, ...], answers: Answers, *, quiet: bool) -> None:
    first = before + 1
    for job in chain.jobs:
        plan = job.item
        last = first + len(plan.entries) - 1
        job.result = Receipt(
            plan.stream,
            plan.fence,
            plan.n,
            Seq(first),
            Seq(last),
            tuple(row for row in missed if row.seq > plan.known_seq),
            answers if plan is chain.last else (),
            quiet=quiet and plan is chain.last,
        )
        first = last + 1


# --- one alone


async def alone(on: PgTransaction, plan: Plan, leases: PgLeases, now: int) -> Receipt:
    """Write a plan in its own transaction, or return its first receipt if it was written before.

    Raises:
        Error: the plan was refused. Nothing was written.
    """
    until = leases.end()
    async with on.transaction():
        if plan.waits:
            await on.all("promises_watch", list(plan.waits))
        if plan.person_requests or plan.uses:  # lock order everywhere: promises, then the stream
            await on.all("promises_lock", [*plan.uses, *(ask.promise for ask in plan.person_requests)])
        found = await on.one("stream_lock", plan.stream)
        if found is None:
            raise lease_lost(plan.stream)
        stream, state, end = found[0], StreamState(*found[1:-1]), (found[4], found[-1])
        judgement = judge(plan, state)
        if isinstance(judgement, Refuse):
            raise judgement.error
        if isinstance(judgement, AlreadyApplied):
            on.heads.note(plan.stream, *end)
            return await _receipt_again(on, plan, stream, state)
        receipt, head = await _apply(on, plan, stream, end, state, now)
        renewed = leases.due([plan.worker]) and await on.one("worker_renew", plan.worker, leases.lease_ms)
    on.counters.plans += 1
    on.heads.note(plan.stream, receipt.last_seq, head)
    if renewed:
        leases.remember(plan.worker, until)
    return receipt


async def _apply(
    on: PgTransaction, plan: Plan, stream: int, end: tuple[Seq, bytes], state: StreamState, now: int
) -> tuple[Receipt, bytes]:
    """Write a plan after the end of its log; return the receipt and the new head."""
    first = Seq(end[0] + 1)
    await check_keys(on, plan.stream, stream, plan.entries)
    head = await write_log(on, (plan.stream, stream), end, plan.entries, by=(plan.fence, plan.n))
    await _consume(on, plan, stream)
    extras = _Extras()
    extras.add(0, [plan])
    if extras.any:
        await on.all("append_more", numbers([0]), texts([plan.stream]), *extras.columns())
    if plan.drops:
        await on.all("blobs_unrefer", stream, list(plan.drops))
        await on.all("blob_collect", sorted(plan.drops))
    sent = await _send_alone(on, plan, now) if plan.outbox else ()
    if plan.concerns_people:
        await _ask_and_use(on, plan, stream)
    if plan.prunes is not None:
        await on.all("log_prune", stream, list(plan.prunes.seqs))
        await on.all("admissions_prune", stream, list(plan.prunes.source_keys))
    resolved = await _answers(on, plan.waits) if plan.waits else ()
    parked = not resolved
    if plan.waits and parked:
        await on.all("wait_insert", stream, list(plan.waits))
    last = Seq(first + len(plan.entries) - 1)
    await on.all(
        "stream_advance",
        stream,
        last,
        plan.n,
        None if parked and plan.lease == "release" else plan.worker,
        plan.active or not parked,
        plan.parked and parked,
        max([state.format, *(entry.version for entry in plan.entries)]),
        now,
        head,
    )
    if plan.recovers:
        await on.all("stream_still_stuck", stream, last)
    missed = await _missed(on, plan, stream, first)
    return Receipt(plan.stream, plan.fence, plan.n, first, last, missed, resolved, sent=sent), head


async def _ask_and_use(on: PgTransaction, plan: Plan, stream: int) -> None:
    for key, kind in await on.all("log_taken", stream, list(plan.unless)) if plan.unless else ():
        raise key_taken(plan.stream, key, kind)
    if plan.uses:
        now = await server_now(on)
        for promise in plan.uses:
            check_use(plan, promise, await read_promise(on, promise), now)
            await on.all("promise_use", promise, now)
    tenant = stream_names(plan.stream)[0]
    for ask in plan.person_requests:
        await on.all("promise_ask", ask.promise, stream, ask.deadline_at, ask.kind, ask.at, tenant)


async def _consume(on: PgTransaction, plan: Plan, stream: int) -> None:
    if not plan.consume:
        return
    gone = {row[0] for row in await on.all("inbox_consume", list(plan.consume), stream)}
    for inbox_id in plan.consume:
        if inbox_id not in gone:
            raise inbox_gone(plan, inbox_id)
        gone.discard(inbox_id)  # a repeated id is missing the second time


async def _receipt_again(on: PgTransaction, plan: Plan, stream: int, state: StreamState) -> Receipt:
    rows = log_rows(plan.stream, await on.all("log_of_append", stream, plan.fence, plan.n))
    (before,) = await on.one("log_before_append", stream, plan.fence, plan.n)
    first, last = recall(plan, state, rows, before)
    missed = await _missed(on, plan, stream, first)
    resolved = await _answers(on, plan.waits)
    sent = await _sent_before(on, plan, stream) if plan.outbox else ()
    return Receipt(plan.stream, plan.fence, plan.n, first, last, missed, resolved, replayed=True, sent=sent)


async def _sent_before(on: PgTransaction, plan: Plan, stream: int) -> tuple[OutboxResult, ...]:
    rows = await on.all("outbox_rejections_read", stream, plan.fence, plan.n)
    noted = {place: OutboxResult(verdict, because) for place, verdict, because in rows}
    return tuple(noted.get(place, OutboxResult("accepted")) for place in range(len(plan.outbox)))


async def _missed(on: PgTransaction, plan: Plan, stream: int, first: Seq) -> tuple[Row, ...]:
    if plan.known_seq + 1 >= first:
        return ()
    return log_rows(plan.stream, await on.all("log_admitted_between", stream, plan.known_seq, first))


async def _answers(on: PgTransaction, waits: Sequence[PromiseId]) -> Answers:
    if not waits:
        return ()
    found: list[Cells] = await on.all("promises_answered", list(waits))
    answered = {promise: decode(resolution, Resolution) for promise, resolution in found}
    return tuple((wait, answered[wait]) for wait in waits if wait in answered)
