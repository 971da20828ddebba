"""The callers of a run: two hundred sessions that keep being asked, by clients that ask again until they are told.

What a client was promised goes into a ledger of its own: a line when an input is accepted, one when it is answered.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

from perdure import Error, Runtime, Session, TurnHandle
from perdure.testing import World
from tests.chaos.app import AGENT, TOOLS

ACCEPTED, ANSWERED = "accepted", "answered"


@dataclass
class Load:
    """Every client, and when they stop asking and stop waiting (on the monotonic clock)."""

    rt: Runtime
    promised: World
    seed: int
    sessions: int
    ask_until: float
    wait_until: float

    async def run(self) -> list[str]:
        """Ask until the time is over, then wait for every answer; the inputs that got none."""
        clients = [Client(self, index) for index in range(self.sessions)]
        await asyncio.gather(*(client.run() for client in clients))
        return [key for client in clients for key in client.unanswered]


class Client:
    """A client of one session."""

    def __init__(self, load: Load, index: int) -> None:
        self._load = load
        self._name = f"s{index:03}"
        self._dice = random.Random(load.seed * 1_000 + index)
        self.unanswered: set[str] = set()

    async def run(self) -> None:
        """Ask, wait, think, ask again."""
        session = await self._load.rt.session(self._name, agent=AGENT)
        number = 0
        await asyncio.sleep(self._dice.random() * 2)
        while time.monotonic() < self._load.ask_until:
            burst = self._dice.choice((1, 1, 1, 2))
            await asyncio.gather(*(self._ask(session, number + n) for n in range(burst)))
            number += burst
            await asyncio.sleep(self._dice.random())

    def _plan(self) -> str:
        replies = [self._dice.sample(TOOLS, self._dice.choice((1, 1, 2, 3))) for _ in range(self._dice.choice((1, 2)))]
        return " ".join("+".join(calls) for calls in replies)

    async def _ask(self, session: Session, number: int) -> None:
        """Ask until there is an answer: a turn that was dead-lettered is asked for again, as a person would."""
        plan = self._plan()
        for attempt in range(10):
            if await self._ask_once(session, f"{self._name}-{number}{'.again' * attempt}", plan):
                return
        self.unanswered.add(f"{self._name}-{number}, dead-lettered ten times")

    async def _ask_once(self, session: Session, key: str, plan: str) -> bool:
        text = f"{key} {plan}"
        self.unanswered.add(key)
        again = [self._send(session, text, key) for _ in range(self._dice.choice((1, 1, 2)))]  # two callers, one input
        sent, *others = await asyncio.gather(*again)
        if sent is None:
            return True
        assert all(other is not None and other.turn_id == sent.turn_id for other in others), f"{key} became two turns"
        self._load.promised.note(ACCEPTED, key=key, session=self._name, turn=sent.turn_id, text=text)
        nudging = asyncio.create_task(self._say_go(session)) if "book" in text else None
        try:
            return await self._answered(sent, key)
        finally:
            if nudging is not None:
                nudging.cancel()
                await asyncio.gather(nudging, return_exceptions=True)

    async def _send(self, session: Session, text: str, key: str) -> TurnHandle | None:
        while time.monotonic() < self._load.wait_until:
            try:
                return await session.send(text, key=key)
            except Error:
                await asyncio.sleep(0.2)
        return None

    async def _answered(self, sent: TurnHandle, key: str) -> bool:
        """Wait for the end of a turn; False if it was dead-lettered."""
        while (left := self._load.wait_until - time.monotonic()) > 0:
            try:
                result = await sent.result(timeout=left)
            except Error:
                await asyncio.sleep(0.2)
                continue
            self._load.promised.note(ANSWERED, key=key, status=result.status, reason=result.reason, text=result.text)
            self.unanswered.discard(key)
            return result.reason != "no_forward_progress"
        return True

    async def _say_go(self, session: Session) -> None:
        """Answer the event of whatever turn is open: somebody outside, who comes when they come, and comes again."""
        while True:
            await asyncio.sleep(self._dice.uniform(0.2, 1.5))
            try:
                await session.resolve("go", "a go")
            except Error:
                continue
