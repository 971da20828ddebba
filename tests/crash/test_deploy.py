"""A deploy in the middle of a turn: the turn finishes on what it captured; new code never surprises an old call."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Agent, Runtime, ToolContext, tool
from perdure.models.scripted import ScriptedModel, call, say
from perdure.tools.decorator import AnyTool
from perdure.vocab.messages import Message, ToolResultPart
from tests.crash.harness import assert_valid_for_a_provider, child, inside
from tests.crash.scenarios import Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(60)]


async def finish(folder: Path, tools: list[AnyTool]) -> tuple[tuple[Message, ...], ScriptedModel]:
    """Die while `put` is owed, then go on with other code."""
    assert child("deploy", folder, inside("put")) == -9
    model = ScriptedModel.by_input({"go": [call("put", where="shelf"), say("all done")]}, default=[say("hello")])
    agent = Agent("a", model=model, instructions="rewritten", tools=tools)
    async with Runtime(store_url(folder), agents=[agent]) as rt:
        session = rt.get_session("s")
        sent = await session.send("go", key="the-only-input")
        assert (await sent.result(timeout=20)).status == "finished"
        history = await session.messages()
        assert_valid_for_a_provider(history)
        assert (await session.ask("next", timeout=20)).startswith("hello")
    return history, model


def result_of(history: tuple[Message, ...]) -> ToolResultPart:
    part = history[2].parts[0]
    assert isinstance(part, ToolResultPart)
    return part


async def test_the_turn_finishes_on_the_prompt_tools_and_class_it_began_with(folder: Path) -> None:
    ledger = Ledger(folder / "ledger")

    @tool(effect="once")  # the class changed too; the captured one governs
    async def put(ctx: ToolContext, where: str, size: int = 7, colour: str = "red") -> str:
        """Put it elsewhere, says the new description."""
        ledger.write("put", ctx.idempotency_key)
        return f"{where} {size} {colour}"

    @tool
    async def added(ctx: ToolContext) -> str:
        """A tool the running turn must not see."""
        return ""

    history, model = await finish(folder, [put, added])
    assert result_of(history).output == "shelf 7 red"
    assert ledger.count("put") == 2, "an idempotent call that was not settled runs again"
    assert len({key for _, key in ledger.lines()}) == 1
    in_flight, later = model.requests[0], model.requests[1]
    assert in_flight.instructions == "as it was"
    assert [definition.name for definition in in_flight.tools] == ["put", "unused"]
    assert in_flight.tools[0].description == "Put something somewhere."
    assert later.instructions == "rewritten"
    assert [definition.name for definition in later.tools] == ["put", "added"]


async def test_a_removed_tool_that_was_owed_gives_a_typed_outcome(folder: Path) -> None:
    history, _ = await finish(folder, [])
    assert result_of(history).is_error
    assert result_of(history).output["code"] == "tool_removed"
    assert Ledger(folder / "ledger").count("put") == 1


async def test_arguments_the_new_code_refuses_are_not_dispatched(folder: Path) -> None:
    ledger = Ledger(folder / "ledger")

    @tool(effect="idempotent")
    async def put(ctx: ToolContext, where: int) -> str:
        """Now a number is wanted."""
        ledger.write("put", ctx.idempotency_key)
        return str(where)

    history, _ = await finish(folder, [put])
    assert result_of(history).output["code"] == "tool_contract_changed"
    assert ledger.count("put") == 1
