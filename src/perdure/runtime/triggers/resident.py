"""A trigger source in the hands of this worker: each occurrence is recorded, matched and started in one append."""

from __future__ import annotations

import logging
from collections.abc import Set
from contextlib import suppress
from itertools import takewhile

from perdure.codec import decode, encode
from perdure.commit.plan import ClearTimer, Entry, Prune, Sent, SetTimer, Snapshot
from perdure.errors import Error
from perdure.ids import Seq, SessionId, StreamId, session_stream, stream_names
from perdure.inbox.admit import Delivery
from perdure.inbox.items import Occurrence
from perdure.processes.registration import conflict, stream_of
from perdure.processes.trigger_retention import Old, prunes_at, started_by
from perdure.processes.triggers import CODE, SourceState, changed, fold, ingested, matching, start_of
from perdure.runtime.clock import short_id
from perdure.runtime.shared import Shared
from perdure.runtime.tasks.retention import RETENTION
from perdure.runtime.worker.held import Quiet
from perdure.store.shapes import Claim, InboxRow
from perdure.vocab.log_keys import PROCESS_END, occurrence_key, revision_key
from perdure.vocab.records import Row
from perdure.vocab.triggers import (
    StartFailure,
    SubscriptionChanged,
    SubscriptionState,
    TriggerDelivery,
    TriggerDeliveryFailed,
    TriggerOccurred,
    TriggerPruned,
)

log = logging.getLogger("perdure.runtime")

SNAPSHOT_ROWS = 64
PAGE = 200


class TriggerResident(Quiet):
    """One owned source. `serve` takes in what happened, and leaves it."""

    def __init__(self, shared: Shared, claim: Claim) -> None:
        super().__init__(shared, claim)
        self.state = SourceState()
        self._tenant = stream_names(claim.stream)[0]
        self._taken_over = claim.takeovers > 0
        self._snapshot_seq = Seq(0)
        self._reserved: dict[StreamId, tuple[str, TriggerDelivery]] = {}
        """The processes whose starts are on their way, each with its occurrence."""

    def _learn(self, row: Row) -> None:
        if row.seq > self.state.seq:
            self.state = fold(self.state, row)

    def _was_sent(self, delivery: Delivery, sent: Sent) -> None:
        occurrence, started = self._reserved.pop(delivery.stream)
        if sent.verdict in ("conflict", "discarded"):
            self._failed(occurrence, started)

    def _failed(self, occurrence: str, delivery: TriggerDelivery) -> None:
        """Another process has the id: say so where the occurrence is."""
        problem = conflict(delivery.process_id)
        log.error("a trigger could not start its process: %s", problem, extra={"stream": self.stream})
        failure = StartFailure(code=problem.code, message=problem.message)
        self._owned.submit(
            TriggerDeliveryFailed(occurrence=occurrence, subscription=delivery.subscription, failure=failure)
        )

    # --- serving

    async def load(self) -> None:
        """Read and fold what the log says, once."""
        if self._loaded:
            return
        loaded = await self._shared.store.load(self.stream, code=CODE)
        if loaded.snapshot is not None:
            self.state = decode(loaded.snapshot.data, SourceState)
            self._snapshot_seq = loaded.snapshot.seq
        for row in loaded.rows:
            self._learn(row)
        self._owned.known_seq = self.state.seq
        self._loaded = True

    async def serve(self, *, once: bool = False) -> None:
        """Take in what happened, until nothing waits, and give it back.

        Raises:
            Error: why the stream had to be given up.
        """
        await self.load()
        if self._taken_over:
            await self._start_again()
        while not self.stopping and await self._take_in():
            pass
        await self._forget_what_is_old()
        self._come_back_for_what_gets_old()
        self._owned.active = False
        self._owned.flush(lease="release")
        await self._owned.durable()
        self.parked = True

    async def _start_again(self) -> None:
        """Whoever had the source before us died, perhaps before it knew what became of its last starts: send them
        again. What is there is there; what is missing is started; what cannot be is said."""
        store = self._shared.store
        row = await store.find(self.stream, occurrence_key(self.state.last)) if self.state.last else None
        record = row.record if row is not None else None
        if not isinstance(record, TriggerOccurred):
            return
        sends: list[Delivery] = []
        for reserved in (one for one in record.deliveries if one.failed is None):
            then = await store.find(self.stream, revision_key(reserved.subscription, reserved.revision))
            if then is None:
                continue  # pruned since: so it was started long ago
            assert isinstance(then.record, SubscriptionChanged)
            with suppress(Error):  # code that refuses now what it took then: it was started by that
                again = start_of(self._tenant, record.occurrence, record.payload, then.record.subscription, at=then.at)
                sends.append(again)
                self._reserved[again.stream] = (record.occurrence, reserved)
        if sends:
            self._owned.submit(sends=tuple(sends))
            await self._owned.durable()

    async def _take_in(self) -> bool:
        """The inbox first: whoever subscribed before something happened is in the log by then."""
        waiting = await self._shared.store.inbox(self.stream)
        for row in await self._shared.store.read(self.stream, after=self.state.seq):
            self._learn(row)
        self._owned.known_seq = max(self._owned.known_seq, self.state.seq)
        if waiting:
            await self._let_go_of_orphans()
        for row in waiting:
            if isinstance(row.item, Occurrence):
                self._occurred(row, row.item)
            else:
                self._owned.submit(consume=(row.id,))
        await self._owned.durable()  # or the same rows would be seen again
        return bool(waiting)

    def _occurred(self, row: InboxRow, item: Occurrence) -> None:
        """Record it, decide who wants a process, start those: one append. If somebody changed their mind meanwhile, the
        append is refused, and all of it is decided anew."""
        wanted = matching(self.state, item.session)
        record, sends = ingested(self._tenant, item, wanted, at=self._shared.clock.wall_ms())
        for new, delivery in zip(sends, (one for one in record.deliveries if one.failed is None), strict=True):
            self._reserved[new.stream] = (item.occurrence, delivery)
        self._owned.active = True
        self._owned.submit(record, consume=(row.id,), sends=sends)
        self._owned.need((), tuple(revision_key(one.id, one.revision + 1) for one in wanted))
        if self.state.seq - self._snapshot_seq >= SNAPSHOT_ROWS:
            self._owned.snapshot(Snapshot(self.state.seq, CODE, encode(self.state)))
            self._snapshot_seq = self.state.seq

    async def _let_go_of_orphans(self) -> None:
        """A subscription ends with the session that it belongs to."""
        store = self._shared.store
        for owner in {one.definition.owner for one in self.state.living} - {""}:
            if await store.stream(session_stream(self._tenant, SessionId(owner))) is None:
                for one in [one for one in self.state.living if one.definition.owner == owner]:
                    await self._delete(one)

    # --- what is old

    async def _forget_what_is_old(self) -> None:
        """Prune the log, a page at a time: each is one append with the record that keeps the count."""
        now, keep = self._shared.clock.wall_ms(), self._shared.trigger_retention_ms
        due, last = prunes_at(self.state, keep), self.state.seq
        if due is None or due > now or self.stopping:
            return
        forgotten = await self._forgotten(now - keep)
        old, after, more = Old(self.state, forgotten), Seq(0), True
        while more and not self.stopping:
            page = await self._shared.store.read(self.stream, after=after, until=last, limit=PAGE)
            aged = tuple(takewhile(lambda row: row.at < now - keep, page))
            more = len(aged) == PAGE
            after = page[-1].seq if page else after
            old.running = await self._running(aged)
            places, keys = old.sort(aged)
            goes = Prune((*places, *filter(None, (self.state.pruned,))), keys)
            young = [row.at for row in page[len(aged) :] if row.seq != self.state.pruned]
            since = min([*young[:1], *[now] * old.waits], default=0)
            self._prune(goes, forgotten, since=aged[0].at if more else since)
            await self._owned.durable()

    def _prune(self, goes: Prune, forgotten: Set[str], *, since: int) -> None:
        self._owned.prune(goes)
        gone = [one for one in self.state.known.values() if one.id in forgotten]
        self._owned.need((), tuple(revision_key(one.id, one.revision + 1) for one in gone))
        named = tuple(one.id for one in gone)
        self._owned.submit(TriggerPruned(occurrences=self.state.occurrences, subscriptions=named, since=since))

    async def _forgotten(self, before: int) -> Set[str]:
        """The subscriptions that were deleted before a moment."""
        found: set[str] = set()
        for one in [one for one in self.state.known.values() if one.deleted]:
            row = await self._shared.store.find(self.stream, revision_key(one.id, one.revision))
            if row is not None and row.at < before:
                found.add(one.id)
        return found

    async def _running(self, rows: tuple[Row, ...]) -> Set[str]:
        """The processes of these occurrences that have not ended."""
        streams = {stream_of(self._tenant, id): id for id in started_by(rows)}
        marks = await self._shared.store.marks(list(streams), PROCESS_END) if streams else ()
        over = {row.stream for row in marks if row.key == PROCESS_END}
        return {streams[row.stream] for row in marks} - {streams[stream] for stream in over}

    def _come_back_for_what_gets_old(self) -> None:
        at = prunes_at(self.state, self._shared.trigger_retention_ms)
        self._owned.timer(ClearTimer(RETENTION), *(() if at is None else (SetTimer(RETENTION, at),)))

    async def _delete(self, one: SubscriptionState) -> None:
        now = self._shared.clock.wall_ms()
        gone = SubscriptionChanged(
            change="deleted",
            subscription=changed(one.id, one, "deleted"),
            operation=short_id("op", now),
            by="its session is gone",
        )
        noted = await self._shared.store.annotate(self.stream, Entry.of(gone, at=now))
        self.admitted((noted.row,))
