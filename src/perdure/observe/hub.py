"""Subscriptions to streams in this process. Publishing never waits and never fails."""

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
"""Topic for requests to people, in all sessions. No stream has this name."""


class HubSubscription:
    """Bounded queue of a stream's unread events. On overflow, live pieces are dropped and rows are read again."""

    def __init__(self, limit: int = QUEUE_LIMIT, *, live: bool = True) -> None:
        self.live = live
        self.closed = False
        self.items: deque[Row | Live] = deque()
        self.limit = limit
        self.dropped = 0
        self.look_again = True
        self._news = asyncio.Event()

    def put(self, item: Row | Live) -> None:
        """Queue an item. If the queue is full, schedule a store read for a row, or count a dropped live piece."""
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
        """Count live pieces that were dropped before they reached this subscription."""
        if self.live:
            self.dropped += count
            self._news.set()

    def notify(self) -> None:
        """Make the observer read the store again, after a possible change by another process."""
        self.look_again = True
        self._news.set()

    def close(self) -> None:
        """End the subscription: `wait` raises from now on."""
        self.closed = True
        self._news.set()

    async def wait(self) -> None:
        """Wait for an item or a notification.

        Raises:
            Error: `runtime_closed` after `close`.
        """
        await self._news.wait()
        if self.closed:
            raise Error(
                Code.RUNTIME_CLOSED,
                "runtime closed: the event stream ended",
                hint="reconnect with the last cursor",
            )
        self._news.clear()


class Hub:
    """The observers of this process, by stream."""

    def __init__(self) -> None:
        self._watching: dict[StreamId, set[HubSubscription]] = {}
        self._closed = False

    def close(self) -> None:
        """Close every subscription; waiting observers get `runtime_closed`."""
        self._closed = True
        for watchers in self._watching.values():
            for subscription in watchers:
                subscription.close()

    def watched(self, stream: StreamId) -> bool:
        """Return whether the stream has a subscription."""
        return stream in self._watching

    @property
    def watched_at_all(self) -> bool:
        """True if any stream has a subscription."""
        return bool(self._watching)

    @property
    def waited_for(self) -> tuple[StreamId, ...]:
        """Streams with a subscription that waits for records only, without live pieces."""
        return tuple(
            stream
            for stream, watchers in self._watching.items()
            if stream != PEOPLE and any(not subscription.live for subscription in watchers)
        )

    @contextmanager
    def subscribe(self, stream: StreamId, *, live: bool = True) -> Generator[HubSubscription]:
        """Subscribe to a stream for the length of a block; without `live`, only notify of possible new records."""
        subscription = HubSubscription(live=live)
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
        """Queue items at every subscription of a stream."""
        for subscription in self._watching.get(stream, ()):
            for item in items:
                subscription.put(item)

    def miss(self, stream: StreamId, count: int) -> None:
        """Count dropped live pieces at every subscription of a stream."""
        for subscription in self._watching.get(stream, ()):
            subscription.miss(count)

    def notify(self, stream: StreamId | None = None, *, still: Container[StreamId] = ()) -> None:
        """Make the observers of one stream, or of all, read the store again.

        Observers that wait only for records of a stream in `still` are left out: that stream did not move."""
        streams = (stream,) if stream is not None else tuple(self._watching)
        for name in streams:
            for subscription in self._watching.get(name, ()):
                if subscription.live or name not in still:
                    subscription.notify()
