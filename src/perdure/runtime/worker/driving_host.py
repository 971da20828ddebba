"""Hosts of owned streams: those with a turn or process that runs, and those in which nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from perdure.commit.plan import OutboxResult, Plan, Receipt
from perdure.errors import Error
from perdure.ids import Seq, StreamId, TurnId
from perdure.inbox.admit import Delivery
from perdure.inbox.items import Input
from perdure.runtime.shared import Shared
from perdure.runtime.worker.orphans import Orphans
from perdure.runtime.worker.owned import OwnedStream, rows_of
from perdure.services.secrets import Redactor
from perdure.store.shapes import Claim
from perdure.vocab.records import Record, Row

if TYPE_CHECKING:
    from perdure.runtime.worker.offers import Offer


class HostedWork(Protocol):
    """The work that runs in a stream: a turn, or the body of a process."""

    def forbid_starts(self) -> None:
        """Keep effects that have not begun from beginning."""
        ...

    def abandon(self) -> None:
        """Stop what runs, and record nothing."""
        ...

    async def drain(self) -> None:
        """Record what is in doubt, and stop."""
        ...


Driven = TypeVar("Driven", bound=HostedWork)


async def give_back(owned: OwnedStream) -> None:
    """Release a stream as it was found. The store knows whether it has unfinished work."""
    info = await owned.store.stream(owned.stream)
    if info is not None and not owned.error:
        owned.active = owned.active or info.active
        owned.flush(lease="release", parked=info.parked)
        await owned.durable()


class DrivingHost(Generic[Driven]):
    """An owned stream in which work may run."""

    stream: StreamId
    driver: Driven | None
    _loaded: bool
    _shared: Shared
    _owned: OwnedStream

    @property
    def under_way(self) -> bool:
        """True if work runs in the stream."""
        return self.driver is not None

    def forbid_starts(self) -> None:
        """Keep effects that have not begun from beginning, because the worker stops."""
        if self.driver:
            self.driver.forbid_starts()

    def abandon(self) -> None:
        """Stop what runs, and record nothing."""
        if self.driver:
            self.driver.abandon()

    async def let_go(self) -> None:
        """Release a stream that cannot be read, as it was found."""
        await give_back(self._owned)

    async def hand_over(self) -> None:
        """Record what is in doubt and release the stream, because the worker stops."""
        if not self._loaded:
            await self.let_go()
            return
        if self.driver:
            await self.driver.drain()
        self._owned.flush(lease="release")
        await self._owned.durable()


class PassiveHost:
    """An owned stream in which nothing runs by itself: its work is one append after another."""

    def __init__(self, shared: Shared, claim: Claim) -> None:
        self.stream: StreamId = claim.stream
        self.stopping = False
        self.parked = False
        self.offered: Offer | None = None
        self.on_record: Callable[[], None] | None = None
        self._shared = shared
        self._owned = OwnedStream(
            shared.store, claim.stream, shared.worker, claim.fence, Seq(0), shared.clock, shared.host.notify_streams
        )
        self._owned.listener = self
        self._owned.redactor = Redactor(shared.seen_secrets, claim.stream)
        self._loaded = False

    # --- callbacks of the stream

    def _learn(self, row: Row) -> None:
        """Fold a row, unless it is known."""
        raise NotImplementedError

    def _was_sent(self, delivery: Delivery, sent: OutboxResult) -> None:
        """Handle the verdict on a delivery of our own append."""
        raise NotImplementedError

    def durable(self, records: tuple[Record, ...], plan: Plan, receipt: Receipt) -> None:
        """Fold records that became durable, then publish them."""
        rows = rows_of(plan, receipt)
        for row in rows:
            self._learn(row)
        for new, sent in zip(plan.outbox, receipt.sent, strict=True):
            self._was_sent(new, sent)
        if records and self.on_record is not None:
            self.on_record()
            self.on_record = None
        if self._shared.hub.watched(self.stream):
            self._shared.hub.publish(self.stream, *rows)
            self._shared.hub.notify(self.stream)  # waiters for a single fact receive no rows, and poll

    def admitted(self, rows: tuple[Row, ...]) -> None:
        """Fold and publish rows that others wrote to the log."""
        for row in rows:
            self._learn(row)
        self._shared.hub.publish(self.stream, *rows)

    def withdrawn(self, records: tuple[Record, ...], error: Error) -> None:
        """Do nothing: no append here is provisional."""

    def refused(self, error: Error) -> None:
        """Do nothing: the next host folds the log again."""

    # --- interface to the worker

    @property
    def under_way(self) -> bool:
        """False: nothing runs by itself."""
        return False

    def offer(self, item: Input) -> Offer | None:
        """Decline: this stream takes no inputs."""
        return None

    def drives(self, turn: TurnId) -> bool | None:
        """Return None: this stream has no turns."""
        return None

    async def poll(self) -> None:
        """Do nothing: the next `serve` reads what others wrote."""

    def leave_to(self, orphans: Orphans) -> None:
        """Do nothing: no call runs here."""

    def forbid_starts(self) -> None:
        """Do nothing: no effect runs here."""

    def abandon(self) -> None:
        """Do nothing: no effect runs here."""

    async def let_go(self) -> None:
        """Release a stream that cannot be read, as it was found."""
        await give_back(self._owned)

    async def hand_over(self) -> None:
        """Release the stream as it was found, because the worker stops. Other workers do the rest."""
        await give_back(self._owned)
