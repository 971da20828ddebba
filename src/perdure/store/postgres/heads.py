"""The ends of logs as this process last wrote or read them, so that a fast append continues the digest chain.

A fast append names the last seq that it continues. If another process has written meanwhile, nothing is written, and
the append takes the path with a lock. A known head may therefore be old, and is never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.commit.plan import Entry
from perdure.ids import Seq, StreamId
from perdure.store.digest_chain import DigestChain

MAX_HEADS = 65_536


class Heads:
    """Bounded cache of heads by stream; the least recently written one is dropped first."""

    def __init__(self) -> None:
        self.chain = DigestChain()
        self._known: dict[StreamId, tuple[Seq, bytes]] = {}

    def known(self, stream: StreamId) -> tuple[Seq, bytes] | None:
        """Return the last known seq and head of a stream."""
        return self._known.get(stream)

    def extend(self, stream: StreamId, entries: Sequence[Entry]) -> tuple[list[bytes], bytes] | None:
        """Return digests and the new head for records after the known head; None if none is known."""
        found = self._known.get(stream)
        return None if found is None else self.chain.extend(stream, found[1], found[0], entries)

    def note(self, stream: StreamId, seq: Seq, head: bytes) -> None:
        """Store the end of a log."""
        self._known.pop(stream, None)
        self._known[stream] = seq, head
        if len(self._known) > MAX_HEADS:
            del self._known[next(iter(self._known))]

    def forget(self, streams: Iterable[StreamId]) -> None:
        """Drop heads that may have changed."""
        for stream in streams:
            self._known.pop(stream, None)
