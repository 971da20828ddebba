"""A trigger source in the hands of this worker: each occurrence is recorded, matched and started in one append."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from perdure.codec import decode, encode
from perdure.commit.plan import Entry, Plan, Receipt, Snapshot
from perdure.errors import Error
from perdure.ids import Seq, SessionId, StreamId, TurnId, session_stream, stream_names
from perdure.inbox.admit import Delivery
from perdure.inbox.items import Input, Occurrence
from perdure.processes.registration import conflict
from perdure.processes.triggers import CODE, SourceState, changed, fold, ingested, matching, start_of
from perdure.runtime.clock import short_id
from perdure.runtime.orphans import Orphans
from perdure.runtime.owned import OwnedStream, rows_of
from perdure.runtime.resident import Offer
from perdure.runtime.shared import Shared
from perdure.store.protocol import Claim, InboxRow
from perdure.vocab.records import Record, Row, occurrence_key, revision_key
from perdure.vocab.triggers import (
    StartFailure,
    SubscriptionChanged,
    SubscriptionState,
    TriggerDelivery,
    TriggerDeliveryFailed,
    TriggerOccurred,
)

log = logging.getLogger("perdure.runtime")

SNAPSHOT_ROWS = 64


class TriggerResident:
    """One owned source. `serve` takes in what happened, and leaves it."""

    def __init__(self, shared: Shared, claim: Claim) -> None:
        self.stream: StreamId = claim.stream
        self.stopping = False
        self.parked = False
        self.offered: Offer | None = None
        self.on_record: Callable[[], None] | None = None
        self.state = SourceState()
        self._tenant = stream_names(claim.stream)[0]
        self._shared = shared
        self._owned = OwnedStream(
            shared.store, claim.stream, shared.worker, claim.fence, Seq(0), shared.clock, shared.host.stir
        )
        self._owned.listener = self
        self._loaded = False
        self._taken_over = claim.takeovers > 0
        self._snapshot_seq = Seq(0)
        self._reserved: dict[StreamId, tuple[str, TriggerDelivery]] = {}
        """The processes whose starts are on their way, each with its occurrence."""

    # --- what the stream tells us

    def durable(self, records: tuple[Record, ...], plan: Plan, receipt: Receipt) -> None:
        """Our records are durable: fold them, and let observers see them."""
        rows = rows_of(plan, receipt)
        for row in rows:
            self._learn(row)
        for new, sent in zip(plan.sends, receipt.sent, strict=True):
            occurrence, delivery = self._reserved.pop(new.stream)
            if sent.verdict in ("conflict", "discarded"):
                self._failed(occurrence, delivery)
        if records and self.on_record is not None:
            self.on_record()
            self.on_record = None
        if self._shared.hub.watched(self.stream):
            self._shared.hub.publish(self.stream, *rows)
            self._shared.hub.stir(self.stream)  # who waits for one occurrence takes no rows, and looks

    def _failed(self, occurrence: str, delivery: TriggerDelivery) -> None:
        """Another process has the id: say so where the occurrence is."""
        problem = conflict(delivery.process_id)
        log.error("a trigger could not start its process: %s", problem, extra={"stream": self.stream})
        failure = StartFailure(code=problem.code, message=problem.message)
        self._owned.submit(
            TriggerDeliveryFailed(occurrence=occurrence, subscription=delivery.subscription, failure=failure)
        )

    def admitted(self, rows: tuple[Row, ...]) -> None:
        """Others wrote something into the log."""
        for row in rows:
            self._learn(row)
        self._shared.hub.publish(self.stream, *rows)

    def _learn(self, row: Row) -> None:
        if row.seq > self.state.seq:
            self.state = fold(self.state, row)

    def withdrawn(self, records: tuple[Record, ...], error: Error) -> None:
        """Nothing here is on trial."""

    def refused(self, error: Error) -> None:
        """The store refused an append: whoever serves it next folds the log."""

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
            assert then is not None  # nothing is reserved for what was never registered
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

    # --- in the hands of a worker

    @property
    def under_way(self) -> bool:
        """Nothing of it runs by itself."""
        return False

    def offer(self, item: Input) -> Offer | None:
        """Nobody says anything to a source."""
        return None

    def drives(self, turn: TurnId) -> bool | None:
        """It has no turns."""
        return None

    async def look(self) -> None:
        """What others wrote is read when it is served again."""

    def leave_to(self, orphans: Orphans) -> None:
        """Nothing of it runs."""

    def forbid_starts(self) -> None:
        """Nothing of it runs."""

    def abandon(self) -> None:
        """Nothing of it runs."""

    async def let_go(self) -> None:
        """We cannot read it: give it up as it was found."""
        await self.hand_over()

    async def hand_over(self) -> None:
        """The worker stops: let the stream go."""
        self._owned.flush(lease="release")
        await self._owned.durable()
