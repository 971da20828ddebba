"""Whether the payloads of a stream can be read here: whoever cannot read them must not write beside them."""

from __future__ import annotations

from perdure.codec import SEALED, sealed
from perdure.ids import Seq, StreamId
from perdure.store.protocol import Store

MAX_READABLE = 10_000  # streams known to be readable; forgotten together, and looked at again


class Readable:
    """The streams of which we know."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: set[StreamId] = set()

    async def check(self, stream: StreamId) -> None:
        """Refuse a stream whose payloads we cannot read.

        Raises:
            Error: `codec_failed`.
        """
        if stream in self._known:
            return
        waiting = await self._store.inbox(stream)  # first: what is not there any more is in the log by then
        rows = await self._store.read(stream, after=Seq(1), limit=1)  # the first is the store's own
        for row in rows or waiting:
            if row.data.startswith(SEALED):
                raise sealed("record" if rows else "input")
        if rows:
            if len(self._known) >= MAX_READABLE:
                self._known.clear()
            self._known.add(stream)
