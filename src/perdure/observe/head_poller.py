"""Poller of stream heads: one query for all watched streams decides which observers to wake.

Law: an observer that waits for a record polls again if its stream has moved since the wait began, or may have moved.
"""

from __future__ import annotations

from perdure.ids import StreamId
from perdure.observe.hub import Hub
from perdure.store.protocol import Store
from perdure.store.shapes import Head


class HeadPoller:
    """The heads of the watched streams at the last poll."""

    def __init__(self, store: Store, hub: Hub) -> None:
        self._store = store
        self._hub = hub
        self._seen: dict[StreamId, Head | None] = {}

    async def poll(self) -> None:
        """Read the heads of all watched streams in one query; wake observers whose stream moved.

        A stream watched since the last poll counts as moved: its head at the start of the wait is unknown.

        Raises:
            Error: the store cannot be read. No observer was notified.
        """
        waited_for = self._hub.waited_for
        heads = await self._store.heads(waited_for) if waited_for else {}
        before, self._seen = self._seen, {stream: heads.get(stream) for stream in waited_for}
        self._hub.notify(still={stream for stream in before if stream in heads and heads[stream] == before[stream]})
