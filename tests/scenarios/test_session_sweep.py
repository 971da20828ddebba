"""A turn with all that a session can take, crashed at every boundary: bytes, a model, instructions, an output."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from perdure import Agent, Attachment, DidNotHappen, Happened, Runtime, ToolContext, tool
from perdure.models.scripted import give
from perdure.runtime.agent import setup_of
from perdure.store.protocol import Store
from perdure.testing import ScriptedModel, World, call, every_boundary, say
from perdure.testing.sweep import Mode
from perdure.values import InstructionsContext
from tests.scenarios.test_content import PNG

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]


class Bill(BaseModel):
    cents: int


def app(store: Store, world: World) -> Runtime:
    def ask(ctx: ToolContext) -> Happened | DidNotHappen:
        return Happened("charged") if world.has(ctx.idempotency_key) else DidNotHappen()

    @tool(probe=ask)
    async def charge(ctx: ToolContext, cents: int) -> str:
        """Charge."""
        world.note("charge", key=ctx.idempotency_key)
        return "charged"

    def instructions(ctx: InstructionsContext) -> str:
        return f"turn {ctx.turn_index}"

    model = ScriptedModel(call("charge", cents=5), say("five"), give({"cents": 5}))
    agent = Agent("shop", model=model, tools=[charge], instructions=instructions, output_type=Bill)
    return Runtime(store, agents=[agent])


async def buy(rt: Runtime) -> None:
    session = await rt.session("customer", agent="shop")
    sent = await session.send(["Buy it", Attachment("image/png", PNG)], key="order-7", model="scripted")
    result = await sent.result()
    assert result.output == Bill(cents=5)
    (first, *_) = await session.messages()
    assert len(first.parts) == 2
    model = setup_of(rt.agents["shop"]).model
    assert isinstance(model, ScriptedModel)
    for request in model.requests:
        assert list(request.attachments.values()) == [PNG], "every request has the bytes, on any worker"
        assert request.instructions == "turn 0"


@pytest.mark.parametrize("mode", ["memory", "sqlite", "kill"])
def test_nothing_of_an_input_is_lost_wherever_it_crashes(mode: Mode, tmp_path: Path) -> None:
    where = ["after admit input", "after effect_started c1.0.1", "before turn_ended"] if mode == "kill" else None
    crashes = every_boundary(app, buy, mode=mode, folder=tmp_path if mode == "kill" else None, at=where)
    assert len(crashes) > (2 if where else 8)
    assert all(crash.reached and crash.world.count("charge") == 1 for crash in crashes)
