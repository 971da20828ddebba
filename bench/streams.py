"""Many concurrent streams on one worker.

`w8`: turns (1,000, or `--workflows N`) whose models write at the same time, a piece every 100 ms for five seconds, each
with an observer. Measures the latency of a piece, the memory per stream, and the commits per turn.
"""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections.abc import AsyncIterator

from measure import options, rss_mb, share, tell
from ours import address

from perdure import Agent, Runtime, Session, WorkerOptions
from perdure.events import RecordEvent, TextDelta
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest, TextPiece
from perdure.runtime.internals import core_of
from perdure.vocab.messages import Text
from perdure.vocab.records import TurnEnded
from perdure.vocab.usage import Usage

PIECES = 50
EVERY_S = 0.1


class Writer:
    """A model that writes the time again and again, once enough requests have arrived."""

    name = "writer"

    def __init__(self) -> None:
        self.missing = 0
        self.all_there = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        said: list[str] = []
        self.missing -= 1
        if self.missing <= 0:
            self.all_there.set()
        await self.all_there.wait()
        for _ in range(PIECES):
            await asyncio.sleep(EVERY_S)
            said.append(f"{time.monotonic_ns()} ")
            yield TextPiece(said[-1])
        yield ModelReply(parts=(Text(text="".join(said)),), finish="stop", usage=Usage(), model="writer")


async def watched(session: Session, late_s: list[float]) -> None:
    async for event in session.events():
        match event:
            case TextDelta(text=text):
                seen = time.monotonic_ns()
                late_s.extend((seen - int(written)) / 1e9 for written in text.split())
            case RecordEvent(record=TurnEnded()):
                return
            case _:
                pass


async def w8(chosen: Namespace) -> None:
    count = chosen.workflows or 1_000
    late_s: list[float] = []
    writer = Writer()
    agent = Agent("a", model=writer)
    async with Runtime(address(chosen), agents=[agent], worker=WorkerOptions(concurrency=count)) as rt:
        sessions = [await rt.session(f"s{n}", agent="a") for n in range(count)]
        await sessions[0].ask("warm")
        before, plans = rss_mb(), core_of(rt).store.counters.plans
        writer.missing = count - 1
        writer.all_there.clear()
        watching = [asyncio.create_task(watched(session, late_s)) for session in sessions[1:]]
        await asyncio.gather(*(session.send("go") for session in sessions[1:]))
        await writer.all_there.wait()
        began = time.monotonic()
        await asyncio.sleep(EVERY_S * PIECES / 2)
        during = rss_mb()
        await asyncio.gather(*watching)
        seconds = time.monotonic() - began
        plans = core_of(rt).store.counters.plans - plans
    tell(
        streams=count - 1,
        pieces=len(late_s),
        p50_ms=round(share(late_s, 0.5), 2),
        p99_ms=round(share(late_s, 0.99), 2),
        kb_each=round((during - before) * 1024 / (count - 1), 1),
        plans_each=round(plans / (count - 1), 2),
        seconds=round(seconds, 1),
    )


if __name__ == "__main__":
    asyncio.run(w8(options("w8")))
