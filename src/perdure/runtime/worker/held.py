"""A stream in the hands of a worker: how it is given up, whatever is driven in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from perdure.ids import StreamId, TurnId
from perdure.inbox.items import Input
from perdure.runtime.shared import Shared
from perdure.runtime.worker.orphans import Orphans
from perdure.runtime.worker.owned import OwnedStream

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

    _owned: OwnedStream

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
