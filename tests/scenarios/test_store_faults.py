"""A store that fails in the middle of a turn: nothing is lost, nothing is done twice, the turn goes on by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from perdure import Agent, Code, Runtime, ToolContext, tool
from perdure.models.scripted import ScriptedModel, call, say
from perdure.store.protocol import Store
from perdure.testing.faults import Side, faulty
from perdure.vocab.messages import ToolResult
from perdure.vocab.records import EffectSettled, TurnEnded

NewStore = Callable[[], Store]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("code", [Code.STORE_FULL, Code.STORE_UNAVAILABLE, Code.STORE_LOCKED])
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_a_failed_append_is_sorted_out_by_the_log(new_store: NewStore, at: int, side: Side, code: Code) -> None:
    ran: list[str] = []

    @tool
    async def charge(ctx: ToolContext) -> str:
        """Charge."""
        ran.append(ctx.idempotency_key)
        return "charged"

    store = faulty(new_store(), at=at, side=side, code=code, times=2 if side == "before" else 1)
    agent = Agent("a", model=ScriptedModel(call("charge"), say("ok")), tools=[charge])
    async with Runtime(store, agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go")
        result = await sent.result(timeout=20)
        assert result.status == "finished"
        rows = await session.rows()
        settled = [row.record.id for row in rows if isinstance(row.record, EffectSettled)]
        assert len(settled) == len(set(settled))
        assert sum(isinstance(row.record, TurnEnded) for row in rows) == 1
        results = [p for m in await session.history() for p in m.parts if isinstance(p, ToolResult)]
        assert len(ran) <= 1
        if side == "before" or at > 2:
            assert results[0].output == "charged", "its outcome was known, so it is no matter of doubt"
        elif not ran:
            # the intent became durable and its append failed: nobody dispatched, and the log cannot know that
            assert results[0].output["code"] == "outcome_unknown"
