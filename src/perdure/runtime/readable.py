"""The check that this process can read the payloads of a stream, before it writes there."""

from __future__ import annotations

from perdure.codec import SEALED, undecodable
from perdure.ids import Seq, StreamId
from perdure.store.protocol import Store

MAX_READABLE = 10_000  # streams known to be readable; cleared together, and checked again


class Readable:
    """The streams that are known to be readable."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: set[StreamId] = set()

    async def check(self, stream: StreamId) -> None:
        """Raise if this process cannot read the payloads of a stream.

        Raises:
            Error: `codec_failed`.
        """
        if stream in self._known:
            return
        waiting = await self._store.inbox(stream)  # read first: items that have left the inbox are in the log by then
        rows = await self._store.read(stream, after=Seq(1), limit=1)  # the first record is the store's own
        for row in rows or waiting:
            if row.data.startswith(SEALED):
                raise undecodable("record" if rows else "input")
        if rows:
            if len(self._known) >= MAX_READABLE:
                self._known.clear()
            self._known.add(stream)
