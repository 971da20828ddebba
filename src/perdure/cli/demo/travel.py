"""The agent of the demo: it searches flights, charges a card, slowly, after the money has moved, and sends an e-mail,
which a person must allow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from perdure.cli.demo.ledger import Charge, Email, Ledger, Outbox
from perdure.codec import Json
from perdure.models.protocol import ModelEvent, ModelRequest, TextDelta
from perdure.models.simulated import TravelModel
from perdure.runtime.agent import Agent
from perdure.tools.context import ToolContext
from perdure.tools.decorator import tool
from perdure.tools.verdicts import DidNotHappen, Happened, Verdict
from perdure.vocab.messages import ToolResult

AGENT = "travel"
INPUT = "Book me a flight to Lisbon, 2 nights."
INSTRUCTIONS = (
    "Book the cheapest flight: search, charge the card exactly once, then mail the itinerary to you@example.com. "
    "Ask nothing back."
)


def _survive(place: str) -> None:
    """What happens at the places of a demo where nobody wants it killed."""


@dataclass(frozen=True, slots=True)
class World:
    """What the tools of the demo act on. `passing` is told of every place a crash could find interesting."""

    ledger: Ledger
    outbox: Outbox
    dawdle_s: float = 0.0
    pace_s: float = 0.0
    passing: Callable[[str], None] = field(default=_survive)


@tool(effect="pure")
async def search_flights(ctx: ToolContext[World], city: str) -> list[Json]:
    """Search flights to a city.

    Args:
        city: Where to, e.g. `Lisbon`.
    """
    ctx.deps.passing("search")
    await asyncio.sleep(ctx.deps.pace_s)
    return [
        {"flight": f"TP{number}", "to": city, "price_cents": cents}
        for number, cents in ((931, 18_900), (935, 22_400), (939, 31_050))
    ]


async def was_charged(ctx: ToolContext[World]) -> Verdict:
    """Ask the bank by idempotency key: is there a charge under it?"""
    ctx.deps.passing("probe")
    charge = ctx.deps.ledger.find(ctx.idempotency_key)
    return Happened({"receipt": charge.receipt, "cents": charge.cents}) if charge else DidNotHappen()


@tool(effect="once", probe=was_charged)
async def charge_card(ctx: ToolContext[World], amount_cents: int, description: str) -> Json:
    """Charge the customer's card.

    Args:
        amount_cents: How much, in cents.
        description: What for, as the customer will read it.
    """
    world = ctx.deps
    world.passing("pre-charge")
    charge = Charge(time.time_ns() // 1_000_000, ctx.session_id, amount_cents, description, ctx.idempotency_key)
    world.ledger.charge(charge)
    world.passing("post-charge")
    await asyncio.sleep(world.dawdle_s)  # the money has moved and nobody knows it yet: the worst moment to be killed
    return {"receipt": charge.receipt, "cents": amount_cents}


async def was_sent(ctx: ToolContext[World]) -> Verdict:
    """Look into the outbox: was it sent under this key?"""
    return Happened("sent") if ctx.deps.outbox.has(ctx.idempotency_key) else DidNotHappen()


@tool(effect="once", probe=was_sent, approve=True)
async def send_email(ctx: ToolContext[World], to: str, subject: str) -> str:
    """Send an e-mail to the customer.

    Args:
        to: The address.
        subject: What it is about.
    """
    ctx.deps.passing("pre-mail")
    ctx.deps.outbox.send(Email(ctx.session_id, to, subject, ctx.idempotency_key))
    ctx.deps.passing("post-mail")
    return "sent"


@dataclass(frozen=True, slots=True)
class WatchedModel:
    """`sim:travel`, telling the world when it is in the middle of a reply."""

    world: World
    inner: TravelModel
    name: str = "sim:travel"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Stream a reply; the place is `model-1` for the first reply of the turn, and so on."""
        answered = sum(isinstance(part, ToolResult) for message in request.messages for part in message.parts)
        begun = False
        async for event in self.inner.stream(request):
            yield event
            if isinstance(event, TextDelta) and not begun:
                begun = True
                self.world.passing(f"model-{answered + 1}")


def travel_agent(world: World, *, delta_ms: int = 0, model: str = "") -> Agent:
    """The agent, on a model that needs no key, or on this one."""
    return Agent(
        AGENT,
        model=model or WatchedModel(world, TravelModel(delta_ms=delta_ms)),
        instructions=INSTRUCTIONS,
        tools=[search_flights, charge_card, send_email],
    )
