"""What others commit concerns few of those who wait here: one look finds out whom.

Law: whoever waits for a record looks again if its stream has moved since it began to wait, or may have.
"""

from __future__ import annotations

from perdure.ids import StreamId
from perdure.observe.hub import Hub
from perdure.store.protocol import Store
from perdure.store.shapes import Head


class Movements:
    """Where the streams ended that somebody here waits for, when they were last looked at."""

    def __init__(self, store: Store, hub: Hub) -> None:
        self._store = store
        self._hub = hub
        self._seen: dict[StreamId, Head | None] = {}

    async def look(self) -> None:
        """Others have committed something: make everybody look whom it may concern. Who has just begun to wait looks,
        too: nobody knows where its stream was when it did.

        Raises:
            Error: why the store cannot be read. Nobody has been told anything.
        """
        waited_for = self._hub.waited_for
        heads = await self._store.heads(waited_for) if waited_for else {}
        before, self._seen = self._seen, {stream: heads.get(stream) for stream in waited_for}
        self._hub.stir(still={stream for stream in before if stream in heads and heads[stream] == before[stream]})
