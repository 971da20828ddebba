"""A refund desk: an agent with a tool that moves money. `test_shop.py` crashes it at every boundary.

Run:     pytest examples/shop
"""

from typing import Protocol

from perdure import Agent, DidNotHappen, Happened, ToolContext, tool

ORDERS = {"7": 1_250, "8": 300}


class Bank(Protocol):
    """The external system that moves the money."""

    def refund(self, order: str, cents: int, *, key: str) -> str:
        """Refund, and return a receipt."""
        ...

    def find(self, key: str) -> str | None:
        """Return the receipt of the refund under this key, or None."""
        ...


@tool(effect="pure")  # may run again after a crash, without effect
def look_up(order: str) -> dict[str, object]:
    """Look up the amount paid for an order."""
    return {"order": order, "paid_cents": ORDERS.get(order, 0)}


def was_refunded(ctx: ToolContext[Bank]) -> Happened | DidNotHappen:
    """Probe an unknown outcome: look up the refund by key."""
    receipt = ctx.deps.find(ctx.idempotency_key)
    return Happened(receipt) if receipt else DidNotHappen()


@tool(effect="once", probe=was_refunded)  # never run again blindly
async def refund(ctx: ToolContext[Bank], order: str, cents: int) -> str:
    """Refund an order."""
    return ctx.deps.refund(order, cents, key=ctx.idempotency_key)


def desk(model: object = "sim:echo") -> Agent:
    return Agent("desk", model=model, instructions="Refund what was paid.", tools=[look_up, refund])
