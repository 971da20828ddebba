"""A process owned by this worker: loaded, driven until it ends or parks, and released."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from perdure.codec import Json
from perdure.commit.plan import ClearTimer, Plan, Receipt, SetTimer
from perdure.effects.controller import JournaledController
from perdure.effects.journal import EffectJournal
from perdure.effects.promises import ProcessScope, unsigned_key
from perdure.errors import Error
from perdure.ids import Seq, StreamId, TurnId, session_stream, stream_names
from perdure.inbox.admit import Delivery
from perdure.inbox.items import Input, Wake
from perdure.processes.events import WAKE_DISCARDED
from perdure.processes.machine import End, EnterBody, Rest, ending, owed
from perdure.processes.record import CODE, ProcessRecord, advance, fold
from perdure.runtime.processes.driver import ProcessDriver, code_for, end_notification, wake_for
from perdure.runtime.processes.function import CleansUp, Driver, HasCapacity, NotifiesOnEnd, RunsHere, WatchesOutside
from perdure.runtime.processes.purchases import charges, lost_calls
from perdure.runtime.secret_store import hide_stored
from perdure.runtime.shared import Shared
from perdure.runtime.tasks.retention import RETENTION, kept_until, sweep, task_in
from perdure.runtime.turns.subagents import let_go
from perdure.runtime.worker.dead_letter import MAX_TAKEOVERS
from perdure.runtime.worker.driving_host import DrivingHost
from perdure.runtime.worker.offers import Offer
from perdure.runtime.worker.orphans import Orphans
from perdure.runtime.worker.owned import OwnedStream, rows_of
from perdure.runtime.worker.waits import end_told
from perdure.services.secrets import Redactor
from perdure.store.shapes import Claim, InboxRow
from perdure.vocab.children import ChildEnded
from perdure.vocab.log_keys import PROCESS_END, event_key
from perdure.vocab.outcomes import InDoubt
from perdure.vocab.promises import ProcessTerminal
from perdure.vocab.records import ProcessEvent, ProcessFirstStarted, Record, Row
from perdure.vocab.registrations import ProcessWasAbandoned

log = logging.getLogger("perdure.runtime")

_FROM_OTHERS = frozenset({"process_event", "abandon_requested"})


class ProcessHost(DrivingHost[Driver]):
    """One owned process. `serve` drives it until no work is left."""

    def __init__(self, shared: Shared, claim: Claim) -> None:
        self.stream: StreamId = claim.stream
        self.record = ProcessRecord()
        self.driver: Driver | None = None
        self.stopping = False
        self.parked = False
        self.offered: Offer | None = None
        self._tenant = stream_names(claim.stream)[0]
        self._shared = shared
        self._claim = claim
        self.on_record: Callable[[], None] | None = None
        self._stuck_for = claim.takeovers if claim.takeovers >= MAX_TAKEOVERS else 0
        self._facts: list[Record] = []
        self._owned = OwnedStream(
            shared.store, claim.stream, shared.worker, claim.fence, Seq(0), shared.clock, shared.host.notify_streams
        )
        self._owned.listener = self
        self._owned.redactor = Redactor(shared.seen_secrets, claim.stream)
        self._loaded = False
        self._learned = Seq(0)
        self._own: set[Seq] = set()
        self._taken: set[int] = set()
        self._came: dict[str, ProcessEvent] = {}

    # --- notifications of the stream

    def durable(self, records: tuple[Record, ...], plan: Plan, receipt: Receipt) -> None:
        """Fold our durable records, and publish them to observers."""
        for index, record in enumerate(records):
            self._facts.append(record)
            seq = Seq(receipt.first_seq + index)
            self._own.add(seq)
            self.record = advance(self.record, record, seq=seq, at=plan.entries[index].at)
        self._tell_discards(plan, receipt)
        if records and self.on_record is not None:
            self.on_record()
            self.on_record = None
        if self.driver:
            self.driver.record = self.record
        if records and self._shared.hub.watched(self.stream):
            self._shared.hub.publish(self.stream, *rows_of(plan, receipt))
            self._shared.hub.notify(self.stream)

    def admitted(self, rows: tuple[Row, ...]) -> None:
        """Take in records that other writers appended."""
        for row in rows:
            self._learn(row)
        self._shared.hub.publish(self.stream, *rows)

    def _learn(self, row: Row) -> None:
        """Take in one row. Rows of other writers arrive in order, some twice, and mixed with our own."""
        if row.seq <= self._learned or row.kind not in _FROM_OTHERS:
            return
        self._learned = row.seq
        fact = row.record
        if row.seq in self._own or fact in self._owned.undurable():
            return
        self._note(fact)
        self.record = advance(self.record, fact, seq=max(self.record.seq, row.seq), at=row.at)
        if self.driver:
            self.driver.on_record(fact, self.record)

    def _note(self, fact: Record) -> None:
        self._facts.append(fact)
        if isinstance(fact, ProcessEvent):
            self._came[event_key(fact.event, fact.replay)] = fact

    def withdrawn(self, records: tuple[Record, ...], error: Error) -> None:
        """Do nothing: a process has no provisional appends."""

    def refused(self, error: Error) -> None:
        """Stop the driver after a refused append."""
        if self.driver:
            self.driver.refused(error)

    # --- serving

    async def load(self) -> None:
        """Read and fold the log, once."""
        if self._loaded:
            return
        loaded = self._claim.loaded or await self._shared.store.load(self.stream, code=CODE)
        for row in loaded.rows:
            self.record = fold(self.record, row)
            self._note(row.record)
        self._learned = self._owned.known_seq = self.record.seq
        if (session := self.record.known.session) is not None:
            owner, seen = session_stream(self._tenant, session), self._shared.seen_secrets
            await hide_stored(self._shared.store, self._shared.secrets, owner, seen)  # threat: S10
            self._owned.redactor = Redactor(seen, owner)
        self._owned.active = self._is_active
        if self._claim.parked:
            self._owned.unpark(at_once=True)
        self._loaded = True
        self._shared.hub.notify(self.stream)

    @property
    def _is_active(self) -> bool:
        """True if another worker must take over when this one dies."""
        return self.record.output is None and isinstance(self._owed(), EnterBody | End)

    def _owed(self) -> EnterBody | End | Rest:
        watched = isinstance(self._shared.processes.get(self.record.known.definition), WatchesOutside)
        return owed(self.record, self._shared.worker, stuck_for=self._stuck_for, watched=watched)

    async def serve(self, *, once: bool = False) -> None:
        """Drive the process until it ends, parks, or has no work.

        Raises:
            Error: why the stream could not be served further.
        """
        await self.load()
        await self._poll()
        what = self._owed()
        self._stuck_for = 0
        match what:
            case Rest():
                if await self._is_swept():
                    pass
                elif await self._is_orphan():
                    reason = "its worker is gone, and no other worker may continue it"
                    output = ProcessWasAbandoned(by=self._shared.worker, reason=reason)
                    await self._end(ending(self.record, output, authority="reconciled_abandon"))
                else:
                    await self._rest(ended=self.record.output is not None)
            case End(event=event):
                await self._end(event)
            case EnterBody(first=first):
                if self.stopping:
                    return
                await self._run(first=first)
        self.parked = True

    async def _poll(self) -> None:
        """Process the inbox. Items are read before the log, which then contains the changes that caused the wakes."""
        waiting = await self._shared.store.inbox(self.stream)
        for row in await self._shared.store.read(self.stream, after=self._owned.known_seq):
            self._learn(row)
        self._use_up(waiting)

    def _use_up(self, waiting: Iterable[InboxRow]) -> None:
        """Consume inbox items, and send the session wakes for their events in the same append."""
        new = [row for row in waiting if row.id not in self._taken]
        self._taken.update(row.id for row in new)
        came = [self._came.pop(row.item.reason, None) for row in new if isinstance(row.item, Wake)]
        wakes = (self._wake(event) for event in came if event is not None)
        if new:
            outbox = tuple(wake for wake in wakes if wake is not None)
            told = tuple(row.item for row in new if isinstance(row.item, ChildEnded))
            self._owned.submit(*told, consume=tuple(row.id for row in new), outbox=outbox)
            if told and self.driver:
                self.driver.on_notify()

    def _wake(self, event: ProcessEvent) -> Delivery | None:
        return wake_for(self._shared, self._tenant, self.record.known, event)

    def _tell_discards(self, plan: Plan, receipt: Receipt) -> None:
        """Record a session wake that was discarded, because the session is gone."""
        for new, sent in zip(plan.outbox, receipt.sent, strict=True):
            if sent.verdict in ("discarded", "conflict") and plan.lease == "keep":
                payload: Json = {"wake": new.source_key, "because": sent.because or sent.verdict}
                self._owned.submit(ProcessEvent(event=WAKE_DISCARDED, payload=payload, replay=new.source_key))

    async def _rest(self, *, ended: bool) -> None:
        """Release the stream, as parked or as ended."""
        await self._owned.durable()  # deliveries have their outcomes, and these are recorded
        if ended:
            await self._tidy()
            await self._tell_end()
            self._keep_for_a_while()
        self._owned.active = False
        self._owned.flush(lease="release", parked=not ended)
        await self._owned.durable()

    async def _tidy(self) -> None:
        code = self._shared.processes.get(self.record.known.definition)
        if isinstance(code, CleansUp):
            await code.clean_up(self.record, self._facts, self.stream)

    def _keep_for_a_while(self) -> None:
        """Set the retention timer of an ended task, with the current retention time."""
        if task_in(self.record.known) is not None:
            until = kept_until(self.record, self._shared.task_retention_ms)
            self._owned.timer(ClearTimer(RETENTION), *(() if until is None else (SetTimer(RETENTION, until),)))

    async def _tell_end(self) -> None:
        """Resolve the promise of the process's end. Until then the stream needs an owner, or waiters would wait
        forever."""
        store, scope = self._shared.store, ProcessScope(self._tenant, self.record.known.process_id)
        promise = unsigned_key(scope.id, ProcessTerminal(process_id=scope.process)).key_id
        if await store.peek(promise) is None:
            return  # a new waiter reads the log first
        end = end_told(await store.find(self.stream, PROCESS_END))
        if end is not None:
            await store.resolve(promise, end, now=self._shared.clock.wall_ms())
            self._shared.host.notify_all()

    async def _is_swept(self) -> bool:
        """Delete an ended task whose retention is over. Return whether it was deleted."""
        until = kept_until(self.record, self._shared.task_retention_ms)
        if until is None or until > self._shared.clock.wall_ms():
            return False
        await self._owned.durable()
        await self._tell_end()
        await sweep(self._shared, self.stream, self.record)
        return True

    async def _is_orphan(self) -> bool:
        """Return whether the process must end as abandoned: it is owner-bound, and its worker is dead or its end was
        requested.

        Applies only to code that sends messages at the end of its processes.
        """
        record, code = self.record, self._shared.processes.get(self.record.known.definition)
        if record.output is not None or record.known.recovery != "owner_bound" or not isinstance(code, NotifiesOnEnd):
            return False
        if record.first_worker in (None, self._shared.worker):
            return False
        return record.cancel is not None or await self._shared.store.is_dead(record.first_worker)

    async def _end(self, event: ProcessEvent) -> None:
        """End the process without entering it. Unfinished steps become in doubt."""
        journal = EffectJournal()
        for fact in self._facts:
            journal.fold(fact)
        JournaledController(journal, self._owned).doubt_unsettled_steps(InDoubt(reason="worker_lost"))
        now, lost = self._shared.clock.wall_ms(), lost_calls(journal, over=True)
        charged = charges(self.record.known, self._tenant, lost, now)
        told = end_notification(self._shared, self._tenant, self.record, event)
        self._owned.submit(*lost, event, outbox=(*charged, *told, *let_go(self.stream, self._facts, now)))
        await self._rest(ended=True)

    async def _run(self, *, first: bool) -> None:
        code = code_for(self._shared, self.record)
        if isinstance(code, HasCapacity) and (first or self.record.known.recovery == "rerunnable"):
            try:
                code.check_capacity(self.stream, again=not first)
            except Error:
                await self._defer()
                raise
        if first:
            self._owned.active = True
            self._owned.submit(ProcessFirstStarted(worker=self._shared.worker))
            if self.record.known.recovery == "owner_bound":
                await self._owned.durable()
        self._owned.active = True
        self.driver = self._driver()
        ended = await self.driver.run()
        self.driver = None
        if ended:
            await self._rest(ended=True)

    async def _defer(self) -> None:
        """Release the process, because this worker has no slot for it."""
        self._owned.active = True
        self._owned.flush(lease="release")
        await self._owned.durable()

    def _driver(self) -> Driver:
        code, given = code_for(self._shared, self.record), (self.record, self._facts, self._tenant, self._owned)
        if isinstance(code, WatchesOutside):
            return code.watcher(*given, self._shared, lambda: self.stopping)
        assert isinstance(code, RunsHere)  # the runtime takes no other
        return ProcessDriver(*given, self._shared, code)

    # --- calls of the worker

    def drives(self, turn: TurnId) -> bool | None:
        """Return None: a process has no turns."""
        return None

    def offer(self, item: Input) -> Offer | None:
        """Return None: a process takes no inputs."""
        return None

    async def poll(self) -> None:
        """Read new inbox items and records, and check the waits."""
        if self.driver is None:
            return
        await self._poll()
        if self.driver:
            await self.driver.poll()

    def leave_to(self, orphans: Orphans) -> None:
        """Drop the process after it was released."""
        self.abandon()
