"""An observed stream in memory, written by its owner and by others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from perdure.commit.plan import Entry, Plan
from perdure.ids import EffectId, Fence, InputId, Seq, SessionId, StreamId, Tenant, TurnId, WorkerId, session_stream
from perdure.inbox.admit import delivery
from perdure.inbox.items import Input
from perdure.observe.events import Cursor, Event, RecordEvent, TextDelta
from perdure.observe.follow import Sources, follow
from perdure.observe.hub import Hub
from perdure.runtime.live_texts import LiveTexts
from perdure.store.memory import MemoryStore
from perdure.testing.clock import ManualClock
from perdure.vocab.messages import Text
from perdure.vocab.records import Record, Row

ANN = WorkerId("ann")


class Stream:
    """One session in a memory store, owned by ann. A log of one record (its opening) to begin with."""

    def __init__(self) -> None:
        self.store = MemoryStore(ManualClock())
        self.hub = Hub()
        self.id: StreamId = session_stream(Tenant("default"), SessionId("s"))
        self.last = 1
        self.typed = 0
        self._fence = Fence(0)
        self._n = 0
        self._ends: dict[str, int] = {}

    async def open(self) -> None:
        await self.store.register(ANN, pid=1, version="0", now=0)
        item = Input(input=InputId("i"), turn=TurnId("t"), parts=(Text(text="hi"),))
        admitted = await self.store.admit(delivery(self.id, "k", item, at=0, agent="a"), claim_for=ANN)
        self._fence = getattr(admitted, "fence", None) or Fence(0)

    async def write(self, *records: Record) -> tuple[Row, ...]:
        """Append without notification, like another process."""
        self._n += 1
        entries = tuple(Entry.of(record, at=self._n) for record in records)
        plan = Plan(stream=self.id, worker=ANN, fence=self._fence, n=self._n, entries=entries)
        receipt = await self.store.append(plan)
        self.last = receipt.last_seq
        return await self.store.read(self.id, after=Seq(receipt.first_seq - 1))

    async def tell(self, *records: Record) -> None:
        """Append, and publish it: what the owner in this process does."""
        self.hub.publish(self.id, *await self.write(*records))

    def type(self, text: str, *, seq: int | None = None, effect: str = "m1.1", turn: str = "t") -> None:
        """A live piece of a reply."""
        self.typed += 1
        end = self._ends[effect] = self._ends.get(effect, 0) + len(text)
        cursor = Cursor(Seq(self.last if seq is None else seq), EffectId(effect), end)
        self.hub.publish(self.id, TextDelta(cursor, TurnId(turn), EffectId(effect), text))


class Watcher:
    """Reads events in the background, as fast as it is let."""

    def __init__(self, events: AsyncIterator[Event]) -> None:
        self.events: list[Event] = []
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._source = events
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for event in self._source:
            self.events.append(event)
            await self.may_read.wait()

    @property
    def seqs(self) -> list[int]:
        """The durable facts received, by place."""
        return [event.cursor.seq for event in self.events if isinstance(event, RecordEvent)]

    @property
    def texts(self) -> list[str]:
        """The live pieces received."""
        return [event.text for event in self.events if isinstance(event, TextDelta)]

    async def settle(self) -> None:
        """Until nothing more arrives by itself."""
        quiet = 0
        while quiet < 10:
            before = len(self.events)
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self.events) == before else 0

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@asynccontextmanager
async def watched(stream: Stream, after: int = 0) -> AsyncGenerator[Watcher]:
    """Watch a stream from a cursor, for the length of a block."""
    sources = Sources(stream.store, stream.hub, LiveTexts(stream.store.live, ManualClock()))
    watcher = Watcher(follow(sources, stream.id, Cursor(Seq(after))))
    await watcher.settle()
    yield watcher
    await watcher.stop()
