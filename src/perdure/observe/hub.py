"""Who watches which stream in this process. Publishing never waits and never fails, whoever listens."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container, Generator
from contextlib import contextmanager

from perdure.errors import Code, Error
from perdure.ids import StreamId
from perdure.observe.events import Live
from perdure.vocab.records import Row

QUEUE_LIMIT = 1024
PEOPLE = StreamId("")
"""Whoever watches this is told when people are asked something, in whichever session. No stream is called that."""


class Subscription:
    """What has happened on a stream since this observer last looked. Bounded: live pieces are dropped, rows re-read."""

    def __init__(self, limit: int = QUEUE_LIMIT, *, live: bool = True) -> None:
        self.live = live
        self.closed = False
        self.items: deque[Row | Live] = deque()
        self.limit = limit
        self.dropped = 0
        self.look_again = True
        self._news = asyncio.Event()

    def put(self, item: Row | Live) -> None:
        """Take notice of something, or of having missed it."""
        if not self.live:
            return
        if len(self.items) < self.limit:
            self.items.append(item)
        elif isinstance(item, Row):
            self.look_again = True
        else:
            self.dropped += 1
        self._news.set()

    def miss(self, count: int) -> None:
        """Live pieces were dropped before they came here."""
        if self.live:
            self.dropped += count
            self._news.set()

    def stir(self) -> None:
        """Something may have happened elsewhere: read the store again."""
        self.look_again = True
        self._news.set()

    def close(self) -> None:
        """Nothing more will come."""
        self.closed = True
        self._news.set()

    async def wait(self) -> None:
        """Until there is something to look at.

        Raises:
            Error: `runtime_closed` once nothing more will come.
        """
        await self._news.wait()
        if self.closed:
            raise Error(Code.RUNTIME_CLOSED, "the runtime was closed while somebody watched", hint="open it again")
        self._news.clear()


class Hub:
    """The observers of this process, by stream."""

    def __init__(self) -> None:
        self._watching: dict[StreamId, set[Subscription]] = {}
        self._closed = False

    def close(self) -> None:
        """End every watching: those who wait are told."""
        self._closed = True
        for watchers in self._watching.values():
            for subscription in watchers:
                subscription.close()

    def watched(self, stream: StreamId) -> bool:
        """Whether anybody looks at this stream."""
        return stream in self._watching

    @property
    def watched_at_all(self) -> bool:
        """Whether anybody looks at any stream."""
        return bool(self._watching)

    @property
    def waited_for(self) -> tuple[StreamId, ...]:
        """The streams of which somebody waits for a record, and nothing else."""
        return tuple(
            stream
            for stream, watchers in self._watching.items()
            if stream != PEOPLE and any(not subscription.live for subscription in watchers)
        )

    @contextmanager
    def subscribe(self, stream: StreamId, *, live: bool = True) -> Generator[Subscription]:
        """Watch a stream for the length of a block; without `live`, only be told when to look for a new record."""
        subscription = Subscription(live=live)
        if self._closed:
            subscription.close()
        self._watching.setdefault(stream, set()).add(subscription)
        try:
            yield subscription
        finally:
            watchers = self._watching[stream]
            watchers.discard(subscription)
            if not watchers:
                del self._watching[stream]

    def publish(self, stream: StreamId, *items: Row | Live) -> None:
        """Tell those who watch."""
        for subscription in self._watching.get(stream, ()):
            for item in items:
                subscription.put(item)

    def miss(self, stream: StreamId, count: int) -> None:
        """Tell those who watch that live pieces were dropped."""
        for subscription in self._watching.get(stream, ()):
            subscription.miss(count)

    def stir(self, stream: StreamId | None = None, *, still: Container[StreamId] = ()) -> None:
        """Make observers read the store again: those of one stream, or all. Not those who wait for a record of a stream
        that is `still`."""
        streams = (stream,) if stream is not None else tuple(self._watching)
        for name in streams:
            for subscription in self._watching.get(name, ()):
                if subscription.live or name not in still:
                    subscription.stir()
