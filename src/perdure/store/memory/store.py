"""`MemoryStore`: every law of the store protocol, in dicts. Nothing survives the process."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec import structs

from perdure.clock import Clock
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
from perdure.commit.plan import (
    AlreadyApplied,
    Apply,
    Blob,
    Entry,
    Plan,
    Receipt,
    Refuse,
    Sent,
    SetTimer,
    check_budget,
    check_use,
    first_entry,
    inbox_gone,
    judge,
    key_taken,
    recall,
    sent_as,
)
from perdure.errors import Code, Error
from perdure.ids import BlobHash, Fence, PromiseId, Seq, StreamId, Tenant, WorkerId, stream_names
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
from perdure.store.memory.state import UNFENCED, Counted, Stream, Worker
from perdure.store.permits import Ask, Permit, allot
from perdure.store.protocol import (
    EVERYTHING,
    PATIENCE_MS,
    START,
    Accepted,
    AlreadyResolved,
    Annotated,
    Claim,
    Counters,
    Diagnosis,
    Held,
    InboxRow,
    Intervened,
    Loaded,
    Place,
    Ready,
    Resolved,
    Serves,
    StreamInfo,
    Unknown,
    WorkerInfo,
)
from perdure.vocab.promises import PromiseState, Resolution, TimedOut
from perdure.vocab.records import FORMAT, Row


class MemoryStore:
    """Durable for as long as the object lives. Several runtimes of one process may share it, as several processes
    share a file: each registers its own worker.
    """

    def __init__(self, clock: Clock, *, lease_ms: int = 10_000) -> None:
        self.counters = Counters()
        self._clock = clock
        self._lease_ms = lease_ms
        self._streams: dict[StreamId, Stream] = {}
        self._graves: dict[StreamId, Fence] = {}
        self._workers: dict[WorkerId, Worker] = {}
        self._promises: dict[PromiseId, PromiseState] = {}
        self._blobs: dict[BlobHash, Counted] = {}
        self._secrets: dict[str, bytes] = {}
        self._permits: list[Permit] = []
        self._inbox_ids = itertools.count(1)
        self._numbers = itertools.count(1)

    async def open(self) -> None:
        """Nothing to connect."""

    async def close(self) -> None:
        """Nothing to release: the data lives as long as the object."""

    # --- workers and leases

    async def register(
        self,
        worker: WorkerId,
        *,
        pid: int,
        version: str,
        now: int,
        host: str = "",
        concurrency: int = 0,
        queues: tuple[str, ...] | None = None,
    ) -> None:
        """Make a worker known and alive."""
        self._workers[worker] = Worker(
            worker, pid, version, now, self._lease_end(), host, False, self._lease_ms, concurrency, queues
        )  # fmt: skip
        for dead in [other.id for other in self._workers.values() if other.dead]:
            self._forget(dead)
        self._committed()

    def _forget(self, dead: WorkerId) -> None:
        """Let go of what a dead worker held and had nothing to do with; if that was all, forget it."""
        held = [stream for stream in self._streams.values() if stream.owner == dead]
        for stream in held:
            if not (stream.active or stream.parked or stream.inbox or stream.timers):
                stream.owner = None
        if all(stream.owner is None for stream in held):
            del self._workers[dead]
            self._permits = [permit for permit in self._permits if permit.worker != dead]

    async def renew(self, worker: WorkerId) -> None:
        """Extend a worker's lease."""
        self._extend(worker)
        self._committed()

    def lease_live(self, worker: WorkerId) -> bool:
        """Whether this worker's lease has certainly not lapsed."""
        return not self._gone(worker)

    async def retire(self, worker: WorkerId, *, loose_ends: bool = False) -> None:
        """The worker ends in order: what it held is free at once. With loose ends it is not dead before we are."""
        if loose_ends and worker in self._workers:
            left = self._workers[worker]
            left.lease_until, left.lease_ms = self._clock.monotonic_ms(), 0  # this is when it was last seen
        else:
            self._workers.pop(worker, None)
            self._permits = [permit for permit in self._permits if permit.worker != worker]
        for stream in self._streams.values():
            if stream.owner == worker:
                stream.owner = None
        self._committed()

    async def workers(self) -> tuple[WorkerInfo, ...]:
        """All workers that are known."""
        return tuple(self._seen(worker) for worker in self._workers.values())

    def _seen(self, worker: Worker) -> WorkerInfo:
        held = [stream for stream in self._streams.values() if stream.owner == worker.id]
        return WorkerInfo(
            worker.id,
            worker.pid,
            worker.version,
            worker.started_at,
            worker.lease_until,
            not self._gone(worker.id),
            worker.host,
            worker.lease_until - self._clock.monotonic_ms(),
            len(held),
            sum(stream.active for stream in held),
            worker.lease_ms,
            worker.concurrency,
            worker.queues,
        )

    async def is_dead(self, worker: WorkerId) -> bool:
        """Whether this worker was killed or has retired; a lapsed lease alone is not certainty."""
        known = self._workers.get(worker)
        return known is None or known.dead

    async def exchange(
        self, worker: WorkerId, *, asks: Sequence[Ask] = (), back: Sequence[str] = (), now: int
    ) -> frozenset[str]:
        """Give permits back, and ask for others."""
        self._permits = [row for row in self._permits if row.worker != worker or row.holder not in back]
        granted, changed = allot(await self.permits(), asks, worker)
        for row in changed:
            which = (row.worker, row.name, row.holder)
            known = [at for at, old in enumerate(self._permits) if (old.worker, old.name, old.holder) == which]
            if known:
                self._permits[known[0]] = replace(row, at=self._permits[known[0]].at)
            else:
                self._permits.append(replace(row, at=now))
        self._committed()
        return granted

    async def permits(self) -> tuple[Permit, ...]:
        """Every permit that is held or waited for, in the order of asking."""
        return tuple(replace(permit, alive=not self._gone(permit.worker)) for permit in self._permits)

    def kill(self, worker: WorkerId) -> None:
        """For tests: the worker's process ends without a word, and everybody can tell."""
        if worker in self._workers:
            self._workers[worker].dead = True

    def _gone(self, worker: WorkerId | None) -> bool:
        """Whether nobody alive is behind this name: killed, unknown, or its lease lapsed."""
        known = self._workers.get(worker) if worker is not None else None
        return known is None or known.dead or known.lease_until <= self._clock.monotonic_ms()

    def _extend(self, worker: WorkerId) -> None:
        known = self._workers.get(worker)
        if known is not None and not known.dead:
            known.lease_until = self._lease_end()

    def _lease_end(self) -> int:
        return self._clock.monotonic_ms() + self._lease_ms

    def _committed(self) -> None:
        self.counters.commits += 1

    # --- append

    def append(self, plan: Plan) -> asyncio.Future[Receipt]:
        """Make a plan durable: all of it, or nothing. Done at the call; the future has already ended."""
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self._append(plan))
        except Error as refusal:
            future.set_exception(refusal)
            future.exception()  # nobody has to await an append: a refusal is not an "exception never retrieved"
        return future

    def _append(self, plan: Plan) -> Receipt:
        check_budget(plan)
        stream = self._streams.get(plan.stream)
        judgement = judge(plan, stream.state if stream else None)
        if isinstance(judgement, Refuse):
            raise judgement.error
        assert stream is not None  # judge refuses what does not exist
        if isinstance(judgement, AlreadyApplied):
            return self._receipt_again(plan, stream)
        self._check(plan, stream)
        return self._apply(plan, stream, judgement)

    def _receipt_again(self, plan: Plan, stream: Stream) -> Receipt:
        rows, before = stream.written_by(plan.fence, plan.n)
        first, last = recall(plan, stream.state, rows, before)
        return Receipt(
            stream=plan.stream,
            fence=plan.fence,
            n=plan.n,
            first_seq=first,
            last_seq=last,
            missed=stream.admitted_between(plan.known_seq, first),
            resolved=self._resolved(plan.waits),
            replayed=True,
            sent=stream.verdicts.get((plan.fence, plan.n), ()),
        )

    def _check(self, plan: Plan, stream: Stream) -> None:
        """Find every reason to refuse before anything changes: this store has no transaction to roll back."""
        taken = {key: row.kind for key, row in stream.keys.items()}
        for entry in plan.entries:
            if entry.key is not None:
                if entry.key in taken:
                    raise key_taken(plan.stream, entry.key, taken[entry.key])
                taken[entry.key] = entry.kind
        for position, inbox_id in enumerate(plan.consume):
            if inbox_id not in stream.inbox or inbox_id in plan.consume[:position]:
                raise inbox_gone(plan, inbox_id)
        for key in plan.unless:
            if key in stream.keys:
                raise key_taken(plan.stream, key, stream.keys[key].kind)
        now, used = self._clock.wall_ms(), dict[PromiseId, PromiseState]()
        for promise in plan.uses:
            known = used.get(promise) or self._promises.get(promise)
            check_use(plan, promise, known, now)
            used[promise] = structs.replace(self._promises[promise], consumed_at=now)

    def _apply(self, plan: Plan, stream: Stream, judgement: Apply) -> Receipt:
        resolved = self._resolved(plan.waits)
        missed = stream.admitted_between(plan.known_seq, judgement.first_seq)
        for entry in plan.entries:
            stream.write(entry, fence=plan.fence, n=plan.n)
        for inbox_id in plan.consume:
            del stream.inbox[inbox_id], stream.came_at[inbox_id]
            stream.news.discard(inbox_id)
        for timer in plan.timers:
            if isinstance(timer, SetTimer):
                stream.timers.setdefault(timer.name, timer.due_at)
            else:
                stream.timers.pop(timer.name, None)
        self._refer(stream, plan.blobs)
        if plan.snapshot is not None:
            stream.snapshot = plan.snapshot
        sent = tuple(self._send(new) for new in plan.sends)
        if sent:
            stream.verdicts[plan.fence, plan.n] = sent
        for promise in plan.uses:
            used = structs.replace(self._promises[promise], consumed_at=self._clock.wall_ms())
            self._promises[promise] = used
        for ask in plan.asks:
            asked = PromiseState(
                id=ask.promise, stream=stream.id, deadline_at=ask.deadline_at, asks=ask.kind, asked_at=ask.at
            )
            self._promises.setdefault(ask.promise, asked)
        self._park(plan, stream, resolved)
        self._extend(plan.worker)
        self.counters.plans += 1
        self._committed()
        return Receipt(
            stream=plan.stream,
            fence=plan.fence,
            n=plan.n,
            first_seq=judgement.first_seq,
            last_seq=stream.last_seq,
            missed=missed,
            resolved=resolved,
            sent=sent,
        )

    def _send(self, new: Delivery) -> Sent:
        try:
            return sent_as(self._admit(new))
        except Error as refusal:
            return Sent("discarded", refusal.code)

    def _park(self, plan: Plan, stream: Stream, resolved: tuple[tuple[PromiseId, Resolution], ...]) -> None:
        """A plan that meets an answer does not park: it keeps its stream, which stays active so that a crash now
        cannot lose the answer.
        """
        stream.n = plan.n
        stream.updated_at = stream.served_at = self._clock.wall_ms()
        stream.active = plan.active or bool(resolved)
        stream.parked = plan.parked and not resolved
        if not resolved:
            stream.waits.update(plan.waits)
            if plan.lease == "release":
                stream.owner = None

    def _resolved(self, waits: Iterable[PromiseId]) -> tuple[tuple[PromiseId, Resolution], ...]:
        states = (self._promises.get(wait) for wait in waits)
        return tuple((s.id, s.resolution) for s in states if s is not None and s.resolution is not None)

    # --- admission

    async def admit(self, delivery: Delivery, *, claim_for: WorkerId | None = None) -> Admission:
        """Put something into a stream's inbox, once; claim the stream too if it is free and idle."""
        admission = self._admit(delivery)
        if not isinstance(admission, Admitted):
            return admission
        self._committed()
        stream = self._streams[delivery.stream]
        idle = stream.owner is None and not (stream.active or stream.parked or stream.paused)
        if claim_for is None or not idle or stream.format > FORMAT:
            return admission
        return Admitted(admission.inbox_id, self._take(stream, claim_for).fence)

    def _admit(self, new: Delivery) -> Admission:
        stream = self._streams.get(new.stream)
        opening = opens(stream.agent if stream else None, new)
        if opening and new.once and new.stream in self._graves:
            return Conflict(new.source_key)
        judged = decide(stream.admissions.get(new.source_key) if stream else None, new)
        if judged is not None:
            return judged
        self._check_refers(new)
        if opening:
            stream = self._open_stream(new)
        assert stream is not None  # opens() refuses what neither exists nor is opened
        self._refer(stream, (*new.blobs, *(self._blobs[hash].blob for hash in new.refers)))
        stream.admissions[new.source_key] = (new.content, *ids_of(new.item))
        return Admitted(self._deliver(stream, new))

    def _open_stream(self, new: Delivery) -> Stream:
        now = self._clock.wall_ms()
        stream = Stream(new.stream, new.agent or "", now, now, fence=self._graves.get(new.stream, UNFENCED))
        stream.queue, stream.priority, stream.number = new.queue, new.priority, next(self._numbers)
        stream.write(first_entry(new))
        stream.tag(*new.tags)
        self._streams[new.stream] = stream
        return stream

    def _deliver(self, stream: Stream, new: Delivery) -> int:
        inbox_id = next(self._inbox_ids)
        stream.inbox[inbox_id] = InboxRow(inbox_id, new.stream, new.source_key, new.data, new.at)
        stream.came_at[inbox_id] = self._clock.wall_ms()
        if is_news(new.item):
            stream.news.add(inbox_id)
        return inbox_id

    def _check_refers(self, new: Delivery) -> None:
        """Bytes may be referred to again by whose tenant has them."""
        tenant = stream_names(new.stream)[0]
        for hash in new.refers:
            owners = self._blobs[hash].owners if hash in self._blobs else ()
            if all(stream_names(owner)[0] != tenant for owner in owners):
                raise blob_unknown(hash)

    def _refer(self, stream: Stream, blobs: Iterable[Blob]) -> None:
        for blob in blobs:
            self._blobs.setdefault(blob.hash, Counted(blob)).owners.add(stream.id)
            stream.blobs.add(blob.hash)

    def _unrefer(self, stream: Stream, hashes: Iterable[BlobHash]) -> None:
        for hash in hashes:
            stream.blobs.discard(hash)
            if (counted := self._blobs.get(hash)) is not None:
                counted.owners.discard(stream.id)
                if not counted.owners:
                    del self._blobs[hash]

    async def annotate(self, stream: StreamId, entry: Entry, *, label: Label | None = None) -> Annotated:
        """Append an admitted record, unfenced; the first one under a key stands."""
        found = self._existing(stream)
        noted = _note(found, entry)
        if noted.new:
            found.updated_at = self._clock.wall_ms()
            if label is not None:
                _relabel(found, label)
            self._committed()
        return noted

    async def annotate_all(self, notes: Sequence[Note]) -> tuple[Annotated, ...]:
        """Append admitted records to several streams: all or nothing."""
        for note in notes:
            self._existing(note.stream)
        return tuple([await self.annotate(note.stream, note.entry, label=note.label) for note in notes])

    async def intervene(self, intervention: Intervention) -> Intervened:
        """Do something to a stream from outside: all of it or nothing."""
        stream, new, pause = self._existing(intervention.stream), intervention.delivery, intervention.pause
        newer = intervention.known_inbox is not None and max(stream.inbox, default=0) > intervention.known_inbox
        if newer or any(row not in stream.inbox for row in intervention.withdraw):
            raise stream_moved(stream.id)
        if pause is not None and (pause.since is None) == (stream.paused is None):
            return Intervened(done=False)
        admission = self._admit(new) if new is not None else None
        if new is not None and not isinstance(admission, Admitted):
            return Intervened(done=False, admission=admission)
        for row in intervention.withdraw:
            del stream.inbox[row], stream.came_at[row]
            stream.news.discard(row)
        if pause is not None:
            self._pause(stream, pause)
        stream.updated_at = self._clock.wall_ms()
        self._committed()
        return Intervened(True, admission, tuple(_note(stream, entry) for entry in intervention.notes))

    def _pause(self, stream: Stream, pause: Pause) -> None:
        stream.paused = pause if pause.since is not None else None
        if pause.since is not None and not stream.active:
            stream.owner, stream.fence, stream.n = None, Fence(stream.fence + 1), 0

    async def redact(self, redaction: Redaction) -> Annotated:
        """Replace what a record said, once; its snapshot and the references it alone had go too."""
        stream = self._existing(redaction.stream)
        note = redaction.note
        if note.key is not None and note.key in stream.keys:
            return Annotated(stream.keys[note.key], new=False)
        if not 1 <= redaction.seq <= stream.last_seq:
            raise record_unknown(redaction.stream, redaction.seq)
        moved = stream.last_seq != redaction.known_seq or max(stream.inbox, default=0) > redaction.known_inbox
        if redaction.drops and moved:
            raise stream_moved(redaction.stream)
        stream.rewrite(redaction.seq, redaction.data)
        stream.snapshot = None
        self._unrefer(stream, redaction.drops)
        for promise, told in redaction.answers:
            known = self._promises.get(promise)
            if known is not None and known.stream == stream.id and known.resolution is not None:
                self._promises[promise] = structs.replace(known, resolution=told)
        wake_owner = delivery(stream.id, f"{REDACTED}:{redaction.seq}", Wake(reason=REDACTED), at=redaction.at)
        self._deliver(stream, wake_owner)
        stream.updated_at = self._clock.wall_ms()
        self._committed()
        return Annotated(stream.write(note), new=True)

    async def amend(self, amendment: Amendment) -> Annotated:
        """Add a record, with the bytes it brings and without those it lets go."""
        stream = self._existing(amendment.stream)
        noted = _note(stream, amendment.entry)
        if noted.new:
            self._refer(stream, amendment.blobs)
            self._unrefer(stream, amendment.drops)
            stream.snapshot = amendment.snapshot or stream.snapshot
            stream.updated_at = self._clock.wall_ms()
            self._committed()
        return noted

    async def create(self, new: NewStream) -> None:
        """A stream with its past."""
        check_admissions(new)
        if new.beside is not None:
            self._existing(new.beside)
        if new.stream in self._streams:
            raise stream_exists(new.stream)
        now = self._clock.wall_ms()
        stream = Stream(new.stream, new.agent, now, now, fence=self._graves.get(new.stream, UNFENCED))
        keys: dict[str, str] = {}
        for entry in new.entries:
            if entry.key is not None and entry.key in keys:
                raise key_taken(new.stream, entry.key, keys[entry.key])
            if entry.key is not None:
                keys[entry.key] = entry.kind
        for entry in new.entries:
            stream.write(entry)
        for known in new.admissions:
            stream.admissions[known.source_key] = (known.content, known.turn, known.input)
        _relabel(stream, new.label)
        stream.number = next(self._numbers)
        self._streams[new.stream] = stream
        self._refer(stream, new.blobs)
        self._committed()

    def _existing(self, stream: StreamId) -> Stream:
        found = self._streams.get(stream)
        if found is None:
            raise stream_unknown(stream)
        return found

    # --- claims

    async def claim(self, stream: StreamId, worker: WorkerId) -> Claim | Held | None:
        """Take a stream that no live worker holds, or that this worker holds. Raises the fence."""
        found = self._streams.get(stream)
        if found is None:
            return None
        holder = found.owner if found.owner != worker and not self._gone(found.owner) else None
        if holder is not None and not self._left_waiting(found):
            return Held(holder)
        if found.format > FORMAT:
            raise Error(
                Code.FORMAT_NEWER,
                f"the stream has records of format {found.format}; this version reads up to {FORMAT}",
                hint="let a newer worker drive it, or upgrade this one",
                stream=stream,
            )
        if found.paused is not None and found.owner != worker:
            return None
        self._committed()
        return self._take(found, worker, left=holder is not None)

    def _take(self, stream: Stream, worker: WorkerId, *, left: bool = False) -> Claim:
        previous, stream.owner = stream.owner, worker
        if previous is None:
            stream.takeovers = 0
        takeovers = 0 if left else stream.stuck if previous in (None, worker) else stream.taken_over()
        stream.fence = Fence(stream.fence + 1)
        stream.n = 0
        self._extend(worker)
        return Claim(stream.id, stream.fence, stream.last_seq, previous, stream.parked, takeovers)

    async def claimable(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[StreamId, ...]:
        """Streams with work that this worker may drive, in order."""
        return tuple(stream.id for stream, _ in self._ready(worker, now, serves)[:limit])

    async def claim_ready(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[Ready, ...]:
        """What `claimable` tells, and those that nobody holds are claimed with it."""
        self._committed()
        return tuple(
            Ready(stream.id, place.queue, self._take(stream, worker) if stream.owner is None else None)
            for stream, place in self._ready(worker, now, serves)[:limit]
        )

    def _ready(self, worker: WorkerId, now: int, serves: Serves) -> list[tuple[Stream, Place]]:
        """What a worker may drive, in the order in which it should."""
        ready: list[tuple[Stream, Place, int]] = []
        for stream in self._streams.values():
            since, place = self._work_since(stream, now), _place(stream, serves)
            suspected = stream.owner not in (None, worker) and stream.stuck > 0
            if serves.suspects != "also" and suspected is not (serves.suspects == "only"):
                continue
            if since is not None and place is not None and self._may_drive(stream, worker):
                ready.append((stream, place, max(since, stream.served_at)))
        ready.sort(key=lambda found: found[2])
        rounds: Counter[tuple[int, str]] = Counter()
        order: list[tuple[tuple[int, int, int], Stream, Place]] = []
        for stream, place, _ in ready:
            tenant = Tenant(stream.names[0])
            rounds[place.priority, tenant] += 1
            lately = serves.recent.index(tenant) if tenant in serves.recent else -1
            order.append(((-place.priority, rounds[place.priority, tenant], lately), stream, place))
        order.sort(key=lambda found: found[0])
        return [(stream, place) for _, stream, place in order]

    def _work_since(self, stream: Stream, now: int) -> int | None:
        """Since when there has been something to do; None: there is nothing."""
        if stream.paused is not None:
            return None
        due = [due_at for due_at in stream.timers.values() if due_at <= now]
        waiting = [at for id, at in stream.came_at.items() if id in stream.news or not stream.parked]
        left = [stream.served_at] if stream.active else []
        return min([*due, *waiting, *left], default=None)

    async def place(self, stream: StreamId, queue: str | None, priority: int | None) -> None:
        """Give a stream a queue and a priority of its own."""
        found = self._existing(stream)
        found.queue, found.priority = queue, priority
        self._committed()

    def _may_drive(self, stream: Stream, worker: WorkerId) -> bool:
        free = stream.owner == worker or self._gone(stream.owner)
        return (free or self._left_waiting(stream)) and stream.format <= FORMAT

    def _left_waiting(self, stream: Stream) -> bool:
        """Nothing of it is under way, and something has waited in its inbox while its owner wrote nothing. One that has
        not written since it took it is beginning: it is not disturbed."""
        waited = self._clock.wall_ms() - PATIENCE_MS
        idle = not stream.active and not stream.parked and stream.n > 0 and stream.served_at <= waited
        return idle and any(at <= waited for at in stream.came_at.values())

    # --- reads

    async def next_due(self) -> int | None:
        """The earliest timer of all streams."""
        return min((due for s in self._streams.values() for due in s.timers.values()), default=None)

    async def load(self, stream: StreamId, *, code: str) -> Loaded:
        """What a new owner folds; a snapshot of another code version is passed over."""
        found = self._streams.get(stream)
        if found is None:
            return Loaded(None, (), ())
        snapshot = found.snapshot if found.snapshot and found.snapshot.code == code else None
        tail = found.log[snapshot.seq if snapshot else 0 :]
        return Loaded(snapshot, tuple(s.row for s in tail), tuple(found.inbox.values()))

    async def inbox(self, stream: StreamId) -> tuple[InboxRow, ...]:
        """What waits for a stream, oldest first."""
        found = self._streams.get(stream)
        return tuple(found.inbox.values()) if found else ()

    async def read(
        self, stream: StreamId, *, after: Seq = START, until: Seq | None = None, limit: int | None = None
    ) -> tuple[Row, ...]:
        """Log rows in order, `after` exclusive, `until` inclusive."""
        found = self._streams.get(stream)
        rows = found.log[after:until] if found else []
        return tuple(s.row for s in rows[:limit])

    async def find(self, stream: StreamId, key: str) -> Row | None:
        """The row with this log key."""
        found = self._streams.get(stream)
        return found.keys.get(key) if found else None

    async def count(self, stream: StreamId, begins: str, *, until: Seq) -> int:
        """How many rows up to `until` have a log key that begins like this."""
        found = self._streams.get(stream)
        return sum(key.startswith(begins) and row.seq <= until for key, row in found.keys.items()) if found else 0

    async def stream(self, stream: StreamId) -> StreamInfo | None:
        """One stream's row."""
        found = self._streams.get(stream)
        return self._info(found) if found else None

    async def streams(
        self,
        *,
        tenant: Tenant,
        kind: str,
        limit: int,
        before: tuple[int, StreamId] | None = None,
        tag: str | None = None,
    ) -> tuple[StreamInfo, ...]:
        """Streams, the most recently changed first."""
        mine = [s for s in self._streams.values() if s.names[:2] == (tenant, kind) and (tag is None or tag in s.tags)]
        mine.sort(key=lambda s: (s.updated_at, s.id), reverse=True)
        rest = [s for s in mine if before is None or (s.updated_at, s.id) < before]
        return tuple(self._info(s) for s in rest[:limit])

    def _info(self, s: Stream) -> StreamInfo:
        tenant, kind, name = s.names
        return StreamInfo(
            stream=s.id,
            tenant=Tenant(tenant),
            kind=kind,
            name=name,
            agent=s.agent,
            last_seq=s.last_seq,
            fence=s.fence,
            owner=s.owner,
            owner_alive=s.owner is not None and not self._gone(s.owner),
            active=s.active,
            parked=s.parked,
            waiting_inputs=len(s.inbox),
            created_at=s.created_at,
            updated_at=s.updated_at,
            title=s.title,
            tags=s.tags,
            paused=s.paused,
            queue=s.queue,
            priority=s.priority,
            number=s.number,
        )

    async def newest(
        self,
        *,
        tenant: Tenant,
        kind: str,
        tag: str,
        limit: int,
        before: int | None = None,
        agent: str | None = None,
    ) -> tuple[StreamInfo, ...]:
        """Streams, the latest made first."""
        found = [
            stream
            for stream in self._streams.values()
            if stream.names[:2] == (tenant, kind)
            and tag in stream.tags
            and (agent is None or agent == stream.agent)
            and (before is None or stream.number < before)
        ]
        found.sort(key=lambda stream: stream.number, reverse=True)
        return tuple(self._info(stream) for stream in found[:limit])

    async def marks(self, streams: Sequence[StreamId], key: str) -> tuple[Row, ...]:
        """The first record of each, and the one under a log key."""
        found = [self._streams[name] for name in streams if name in self._streams]
        return tuple(
            row for s in found for row in (s.log[0].row if s.log else None, s.keys.get(key)) if row is not None
        )

    # --- removal

    async def drop_snapshot(self, stream: StreamId) -> None:
        """Forget a snapshot; nothing else changes."""
        if stream in self._streams:
            self._streams[stream].snapshot = None
            self._committed()

    async def delete(self, stream: StreamId, *, beside: tuple[StreamId, ...] = (), edges: tuple[str, ...] = ()) -> bool:
        """Remove a stream and everything it owns; whoever waits for one of its promises is woken to find it gone."""
        deleted = self._delete(stream)
        for other in beside:
            self._delete(other)
        for one in self._streams.values() if edges else ():
            if one.names[0] == stream_names(stream)[0]:
                one.tags = tuple(tag for tag in one.tags if not tag.startswith(edges))
        return deleted

    def _delete(self, stream: StreamId) -> bool:
        found = self._streams.pop(stream, None)
        if found is None:
            return False
        self._graves[stream] = found.fence
        self._unrefer(found, tuple(found.blobs))
        for promise in [p.id for p in self._promises.values() if p.stream == stream]:
            del self._promises[promise]
            self._wake(promise, self._clock.wall_ms())
        self._committed()
        return True

    # --- promises

    async def promise(self, promise: PromiseState) -> PromiseState:
        """Create a promise if it does not exist; the stored one is returned."""
        if promise.id not in self._promises:
            self._existing(promise.stream)
            self._promises[promise.id] = promise
            self._committed()
        return self._promises[promise.id]

    async def resolve(
        self, promise: PromiseId, resolution: Resolution, *, now: int, make: PromiseState | None = None
    ) -> Resolved:
        """Answer a promise: the first answer stands, and every stream that waits for it is woken."""
        if make is not None:
            await self.promise(make)
        known = self._promises.get(promise)
        if known is None:
            return Unknown()
        if known.resolution is not None:
            return AlreadyResolved(known.resolution)
        late = known.deadline_at is not None and known.deadline_at <= self._clock.wall_ms()
        told = TimedOut() if late else resolution
        self._promises[promise] = structs.replace(known, resolution=told)
        self._wake(promise, now)
        self._committed()
        return Accepted() if told == resolution else AlreadyResolved(told)

    async def resolve_all(
        self, answers: Sequence[tuple[PromiseState, Resolution]], *, now: int
    ) -> dict[PromiseId, Resolution]:
        """Answer several promises, all of them or none; what stood in the way."""
        closed: dict[PromiseId, Resolution] = {}
        for made, _ in answers:
            known = self._promises.get(made.id) or made
            late = known.deadline_at is not None and known.deadline_at <= self._clock.wall_ms()
            if ended := known.resolution or (TimedOut() if late else None):
                closed[made.id] = ended
        answered = answers if not closed else ()
        for made, _ in answered:
            self._existing(made.stream)
        for made, resolution in answered:
            self._promises[made.id] = structs.replace(self._promises.get(made.id) or made, resolution=resolution)
            self._wake(made.id, now)
        self._committed()
        return closed

    def _wake(self, promise: PromiseId, now: int) -> None:
        for stream in self._streams.values():
            if promise in stream.waits:
                stream.waits.discard(promise)
                self._deliver(stream, wake(stream.id, promise, at=now))

    async def peek(self, promise: PromiseId) -> PromiseState | None:
        """A promise as it is now."""
        return self._promises.get(promise)

    async def asked(
        self, *, tenant: Tenant, limit: int, after: tuple[int, PromiseId] | None = None
    ) -> tuple[PromiseState, ...]:
        """What people are asked and have not answered, the longest waiting first."""
        found = [p for p in self._promises.values() if self._asks(p, tenant) and p.resolution is None]
        placed = sorted((p.asked_at or 0, p.id) for p in found)
        return tuple(self._promises[id] for at, id in placed if after is None or (at, id) > after)[:limit]

    async def asked_as(self, *, tenant: Tenant, prefix: str, limit: int) -> tuple[PromiseState, ...]:
        """What people were asked under ids that begin like this."""
        found = [p for p in self._promises.values() if self._asks(p, tenant) and p.id.startswith(prefix)]
        return tuple(sorted(found, key=lambda p: p.id))[:limit]

    def _asks(self, promise: PromiseState, tenant: Tenant) -> bool:
        return bool(promise.asks) and stream_names(promise.stream)[0] == tenant

    async def now(self) -> int:
        """The clock's."""
        return self._clock.wall_ms()

    async def secret(self, name: str) -> bytes:
        """32 random bytes, the same as long as the object lives."""
        return self._secrets.setdefault(name, os.urandom(32))

    # --- blobs, change, health

    async def blob(self, hash: BlobHash, *, stream: StreamId | None = None) -> Blob:
        """Stored bytes; with a stream, only if it holds a reference."""
        known = self._blobs.get(hash)
        if known is None or (stream is not None and stream not in known.owners):
            raise Error(Code.BLOB_UNKNOWN, "there are no stored bytes of this name", blob=hash)
        return known.blob

    async def version(self) -> int:
        """Changes with every commit: who shares the object cannot be told apart."""
        return self.counters.commits

    async def check(self) -> tuple[Diagnosis, ...]:
        """Look the store over: only leases can be stuck here."""
        stuck = [s.id for s in self._streams.values() if s.active and (s.owner is None or self._gone(s.owner))]
        if stuck:
            detail = f"{len(stuck)} unfinished streams have no live worker; any worker will take them"
            return (Diagnosis("warn", "leases", detail),)
        return (Diagnosis("ok", "leases", "no unfinished stream is without a live worker"),)


def _note(stream: Stream, entry: Entry) -> Annotated:
    if entry.key is not None and entry.key in stream.keys:
        return Annotated(stream.keys[entry.key], new=False)
    return Annotated(stream.write(entry), new=True)


def _place(stream: Stream, serves: Serves) -> Place | None:
    """Where a stream stands; None if it is none of those that are served."""
    of_agent = Place() if serves.agents is None else serves.agents.get(stream.agent)
    if of_agent is None or stream.id in serves.besides or serves.tenant not in (None, stream.names[0]):
        return None
    queue = of_agent.queue if stream.queue is None else stream.queue
    priority = of_agent.priority if stream.priority is None else stream.priority
    served = (serves.queues is None or queue in serves.queues) and queue not in serves.without
    return Place(queue, priority) if served and (serves.only is None or stream.id in serves.only) else None


def _relabel(stream: Stream, label: Label) -> None:
    if label.title is not None:
        stream.title = label.title
    if label.tags is not None:
        stream.tags = ()
    stream.tags = tuple(tag for tag in stream.tags if tag not in label.drops)
    stream.tag(*(label.tags or ()), *label.adds)
