"""A stream in the hands of a worker: how it is given up, whatever is driven in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from perdure.commit.plan import Plan, Receipt, Sent
from perdure.errors import Error
from perdure.ids import Seq, StreamId, TurnId
from perdure.inbox.admit import Delivery
from perdure.inbox.items import Input
from perdure.runtime.shared import Shared
from perdure.runtime.worker.orphans import Orphans
from perdure.runtime.worker.owned import OwnedStream, rows_of
from perdure.store.shapes import Claim
from perdure.vocab.records import Record, Row

if TYPE_CHECKING:
    from perdure.runtime.worker.offers import Offer


class Drives(Protocol):
    """What runs in a stream: a turn, or the body of a process."""

    def forbid_starts(self) -> None:
        """What has not begun yet shall not begin."""
        ...

    def abandon(self) -> None:
        """Stop what runs, and record nothing."""
        ...

    async def drain(self) -> None:
        """Record what is in doubt, and stop."""
        ...


Driven = TypeVar("Driven", bound=Drives)


async def give_back(owned: OwnedStream) -> None:
    """Give a stream up as it was found: the store knows whether somebody must go on with it."""
    info = await owned.store.stream(owned.stream)
    if info is not None and not owned.error:
        owned.active = owned.active or info.active
        owned.flush(lease="release", parked=info.parked)
        await owned.durable()


class Held(Generic[Driven]):
    """An owned stream with something that may run in it."""

    stream: StreamId
    driver: Driven | None
    _loaded: bool
    _shared: Shared
    _owned: OwnedStream

    @property
    def under_way(self) -> bool:
        """Whether something runs in it."""
        return self.driver is not None

    def forbid_starts(self) -> None:
        """The worker stops: what has not begun yet shall not begin."""
        if self.driver:
            self.driver.forbid_starts()

    def abandon(self) -> None:
        """Stop what runs, and record nothing."""
        if self.driver:
            self.driver.abandon()

    async def let_go(self) -> None:
        """We cannot read the stream: give it up as it was found."""
        await give_back(self._owned)

    async def hand_over(self) -> None:
        """The worker stops: record what is in doubt, and let the stream go."""
        if not self._loaded:
            await self.let_go()
            return
        if self.driver:
            await self.driver.drain()
        self._owned.flush(lease="release")
        await self._owned.durable()


class Quiet:
    """An owned stream in which nothing runs by itself: what there is to do is one append after another."""

    def __init__(self, shared: Shared, claim: Claim) -> None:
        self.stream: StreamId = claim.stream
        self.stopping = False
        self.parked = False
        self.offered: Offer | None = None
        self.on_record: Callable[[], None] | None = None
        self._shared = shared
        self._owned = OwnedStream(
            shared.store, claim.stream, shared.worker, claim.fence, Seq(0), shared.clock, shared.host.stir
        )
        self._owned.listener = self
        self._loaded = False

    # --- what the stream tells us

    def _learn(self, row: Row) -> None:
        """Fold a row, unless it is known."""
        raise NotImplementedError

    def _was_sent(self, delivery: Delivery, sent: Sent) -> None:
        """What became of something that an append of ours has sent."""
        raise NotImplementedError

    def durable(self, records: tuple[Record, ...], plan: Plan, receipt: Receipt) -> None:
        """Our records are durable: fold them, and let observers see them."""
        rows = rows_of(plan, receipt)
        for row in rows:
            self._learn(row)
        for new, sent in zip(plan.sends, receipt.sent, strict=True):
            self._was_sent(new, sent)
        if records and self.on_record is not None:
            self.on_record()
            self.on_record = None
        if self._shared.hub.watched(self.stream):
            self._shared.hub.publish(self.stream, *rows)
            self._shared.hub.stir(self.stream)  # who waits for one thing takes no rows, and looks

    def admitted(self, rows: tuple[Row, ...]) -> None:
        """Others wrote something into the log."""
        for row in rows:
            self._learn(row)
        self._shared.hub.publish(self.stream, *rows)

    def withdrawn(self, records: tuple[Record, ...], error: Error) -> None:
        """Nothing here is on trial."""

    def refused(self, error: Error) -> None:
        """The store refused an append: whoever serves it next folds the log."""

    # --- how its worker treats it

    @property
    def under_way(self) -> bool:
        """Nothing of it runs by itself."""
        return False

    def offer(self, item: Input) -> Offer | None:
        """Nobody says anything to it."""
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
        await give_back(self._owned)

    async def hand_over(self) -> None:
        """The worker stops: whatever is not done is left to others."""
        await give_back(self._owned)
