"""A trigger source owned by this worker: one append records, matches and starts the processes of each occurrence."""

from __future__ import annotations

import logging
from collections.abc import Set
from contextlib import suppress
from itertools import takewhile

from perdure.codec import decode, encode
from perdure.commit.plan import ClearTimer, Entry, OutboxResult, Prune, SetTimer, Snapshot
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
from perdure.runtime.worker.driving_host import PassiveHost
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


class TriggerHost(PassiveHost):
    """One owned source. `serve` processes the queued occurrences and releases the source."""

    def __init__(self, shared: Shared, claim: Claim) -> None:
        super().__init__(shared, claim)
        self.state = SourceState()
        self._tenant = stream_names(claim.stream)[0]
        self._taken_over = claim.takeovers > 0
        self._snapshot_seq = Seq(0)
        self._reserved: dict[StreamId, tuple[str, TriggerDelivery]] = {}
        """The processes whose starts are in flight, each with its occurrence."""

    def _learn(self, row: Row) -> None:
        if row.seq > self.state.seq:
            self.state = fold(self.state, row)

    def _was_sent(self, delivery: Delivery, sent: OutboxResult) -> None:
        occurrence, started = self._reserved.pop(delivery.stream)
        if sent.verdict in ("conflict", "discarded"):
            self._failed(occurrence, started)

    def _failed(self, occurrence: str, delivery: TriggerDelivery) -> None:
        """Record that a start failed, because another process has the id."""
        problem = conflict(delivery.process_id)
        log.error("trigger start failed error=%s", problem, extra={"stream": self.stream})
        failure = StartFailure(code=problem.code, message=problem.message)
        self._owned.submit(
            TriggerDeliveryFailed(occurrence=occurrence, subscription=delivery.subscription, failure=failure)
        )

    # --- serving

    async def load(self) -> None:
        """Read and fold the log, once."""
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
        """Process all queued occurrences, then release the source.

        Raises:
            Error: why the stream could not be served further.
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
        """Repeat the starts of the last occurrence after a takeover, because the former owner may have lost their
        outcome.

        Existing processes are left alone, missing ones are started, and refused ones are recorded.
        """
        store = self._shared.store
        row = await store.find(self.stream, occurrence_key(self.state.last)) if self.state.last else None
        record = row.record if row is not None else None
        if not isinstance(record, TriggerOccurred):
            return
        outbox: list[Delivery] = []
        for reserved in (one for one in record.deliveries if one.failed is None):
            then = await store.find(self.stream, revision_key(reserved.subscription, reserved.revision))
            if then is None:
                continue  # pruned since, so the process was started long ago
            assert isinstance(then.record, SubscriptionChanged)
            with suppress(Error):  # current code refuses what older code accepted, and the older code started it
                again = start_of(self._tenant, record.occurrence, record.payload, then.record.subscription, at=then.at)
                outbox.append(again)
                self._reserved[again.stream] = (record.occurrence, reserved)
        if outbox:
            self._owned.submit(outbox=tuple(outbox))
            await self._owned.durable()

    async def _take_in(self) -> bool:
        """Process the inbox. Items are read before the log, which then contains all earlier subscriptions."""
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
        await self._owned.durable()  # otherwise the next read would return the same rows
        return bool(waiting)

    def _occurred(self, row: InboxRow, item: Occurrence) -> None:
        """Record the occurrence, match it and start the processes in one append.

        A concurrent change of a matched subscription refuses the append; then the occurrence is matched again.
        """
        wanted = matching(self.state, item.session)
        record, outbox = ingested(self._tenant, item, wanted, at=self._shared.clock.wall_ms())
        for new, delivery in zip(outbox, (one for one in record.deliveries if one.failed is None), strict=True):
            self._reserved[new.stream] = (item.occurrence, delivery)
        self._owned.active = True
        self._owned.submit(record, consume=(row.id,), outbox=outbox)
        self._owned.need((), tuple(revision_key(one.id, one.revision + 1) for one in wanted))
        if self.state.seq - self._snapshot_seq >= SNAPSHOT_ROWS:
            self._owned.snapshot(Snapshot(self.state.seq, CODE, encode(self.state)))
            self._snapshot_seq = self.state.seq

    async def _let_go_of_orphans(self) -> None:
        """Delete the subscriptions whose owner session is gone."""
        store = self._shared.store
        for owner in {one.definition.owner for one in self.state.living} - {""}:
            if await store.stream(session_stream(self._tenant, SessionId(owner))) is None:
                for one in [one for one in self.state.living if one.definition.owner == owner]:
                    await self._delete(one)

    # --- retention

    async def _forget_what_is_old(self) -> None:
        """Prune the log page by page. Each append prunes one page and stores the count of all occurrences."""
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
        """Return the subscriptions that were deleted before a time."""
        found: set[str] = set()
        for one in [one for one in self.state.known.values() if one.deleted]:
            row = await self._shared.store.find(self.stream, revision_key(one.id, one.revision))
            if row is not None and row.at < before:
                found.add(one.id)
        return found

    async def _running(self, rows: tuple[Row, ...]) -> Set[str]:
        """Return the processes of these occurrences that have not ended."""
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
            by="session deleted",
        )
        noted = await self._shared.store.annotate(self.stream, Entry.of(gone, at=now))
        self.admitted((noted.row,))
