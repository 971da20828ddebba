"""The application that the fleet runs: every effect class, a world that never forgets, and a clock that may lie.

Loaded by `perdure worker tests.chaos.app:app`. Whatever a tool does it notes in a file that all processes append to,
before it begins and when it has taken effect, so that a reader of the file need not trust Perdure.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import sys
from collections.abc import AsyncIterator

from perdure import Agent, DidNotHappen, Happened, Runtime, RuntimeOptions, ToolContext, ToolError, tool
from perdure.models.conversation import input_texts, replies, since_input
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest, ProviderCall, TextPiece
from perdure.models.wording import provider_id, reword
from perdure.runtime.clock import SystemClock
from perdure.testing import World
from perdure.vocab.messages import Text
from perdure.vocab.usage import Usage

WORLD = "CHAOS_WORLD"
SKEW_MS = "CHAOS_SKEW_MS"
LEASE_S = "CHAOS_LEASE_S"
AGENT = "chaos"

BEGUN, DONE, REFUSED, PROBED = "begun", "done", "refused", "probed"


class SkewedClock(SystemClock):
    """A machine whose wall clock is wrong by some seconds."""

    def __init__(self, skew_ms: int) -> None:
        self._skew_ms = skew_ms

    def wall_ms(self) -> int:
        """Return the time of this machine."""
        return super().wall_ms() + self._skew_ms


def _world() -> World:
    return World(os.environ[WORLD], fsync=False)  # processes die here, machines do not


async def _act(tool: str, key: str) -> str:
    """Do something in the world that takes a moment: it can die before, in between and after."""
    world = _world()
    world.note(BEGUN, key=key, tool=tool)
    await asyncio.sleep(random.uniform(0.0, 0.12))
    world.note(DONE, key=key, tool=tool)
    await asyncio.sleep(random.uniform(0.0, 0.03))
    return f"{tool} done"


@tool(effect="pure")
async def look(ctx: ToolContext) -> str:
    """Look at something."""
    return await _act("look", ctx.idempotency_key)


@tool(effect="idempotent")
async def put(ctx: ToolContext) -> str:
    """Put something somewhere."""
    return await _act("put", ctx.idempotency_key)


@tool
async def charge(ctx: ToolContext) -> str:
    """Charge a card; if it is in doubt, that is told."""
    return await _act("charge", ctx.idempotency_key)


def ask_bank(ctx: ToolContext) -> Happened | DidNotHappen:
    """Whether the money has moved."""
    world = _world()
    found = world.count(DONE, key=ctx.idempotency_key) > 0
    world.note(PROBED, key=ctx.idempotency_key, found=found)
    return Happened("wire done") if found else DidNotHappen()


@tool(probe=ask_bank)
async def wire(ctx: ToolContext) -> str:
    """Move money at a bank that can be asked."""
    return await _act("wire", ctx.idempotency_key)


@tool(retries=2)
async def flaky(ctx: ToolContext) -> str:
    """Fail once in a way that is known to have done nothing, then do it."""
    if ctx.attempt == 1:
        _world().note(BEGUN, key=ctx.idempotency_key, tool="flaky")
        _world().note(REFUSED, key=ctx.idempotency_key, tool="flaky")
        raise ToolError("not now", retry_safe=True)
    return await _act("flaky", ctx.idempotency_key)


@tool(effect="resumable")
async def book(ctx: ToolContext) -> str:
    """Reserve, cool down, wait for somebody outside, confirm, seal."""
    await ctx.step("reserve", _act, "reserve", ctx.step_key("reserve"))
    await ctx.sleep("cool", "200ms")
    said = await ctx.wait_for_event("go", timeout="2h")
    await ctx.step("confirm", _act, "confirm", ctx.step_key("confirm"), effect="idempotent")
    await ctx.step("seal", _act, "seal", ctx.step_key("seal"))
    return f"booked after {said}"


ONCE = ("charge", "wire", "flaky", "reserve", "seal")
"""What must not be done twice."""
TOOLS = ("look", "put", "charge", "wire", "flaky", "book")


class Obedient:
    """A model that is told by its input which tools to call: `7 look+charge wire` is two replies with calls."""

    name = "obedient"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The next reply of the plan, worded anew each time."""
        number, *plan = input_texts(request.messages)[-1].split()
        await asyncio.sleep(random.uniform(0.0, 0.05))
        place = replies(since_input(request.messages))
        if place < len(plan):
            parts = tuple(ProviderCall(provider_id(), name, "{}") for name in plan[place].split("+"))
            yield ModelReply(parts, "tool_calls", Usage(), self.name)
        else:
            text = reword(f"answer to {number}")
            yield TextPiece(text)
            yield ModelReply((Text(text=text),), "stop", Usage(), self.name)


def _die_with_parent() -> None:
    """A run that is killed leaves nothing behind, not even workers that are stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def app() -> Runtime:
    """A worker of the fleet, as its environment says."""
    _die_with_parent()
    clock = SkewedClock(int(os.environ.get(SKEW_MS, "0")))
    agent = Agent(AGENT, model=Obedient(), tools=[look, put, charge, wire, flaky, book])
    tuning = RuntimeOptions(clock=clock, lease_s=float(os.environ.get(LEASE_S, "2")), idle_timeout_s=0.3, drain_s=20)
    return Runtime(agents=[agent], options=tuning)
