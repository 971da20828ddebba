"""Helpers of the scenarios of sending, steering, interrupting and pausing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

from perdure import ToolContext, tool
from perdure.models.protocol import ModelEvent, ModelRequest
from perdure.models.scripted import ScriptedModel, Step
from perdure.runtime.sessions.session import Session
from perdure.vocab.messages import Message, Text
from tests.scenarios.conftest import until


def texts(messages: tuple[Message, ...]) -> list[str]:
    """Return the messages with their roles, without those of tools."""
    return [f"{m.role}: {part.text}" for m in messages for part in m.parts if isinstance(part, Text)]


class HeldModel:
    """A scripted model that answers once it is let go: the n-th time it is asked, by `go[n]`."""

    name = "held"

    def __init__(self, *scripts: tuple[str, Step], hold: int = 1) -> None:
        steps: dict[str, list[Step]] = {}
        for text, step in scripts:
            steps.setdefault(text, []).append(step)
        self.script = ScriptedModel.by_input(steps)
        self.asked = [asyncio.Event() for _ in range(hold)]
        self.go = [asyncio.Event() for _ in range(hold)]
        self.cut_off = False

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        n = len(self.script.requests)
        first = True
        async for event in self.script.stream(request):
            yield event
            if first and n < len(self.go):
                first = False
                self.asked[n].set()
                try:
                    await self.go[n].wait()
                except asyncio.CancelledError:
                    self.cut_off = True
                    raise


async def in_its_turn(model: HeldModel, session: Session) -> None:
    """Wait until the model is asked and the turn is open for all to see: it may be asked before that is durable."""
    await model.asked[0].wait()
    await until(lambda: _taken(session))


async def _taken(session: Session) -> bool:
    return await session.queued_inputs() == ()


class Gate:
    """Tools that run until they are let go. `world` is what they did; `told` that a thread was asked to stop."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.world: list[str] = []
        self.told = threading.Event()
        self.let_go = threading.Event()
        loop = asyncio.get_running_loop()

        @tool(effect="idempotent")
        async def look(ctx: ToolContext) -> str:
            """Look."""
            self.entered.set()
            await self.go.wait()
            return "seen"

        @tool
        async def pay(ctx: ToolContext, to: str = "ann") -> str:
            """Pay."""
            self.world.append(f"pay {to}")
            self.entered.set()
            await self.go.wait()
            return "paid"

        @tool
        def post(ctx: ToolContext) -> str:
            """Post."""
            self.world.append("post")
            loop.call_soon_threadsafe(self.entered.set)
            while not self.let_go.wait(0.01):
                if ctx.cancellation.cancelled:
                    self.told.set()
            return "posted"

        self.look, self.pay, self.post = look, pay, post
