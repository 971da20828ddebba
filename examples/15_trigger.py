"""Shows: triggers. Two processes subscribe to a paid order; a repeated emit starts them once.

    python examples/15_trigger.py

See: subscriptions with and without arguments, an occurrence under a key, a tool that emits once across two attempts,
the deliveries of an occurrence, and the started processes. See docs/guides/triggers.md.
"""

import asyncio
import tempfile
from pathlib import Path

from perdure import Agent, ProcessContext, Runtime, ToolContext, ToolError, process, tool
from perdure.testing import ScriptedModel, call, say


@process
async def receipt(ctx: ProcessContext, order: dict[str, int]) -> str:
    """Write a receipt for a payment."""
    return f"receipt for order {order['id']}"


@process
async def recount(ctx: ProcessContext, shelf: str) -> str:
    """Recount a shelf after any payment."""
    return f"recounted shelf {shelf}"


@tool(effect="idempotent", retries=1)
async def take_payment(ctx: ToolContext) -> str:
    """Take a payment and emit it."""
    await ctx.triggers.emit("order.paid", {"id": 8})
    if ctx.attempt == 1:
        raise ToolError("the line is bad", retry_safe=True)
    return f"paid at attempt {ctx.attempt}"


async def main(folder: Path) -> None:
    """Subscribe, emit twice, read the deliveries; then emit from a tool."""
    agent = Agent("till", model=ScriptedModel(call("take_payment"), say("Paid.", exact=True)), tools=[take_payment])
    async with Runtime(f"sqlite:///{folder / 'shop.db'}", agents=[agent], processes=[receipt, recount]) as rt:
        await rt.triggers.subscribe("order.paid", receipt, key="receipts")
        shelf = await rt.triggers.subscribe("order.paid", recount, key="stock", args=("B",))
        paid = await rt.triggers.emit("order.paid", {"id": 7}, key="payment-7")
        print("1 ", [await one.result(timeout=30) for one in await paid.processes(timeout=30)])
        again = await rt.triggers.emit("order.paid", {"id": 7}, key="payment-7")
        print("2 ", "the same again:", again.is_duplicate, [one.subscription for one in await again.deliveries()])
        await shelf.disable(expected_revision=1)
        print("3 ", await (await rt.session("s", agent="till")).ask("Take it."))
        while len(started := await rt.processes.list(ended=True)) < 3:
            await asyncio.sleep(0.01)
        print("4 ", sorted(one.registration.definition for one in started))


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder)))
