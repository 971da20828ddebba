"""No effect is bought again without a limit, and no unexpected exception repeats a turn forever."""

from __future__ import annotations

import pytest

from perdure import tool
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.calls import perform
from perdure.runtime.worker.waits import Waits
from tests.scenarios.conftest import App


def raises(*_: object, **__: object) -> None:
    raise RecursionError("too deep")


async def test_s4_fault_after_the_purchase_does_not_buy_again(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perform, "made_files", raises)
    model = ScriptedModel(*[say("fine")] * 9)
    rt = await app.open(model)
    result = await (await (await rt.session("s", agent="a")).send("go")).result(timeout=20)
    assert (result.status, result.reason) == ("stopped", "provider_error")
    assert len(model.requests) == 1


@tool(needs_approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


async def test_s4_effect_that_breaks_each_time_stops_the_turn(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Waits, "until", raises)
    model = ScriptedModel(call("pay"), say("fine"))
    rt = await app.open(model, pay)
    session = await rt.session("s", agent="a")
    result = await (await session.send("go")).result(timeout=20)
    assert (result.status, result.reason) == ("stopped", "no_forward_progress")
    assert "failed 3 times" in result.message
    monkeypatch.undo()
    assert len(model.requests) == 1
    assert (await session.send("again")) is not None
