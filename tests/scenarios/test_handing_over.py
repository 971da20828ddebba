"""A conversation that is handed over: the other agent answers, in the same turn and from then on, on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Literal

import pytest

from perdure import Agent, Error, Runtime, RuntimeOptions, ToolContext, handoff, tool
from perdure.models.scripted import ScriptedAnswer, ScriptedModel, call, calls, give, say
from perdure.runtime.agent import setup_of
from perdure.store.protocol import Store
from perdure.testing import CrashReport, World, every_boundary
from perdure.tools.decorator import AnyTool
from perdure.vocab.messages import Text
from perdure.vocab.outcomes import Done, Failed, ToolCallOutcome
from perdure.vocab.records import EffectSettled, HandedOver, TurnAgentChanged
from tests.scenarios.conftest import NewStore, until

REFUND = call("handoff", to="billing", reason="Wants money back.")


@tool
async def refund(cents: int) -> str:
    """Give money back."""
    return f"{cents} cents given back"


def triage(*script: ScriptedAnswer, tools: Sequence[AnyTool] = ()) -> Agent:
    model = ScriptedModel(*(script or (REFUND, say("Nobody hears this."))))
    return Agent("triage", model=model, instructions="You sort.", tools=[handoff("billing", "sales"), *tools])


def billing(*script: ScriptedAnswer, tools: Sequence[AnyTool] = (refund,), output: type | None = None) -> Agent:
    """Return the second agent. Its turn already has one reply, so the script starts with its second."""
    rest = script or (say("Hello, billing here.", exact=True),)
    model = ScriptedModel(say("Welcome back.", exact=True), *rest, name="billing-model")
    return Agent("billing", model=model, instructions="You pay.", tools=tools, output_type=output)


@pytest.fixture
async def opening(new_store: NewStore) -> AsyncIterator[Opening]:
    async with AsyncExitStack() as stack:
        yield Opening(new_store, stack)


@dataclass
class Opening:
    new_store: NewStore
    stack: AsyncExitStack

    async def __call__(self, *agents: Agent, tuning: RuntimeOptions | None = None) -> Runtime:
        runtime = Runtime(self.new_store(), agents=agents, options=tuning)
        return await self.stack.enter_async_context(runtime)


def shown_to(agent: Agent) -> list[list[str]]:
    """The texts of each request to an agent's model."""
    model = setup_of(agent).model
    assert isinstance(model, ScriptedModel)
    return [
        [part.text for message in request.messages for part in message.parts if isinstance(part, Text)]
        for request in model.requests
    ]


async def test_the_other_agent_answers_in_the_same_turn_and_from_then_on(opening: Opening) -> None:
    first, second = triage(), billing(call("refund", cents=500), say("Done.", exact=True))
    rt = await opening(first, second)
    session = await rt.session("s", agent="triage")
    assert await session.ask("My money, please") == "Done."
    assert len(shown_to(first)) == 1, "the first agent's model is called once"
    model = setup_of(second).model
    assert isinstance(model, ScriptedModel)
    assert [request.instructions for request in model.requests] == ["You pay.", "You pay."]
    assert [one.name for one in model.requests[0].tools] == ["refund"]
    assert "My money, please" in shown_to(second)[0]
    records = [row.record for row in await session.journal()]
    [told] = [one for one in records if isinstance(one, HandedOver)]
    [taken] = [one for one in records if isinstance(one, TurnAgentChanged)]
    assert (told.to, told.reason, taken.agent, taken.n) == ("billing", "Wants money back.", "billing", 1)

    model.requests.clear()
    again = await rt.session("s", agent="triage")  # naming the opening agent stays valid
    assert await again.ask("Thanks") == "Welcome back."
    assert len(shown_to(first)) == 1


async def test_handoff_persists_in_another_process(opening: Opening) -> None:
    async with Runtime(opening.new_store(), agents=[triage(), billing()]) as rt:
        await (await rt.session("s", agent="triage")).ask("My money, please")
    first, second = triage(), billing()
    rt = await opening(first, second)
    assert await rt.get_session("s").ask("Are you there?") == "Welcome back."
    assert shown_to(first) == []


async def test_handoff_returns_to_the_first_agent(opening: Opening) -> None:
    first = Agent(
        "triage",
        model=ScriptedModel(REFUND, say("unused"), say("I am back.", exact=True)),
        tools=[handoff("billing")],
    )
    second = Agent(
        "billing",
        model=ScriptedModel(say("unused"), call("handoff", to="triage")),
        tools=[handoff("triage")],
    )
    rt = await opening(first, second)
    session = await rt.session("s", agent="triage")
    assert await session.ask("My money, please") == "I am back."
    taken = [row.record for row in await session.journal() if isinstance(row.record, TurnAgentChanged)]
    assert [(one.agent, one.n) for one in taken] == [("billing", 1), ("triage", 2)]


async def test_other_calls_of_the_reply_finish_before_the_handoff(opening: Opening) -> None:
    """The calls of one reply belong to one agent: a slow one is awaited, and only then the other is asked."""

    @tool(effect="resumable")
    async def ask_boss(ctx: ToolContext) -> str:
        """Ask somebody else."""
        return str(await ctx.wait_for_event("said"))

    first, second = triage(calls(REFUND, call("ask_boss")), tools=[ask_boss]), billing()
    rt = await opening(first, second, tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="triage")
    sent = await session.send("My money, please")

    async def told() -> bool:
        return any(isinstance(row.record, HandedOver) for row in await session.journal())

    await until(told)
    assert shown_to(second) == []
    await session.resolve("said", "yes")
    assert (await sent.result()).text == "Hello, billing here."


async def test_structured_output_has_the_type_of_the_answering_agent(opening: Opening) -> None:
    @dataclass
    class Receipt:
        cents: int

    rt = await opening(triage(), billing(give({"cents": 5}), output=Receipt))
    sent = await (await rt.session("s", agent="triage")).send("My money, please")
    assert (await sent.result()).output == Receipt(5)


async def test_approval_edit_is_validated_by_the_current_agent(opening: Opening) -> None:
    @tool(needs_approval=True, name="refund")
    async def dear(cents: int) -> str:
        """Give money back."""
        return f"{cents} cents given back"

    rt = await opening(triage(), billing(call("refund", cents=500), say("Done.", exact=True), tools=[dear]))
    session = await rt.session("s", agent="triage")
    sent = await session.send("My money, please")

    async def asked() -> bool:
        return bool(await session.pending())

    await until(asked)
    [waiting] = await session.pending()
    with pytest.raises(Error) as refused:
        await rt.approvals.approve(waiting.id, by="ana", args={"cents": "many"})
    assert refused.value.code == "invalid_argument"
    await rt.approvals.approve(waiting.id, by="ana", args={"cents": 100})
    assert (await sent.result()).text == "Done."


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (call("handoff", to="sales"), "agent_unknown"),
        (call("handoff", to="nobody"), "invalid_tool_args"),
        (calls(REFUND, call("handoff", to="billing")), "handed_over"),
    ],
)
async def test_invalid_handoff_is_returned_to_the_model(opening: Opening, said: ScriptedAnswer, code: str) -> None:
    rt = await opening(triage(said, say("As it is.")), billing())
    session = await rt.session("s", agent="triage")
    await session.ask("My money, please")
    codes = {
        result.output.failure.code
        for row in await session.journal()
        if isinstance(row.record, EffectSettled)
        and isinstance(row.record.outcome, ToolCallOutcome)
        and isinstance(row.record.outcome.launch, Done)
        and isinstance((result := row.record.outcome.launch.result).output, Failed)
    }
    assert codes == {code}


async def test_a_turn_that_is_cancelled_leaves_the_conversation_with_the_other(opening: Opening) -> None:
    """The handoff was recorded: the next agent does not depend on the time of the cancel."""
    first, second = triage(), billing(say("Hello, billing here.", exact=True, latency_ms=3_600_000))
    rt = await opening(first, second)
    session = await rt.session("s", agent="triage")
    sent = await session.send("My money, please")

    async def asked() -> bool:
        return bool(shown_to(second))

    await until(asked)
    await session.cancel()
    assert (await sent.result()).reason == "cancelled"
    await session.send("Again")
    await until(lambda: _twice(second))
    assert len(shown_to(first)) == 1


async def _twice(agent: Agent) -> bool:
    return len(shown_to(agent)) == 2


# --- crashes


def shop(store: Store, world: World) -> Runtime:
    """Triage hands over to billing, which gives money back."""

    @tool(name="refund")
    async def pay(ctx: ToolContext, cents: int) -> str:
        """Give money back."""
        world.note("refund", key=ctx.idempotency_key)
        return f"{cents} cents given back"

    return Runtime(store, agents=[triage(), billing(call("refund", cents=500), say("Done.", exact=True), tools=[pay])])


async def ask_for_money(rt: Runtime) -> None:
    session = await rt.session("customer", agent="triage")
    assert await session.ask("My money, please", key="order-7") == "Done."


def paid_once(crash: CrashReport) -> None:
    assert crash.world.count("refund") <= 1
    if not crash.doubts:
        assert crash.world.count("refund") == 1
    shown = [part.text for message in crash.history("customer") for part in message.parts if isinstance(part, Text)]
    assert shown[-1] == "Done."


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["memory", "sqlite", "kill"])
def test_a_conversation_is_handed_over_once_wherever_the_process_dies(
    mode: Literal["memory", "sqlite", "kill"],
) -> None:
    where = [f"{side} {what}" for side in ("before", "after") for what in ("handed_over", "turn_agent_changed")]
    crashes = every_boundary(shop, ask_for_money, mode=mode, check=paid_once, at=where if mode == "kill" else None)
    whats = " ".join(crash.boundary.what for crash in crashes)
    for fact in ("handed_over", "turn_agent_changed"):
        assert fact in whats, whats
