"""Tests of the shop: its answer on every store, then a crash at every boundary.

Run:     pytest examples/shop
"""

import asyncio

import pytest
from shop import desk

from perdure import Runtime
from perdure.testing import CrashReport, ScriptedModel, World, call, every_boundary, say


class LedgerBank:
    """The bank of the tests: stores every refund in the ledger of the test's world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def refund(self, order: str, cents: int, *, key: str) -> str:
        self._world.note("refund", key=key, order=order, cents=cents)
        return f"receipt for order {order}"

    def find(self, key: str) -> str | None:
        lines = [line for line in self._world.ledger if line.key == key]
        return f"receipt for order {lines[0].details['order']}" if lines else None


def scripted() -> ScriptedModel:
    """Return a model that looks up the order, refunds it, and answers."""
    return ScriptedModel(call("look_up", order="7"), call("refund", order="7", cents=1_250), say("Refunded 12.50."))


def test_an_order_is_refunded(perdure_runtime, perdure_world) -> None:
    async def story() -> str:
        async with perdure_runtime(agents=[desk(scripted())], deps=LedgerBank(perdure_world)) as rt:
            session = await rt.session("customer-42", agent="desk")
            return await session.ask("Refund order 7")

    assert asyncio.run(story()).startswith("Refunded 12.50.")
    perdure_world.assert_once("refund")


# --- the same, with a crash at every boundary


def app(store, world: World) -> Runtime:
    """Start the process on the store and the world that the kit provides."""
    return Runtime(store, agents=[desk(scripted())], deps=LedgerBank(world))


async def script(rt: Runtime) -> None:
    """Call the application. The key makes a repeated call safe, like a redelivered webhook."""
    session = await rt.session("customer-42", agent="desk")
    await session.ask("Refund order 7", key="webhook-991")


def refunded_once_and_certainly(crash: CrashReport) -> None:
    """Check more than the kit: with this probe no effect stays in doubt and no refund is missing."""
    assert crash.world.count("refund") == 1
    assert not crash.doubts


@pytest.mark.parametrize("mode", ["memory", "sqlite", "kill"])
def test_it_is_refunded_once_wherever_the_process_dies(mode: str) -> None:
    crashes = every_boundary(app, script, mode=mode, check=refunded_once_and_certainly)
    assert len(crashes) > 15
