"""How an application is tested: its answer on every store, then a crash at every boundary of its work.

Run:     pytest examples/shop
"""

import asyncio

import pytest
from shop import desk

from perdure import Runtime
from perdure.testing import Crash, ScriptedModel, World, call, every_boundary, say


class LedgerBank:
    """The bank of the tests: it notes every refund it is sent, and can be asked by key."""

    def __init__(self, world: World) -> None:
        self._world = world

    def refund(self, order: str, cents: int, *, key: str) -> str:
        self._world.note("refund", key=key, order=order, cents=cents)
        return f"receipt for order {order}"

    def find(self, key: str) -> str | None:
        lines = [line for line in self._world.ledger if line.key == key]
        return f"receipt for order {lines[0].details['order']}" if lines else None


def scripted() -> ScriptedModel:
    """What the model does: look up the order, refund it, say so."""
    return ScriptedModel(call("look_up", order="7"), call("refund", order="7", cents=1_250), say("Refunded 12.50."))


def test_an_order_is_refunded(perdure_runtime, perdure_world) -> None:
    async def story() -> str:
        async with perdure_runtime(agents=[desk(scripted())], deps=LedgerBank(perdure_world)) as rt:
            session = await rt.session("customer-42", agent="desk")
            return await session.ask("Refund order 7")

    assert asyncio.run(story()).startswith("Refunded 12.50.")
    perdure_world.assert_once("refund")


# --- the same, with a crash wherever there can be one


def app(store, world: World) -> Runtime:
    """How the process starts: here on a store and a world that the kit gives it."""
    return Runtime(store, agents=[desk(scripted())], deps=LedgerBank(world))


async def script(rt: Runtime) -> None:
    """What the callers do. The key makes it safe to do again, as a webhook is delivered again."""
    session = await rt.session("customer-42", agent="desk")
    await session.ask("Refund order 7", key="webhook-991")


def refunded_once_and_certainly(crash: Crash) -> None:
    """Stricter than the kit: with this probe nothing may stay in doubt, and no refund may be missing."""
    assert crash.world.count("refund") == 1
    assert not crash.doubts


@pytest.mark.parametrize("mode", ["memory", "sqlite", "kill"])
def test_it_is_refunded_once_wherever_the_process_dies(mode: str) -> None:
    crashes = every_boundary(app, script, mode=mode, check=refunded_once_and_certainly)
    assert len(crashes) > 15
