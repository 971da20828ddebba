"""The agent of the demo: searches flights, charges a card slowly, and sends an e-mail that needs an approval."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from perdure.cli.demo.ledger import Charge, DemoLedger, Email, Mailbox
from perdure.codec import Json
from perdure.models.protocol import ModelEvent, ModelRequest, TextPiece
from perdure.models.simulated import TravelModel
from perdure.runtime.agent import Agent
from perdure.tools.context import ToolContext
from perdure.tools.decorator import tool
from perdure.tools.verdicts import DidNotHappen, Happened, Verdict
from perdure.vocab.messages import ToolResultPart

AGENT = "travel"
INPUT = "Book me a flight to Lisbon, 2 nights."
INSTRUCTIONS = (
    "Book the cheapest flight: search, charge the card exactly once, then mail the itinerary to you@example.com. "
    "Ask nothing back."
)


def _survive(place: str) -> None:
    """Do nothing: the default of `TravelWorld.passing`."""


@dataclass(frozen=True, slots=True)
class TravelWorld:
    """The dependencies of the demo's tools. `passing` is called at each place where a kill is interesting."""

    ledger: DemoLedger
    outbox: Mailbox
    delay_s: float = 0.0
    pace_s: float = 0.0
    passing: Callable[[str], None] = field(default=_survive)


@tool(effect="pure")
async def search_flights(ctx: ToolContext[TravelWorld], city: str) -> list[Json]:
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


async def was_charged(ctx: ToolContext[TravelWorld]) -> Verdict:
    """Look up a charge by its idempotency key."""
    ctx.deps.passing("probe")
    charge = ctx.deps.ledger.find(ctx.idempotency_key)
    return Happened({"receipt": charge.receipt, "cents": charge.cents}) if charge else DidNotHappen()


@tool(effect="once", probe=was_charged)
async def charge_card(ctx: ToolContext[TravelWorld], amount_cents: int, description: str) -> Json:
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
    await asyncio.sleep(world.delay_s)  # charged and not recorded: the worst time for a kill
    return {"receipt": charge.receipt, "cents": amount_cents}


async def was_sent(ctx: ToolContext[TravelWorld]) -> Verdict:
    """Look up an e-mail by its idempotency key."""
    return Happened("sent") if ctx.deps.outbox.has(ctx.idempotency_key) else DidNotHappen()


@tool(effect="once", probe=was_sent, needs_approval=True)
async def send_email(ctx: ToolContext[TravelWorld], to: str, subject: str) -> str:
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
    """`sim:travel` with a call of `passing` in the middle of each reply."""

    world: TravelWorld
    inner: TravelModel
    name: str = "sim:travel"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Stream a reply. The place is `model-1` in the first reply of the turn, and so on."""
        answered = sum(isinstance(part, ToolResultPart) for message in request.messages for part in message.parts)
        begun = False
        async for event in self.inner.stream(request):
            yield event
            if isinstance(event, TextPiece) and not begun:
                begun = True
                self.world.passing(f"model-{answered + 1}")


def travel_agent(world: TravelWorld, *, delta_ms: int = 0, model: str = "") -> Agent:
    """Return the agent, on the simulated model unless `model` names another."""
    return Agent(
        AGENT,
        model=model or WatchedModel(world, TravelModel(delta_ms=delta_ms)),
        instructions=INSTRUCTIONS,
        tools=[search_flights, charge_card, send_email],
    )
