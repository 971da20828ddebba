"""Settings captured at the start of a turn: instructions, dependencies, timeouts, the form of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypedDict

import msgspec
import pytest
from pydantic import BaseModel, Field

from perdure import Agent, Code, Error, Runtime, ToolContext, per_turn, tool
from perdure.models.scripted import ScriptedModel, call, calls, give, say
from perdure.runtime.deps import TurnDeps
from perdure.runtime.internals import ref_of
from perdure.runtime.sessions.results import wait_for
from perdure.values import DepsContext, InstructionsContext
from perdure.vocab.messages import Message, ToolResultPart
from perdure.vocab.records import TurnEnded
from tests.scenarios.conftest import NewStore
from tests.scenarios.test_content import Looking

pytestmark = pytest.mark.any_store


def results(history: tuple[Message, ...]) -> list[ToolResultPart]:
    return [part for message in history for part in message.parts if isinstance(part, ToolResultPart)]


# --- instructions


async def test_instructions_may_be_a_function_of_the_turn(new_store: NewStore) -> None:
    model = Looking()
    asked: list[InstructionsContext] = []

    async def instructions(ctx: InstructionsContext) -> str:
        asked.append(ctx)
        return f"turn {ctx.turn_index} of {ctx.session}: {ctx.input}"

    async with Runtime(new_store(), agents=[Agent("a", model=model, instructions=instructions)], deps={"k": 1}) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("one")
        await session.ask(["two", "three"])
    assert [request.instructions for request in model.requests] == ["turn 0 of s: one", "turn 1 of s: two\nthree"]
    assert asked[0] == InstructionsContext(session.id, rt.tenant, 0, "one", {"k": 1})


async def test_a_plain_function_does_not_hold_up_the_others(new_store: NewStore) -> None:
    import threading

    model, gate = Looking(), threading.Event()

    def instructions(ctx: InstructionsContext) -> str:
        if ctx.session == "slow":
            assert gate.wait(10)
        return "be brief"

    async with Runtime(new_store(), agents=[Agent("a", model=model, instructions=instructions)]) as rt:
        slow = await (await rt.session("slow", agent="a")).send("hi")
        await (await rt.session("fast", agent="a")).ask("hi", timeout=10)
        gate.set()
        assert (await slow.result(timeout=10)).status == "finished"


@pytest.mark.parametrize("broken", ["raises", "number", "huge", "exits"])
async def test_instructions_that_fail_stop_the_turn_and_not_the_session(new_store: NewStore, broken: str) -> None:
    model = Looking()
    fixed = False

    def instructions(ctx: InstructionsContext) -> str:
        if fixed:
            return "fine"
        match broken:
            case "raises":
                raise RuntimeError("password=hunter2")
            case "number":
                return 7  # type: ignore[return-value]
            case "huge":
                return "x" * 300_000
            case _:
                raise SystemExit(3)

    async with Runtime(new_store(), agents=[Agent("a", model=model, instructions=instructions)]) as rt:
        session = await rt.session("s", agent="a")
        result = await (await session.send("hi")).result(timeout=10)
        assert (result.status, result.reason) == ("stopped", "instructions_failed")
        assert result.message
        assert "hunter2" not in result.message
        fixed = True
        assert await session.ask("again", timeout=10) == "ok"
    assert [request.instructions for request in model.requests] == ["fine"]
    assert [m.role for m in model.requests[0].messages] == ["user"]


async def test_a_restart_does_not_change_the_instructions_of_a_turn_in_flight(new_store: NewStore) -> None:
    begun = asyncio.Event()

    @tool(effect="pure")
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.sleep(0 if version == 2 else 60)
        return "done"

    class Seeing(ScriptedModel):
        def stream(self, request):  # type: ignore[no-untyped-def]
            shown.append(request.instructions)
            return super().stream(request)

    version, shown = 1, list[str]()

    def instructions(_: InstructionsContext) -> str:
        return f"version {version}"

    def runtime() -> Runtime:
        agent = Agent("a", model=Seeing(call("wait"), say("ok")), instructions=instructions, tools=[wait])
        return Runtime(new_store(), agents=[agent])

    async with runtime() as rt:
        sent = await (await rt.session("s", agent="a")).send("go")
        await begun.wait()
        await rt.drain(0)
    version = 2
    async with runtime() as rt:
        result = await wait_for(ref_of(await rt.session("s")), sent.turn_id)
        assert result.status == "finished"
        await (await rt.session("s")).ask("once more")
    assert shown[0] == "version 1"
    assert set(shown[1:-2]) == {"version 1"}
    assert shown[-2:] == ["version 2", "version 2"]


async def test_a_turn_that_is_cancelled_before_it_begins_needs_no_instructions(new_store: NewStore) -> None:
    asked = 0

    def instructions(_: InstructionsContext) -> str:
        nonlocal asked
        asked += 1
        raise RuntimeError("no")

    agent = Agent("a", model=Looking(), instructions=instructions)
    async with Runtime(new_store(), agents=[agent], worker=False) as rt:
        sent = await (await rt.session("s", agent="a")).send("hi")
        assert await (await rt.session("s")).cancel(sent.turn_id) == "requested"
    async with Runtime(new_store(), agents=[agent]) as rt:
        result = await asyncio.wait_for(wait_for(ref_of(await rt.session("s")), sent.turn_id), 10)
    assert (result.reason, asked) == ("cancelled", 0)


def test_instructions_are_text_or_a_function() -> None:
    with pytest.raises(Error) as caught:
        Agent("a", "sim:echo", instructions=7)  # type: ignore[arg-type]
    assert caught.value.code is Code.AGENT_INVALID


# --- dependencies of a turn


@tool(effect="pure")
async def look(ctx: ToolContext[list[str]]) -> str:
    """Look."""
    return ctx.deps[0]


async def test_dependencies_are_made_once_a_turn_and_closed_with_it(new_store: NewStore) -> None:
    life: list[str] = []

    async def deps(ctx: DepsContext) -> AsyncIterator[list[str]]:
        life.append(f"open {ctx.tenant} {ctx.session} {ctx.agent}")
        try:
            yield ["seen"]
        finally:
            await asyncio.sleep(0)
            life.append("close")

    model = ScriptedModel(calls(call("look"), call("look")), call("look"), say("ok"))
    async with Runtime(new_store(), agents=[Agent("a", model=model, tools=[look])], deps=per_turn(deps)) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("one")
        assert {result.output for result in results(await session.messages())} == {"seen"}
        await session.ask("two")
    assert life == ["open default s a", "close"] * 2


async def test_a_turn_that_needs_no_dependencies_makes_none(new_store: NewStore) -> None:
    def deps(_: DepsContext) -> list[str]:
        raise AssertionError

    async with Runtime(new_store(), agents=[Agent("a", model=Looking())], deps=per_turn(deps)) as rt:
        assert await (await rt.session("s", agent="a")).ask("hi") == "ok"


@pytest.mark.parametrize("kind", ["plain", "async", "manager"])
async def test_every_kind_of_factory_works(new_store: NewStore, kind: str) -> None:
    def plain(ctx: DepsContext) -> list[str]:
        return [ctx.session]

    async def later(ctx: DepsContext) -> list[str]:
        return [ctx.session]

    @asynccontextmanager
    async def manager(ctx: DepsContext) -> AsyncGenerator[list[str]]:
        yield [ctx.session]

    deps = per_turn({"plain": plain, "async": later, "manager": manager}[kind])
    model = ScriptedModel(call("look"), say("ok"))
    async with Runtime(new_store(), agents=[Agent("a", model=model, tools=[look])], deps=deps) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("one")
        assert [result.output for result in results(await session.messages())] == ["s"]


async def test_a_client_that_a_factory_returns_is_not_closed_by_us(new_store: NewStore) -> None:
    class Client(list[str]):
        async def __aenter__(self) -> Client:
            raise AssertionError

        async def __aexit__(self, *_: object) -> None: ...

    model = ScriptedModel(call("look"), say("ok"))
    deps = per_turn(lambda _: Client(["mine"]))
    async with Runtime(new_store(), agents=[Agent("a", model=model, tools=[look])], deps=deps) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("one")
        assert [result.output for result in results(await session.messages())] == ["mine"]


@pytest.mark.parametrize("where", ["open", "close"])
async def test_a_factory_that_fails_is_an_internal_error_of_the_call(new_store: NewStore, where: str) -> None:
    async def deps(_: DepsContext) -> AsyncIterator[list[str]]:
        if where == "open":
            raise RuntimeError("password=hunter2")
        yield ["seen"]
        raise RuntimeError("password=hunter2")

    model = ScriptedModel(call("look"), say("ok", exact=True))
    async with Runtime(new_store(), agents=[Agent("a", model=model, tools=[look])], deps=per_turn(deps)) as rt:
        session = await rt.session("s", agent="a")
        assert await session.ask("one") == "ok"
        (result,) = results(await session.messages())
        assert "hunter2" not in str(result.output)
        if where == "open":
            assert result.output["code"] == "internal_error"


@pytest.mark.parametrize("wrong", [7, lambda: 1, lambda a, b: a])  # type: ignore[misc]
def test_a_factory_is_a_function_of_one_argument(wrong: object) -> None:
    with pytest.raises(Error) as caught:
        per_turn(wrong)  # type: ignore[arg-type]
    assert caught.value.code is Code.INVALID_ARGUMENT


async def test_dependencies_stay_open_while_a_call_still_uses_them() -> None:
    closed = False

    async def deps(_: DepsContext) -> AsyncIterator[int]:
        nonlocal closed
        yield 1
        closed = True

    turn = TurnDeps(per_turn(deps), DepsContext("s", "t", "a"))  # type: ignore[arg-type]
    async with turn.use() as given:
        await turn.close()
        assert (given, closed) == (1, False)
    assert closed


# --- timeouts


async def test_a_tool_without_a_timeout_gets_that_of_the_agent(new_store: NewStore) -> None:
    @tool(effect="pure")
    async def slow() -> str:
        """Slow."""
        await asyncio.sleep(60)
        return "never"

    @tool(effect="pure", timeout=5)
    async def patient() -> str:
        """Patient."""
        await asyncio.sleep(0.2)
        return "there"

    model = ScriptedModel(calls(call("slow"), call("patient")), say("ok"))
    agent = Agent("a", model=model, tools=[slow, patient], tool_timeout="100ms")
    async with Runtime(new_store(), agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go", timeout=20)
        first, second = results(await session.messages())
    assert first.output["code"] == "tool_timeout"
    assert second.output == "there"


@pytest.mark.parametrize("timeout", [0, -1, "soon", True, float("nan")])
def test_a_timeout_is_a_duration(timeout: object) -> None:
    with pytest.raises(Error) as caught:
        Agent("a", "sim:echo", tool_timeout=timeout)  # type: ignore[arg-type]
    assert caught.value.code is Code.AGENT_INVALID


# --- the form of the answer


class Trip(BaseModel):
    city: str
    nights: int = Field(ge=1)


@dataclass
class Spot:
    x: int
    y: int


class Card(TypedDict):
    name: str


class Pair(msgspec.Struct):
    left: int
    right: Spot


@pytest.mark.parametrize(
    ("type", "json", "value"),
    [
        (Trip, {"city": "Porto", "nights": 2}, Trip(city="Porto", nights=2)),
        (Spot, {"x": 1, "y": 2}, Spot(1, 2)),
        (Card, {"name": "Ann"}, {"name": "Ann"}),
        (Pair, {"left": 1, "right": {"x": 1, "y": 2}}, Pair(1, Spot(1, 2))),
        (list[int], {"value": [1, 2]}, [1, 2]),
        (int, {"value": 7}, 7),
    ],
)
async def test_an_answer_is_a_value_of_the_type_that_was_asked_for(
    new_store: NewStore, type: object, json: object, value: object
) -> None:
    async with Runtime(new_store(), agents=[Agent("a", model=ScriptedModel(give(json)), output_type=type)]) as rt:
        sent = await (await rt.session("s", agent="a")).send("go")
        result = await sent.result(timeout=10)
        assert result.output == value
    async with Runtime(new_store(), agents=[Agent("a", model=ScriptedModel(), output_type=type)]) as rt:
        assert (await wait_for(ref_of(await rt.session("s")), sent.turn_id)).output == value, (
            "and is so later, from the log"
        )


async def test_a_wrong_answer_is_asked_for_again_with_what_is_wrong(new_store: NewStore) -> None:
    model = ScriptedModel(say("Porto!"), give({"city": "Porto", "nights": 0}), give({"city": "Porto", "nights": 3}))
    async with Runtime(new_store(), agents=[Agent("a", model=model, output_type=Trip)]) as rt:
        session = await rt.session("s", agent="a")
        result = await (await session.send("go")).result(timeout=10)
        assert result.output == Trip(city="Porto", nights=3)
        history = await session.messages()
        assert [m.role for m in history] == ["user", "assistant", "user", "assistant", "user", "assistant"]
        assert "nights: Input should be greater than or equal to 1" in str(history[4].parts[0])
        assert result.usage.calls == 3


async def test_an_answer_that_stays_wrong_stops_the_turn_and_not_the_session(new_store: NewStore) -> None:
    model = ScriptedModel.by_input({"bad": [say("no")] * 5, "good": [give({"city": "Porto", "nights": 1})]})
    async with Runtime(new_store(), agents=[Agent("a", model=model, output_type=Trip)]) as rt:
        session = await rt.session("s", agent="a")
        result = await (await session.send("bad")).result(timeout=10)
        assert (result.status, result.reason, result.output) == ("stopped", "output_invalid", None)
        assert result.usage.calls == 3
        good = await (await session.send("good")).result(timeout=10)
        assert good.output == Trip(city="Porto", nights=1)


async def test_a_correction_survives_a_restart(new_store: NewStore) -> None:
    model = ScriptedModel(say("no"), give({"city": "Porto", "nights": 1}))

    class Once(ScriptedModel):
        """Answers once, then not at all."""

        asked = 0

        async def stream(self, request):  # type: ignore[no-untyped-def]
            self.asked += 1
            if self.asked > 1:
                again.set()
                await asyncio.sleep(60)
            async for event in super().stream(request):
                yield event

    again = asyncio.Event()
    first = Once(say("no"), give({"city": "Porto", "nights": 1}))
    async with Runtime(new_store(), agents=[Agent("a", model=first, output_type=Trip)]) as rt:
        sent = await (await rt.session("s", agent="a")).send("go")
        await again.wait()
        await rt.drain(0)
    async with Runtime(new_store(), agents=[Agent("a", model=model, output_type=Trip)]) as rt:
        result = await asyncio.wait_for(wait_for(ref_of(await rt.session("s")), sent.turn_id), 10)
        assert result.output == Trip(city="Porto", nights=1)
        rows = await (await rt.session("s")).journal()
        assert sum(isinstance(row.record, TurnEnded) for row in rows) == 1


async def test_tools_work_before_the_answer_is_formed(new_store: NewStore) -> None:
    @tool(effect="pure")
    def nights() -> int:
        """How many."""
        return 4

    class Seeing(ScriptedModel):
        def stream(self, request):  # type: ignore[no-untyped-def]
            specs.append(request.output_spec)
            return super().stream(request)

    specs: list[object] = []
    model = Seeing(call("nights"), give({"city": "Porto", "nights": 4}))
    async with Runtime(new_store(), agents=[Agent("a", model=model, tools=[nights], output_type=Trip)]) as rt:
        result = await (await (await rt.session("s", agent="a")).send("go")).result(timeout=10)
    assert result.output == Trip(city="Porto", nights=4)
    assert [spec["name"] for spec in specs] == ["Trip", "Trip"]  # type: ignore[index]


@pytest.mark.parametrize("type", [Trip, Spot, Card, Pair, list[Trip], int, dict[str, int] | None])
async def test_the_simulated_model_answers_in_any_form(new_store: NewStore, type: object) -> None:
    async with Runtime(new_store(), agents=[Agent("e", model="sim:echo", output_type=type)]) as rt:
        result = await (await (await rt.session("s", agent="e")).send("hello")).result(timeout=10)
        assert (result.status, result.output is not None) == ("finished", True)


async def test_a_runtime_without_the_type_gives_plain_json(new_store: NewStore) -> None:
    agent = Agent("a", model=ScriptedModel(give({"city": "Porto", "nights": 2})), output_type=Trip)
    async with Runtime(new_store(), agents=[agent]) as rt:
        sent = await (await rt.session("s", agent="a")).send("go")
        await sent.result(timeout=10)
    async with Runtime(new_store(), worker=False) as rt:
        assert (await wait_for(ref_of(rt.get_session("s")), sent.turn_id)).output == {
            "city": "Porto",
            "nights": 2,
        }


async def test_a_type_that_changed_says_so_when_the_value_is_read(new_store: NewStore) -> None:
    agent = Agent("a", model=ScriptedModel(give({"city": "Porto", "nights": 2})), output_type=Trip)
    async with Runtime(new_store(), agents=[agent]) as rt:
        sent = await (await rt.session("s", agent="a")).send("go")
        await sent.result(timeout=10)
    async with Runtime(new_store(), agents=[Agent("a", model="sim:echo", output_type=Spot)], worker=False) as rt:
        result = await wait_for(ref_of(await rt.session("s")), sent.turn_id)
        assert result.text == '{"city":"Porto","nights":2}'
        with pytest.raises(Error) as caught:
            _ = result.output
        assert caught.value.code is Code.OUTPUT_INVALID


def test_a_type_without_a_schema_cannot_be_an_output() -> None:
    class Odd:
        pass

    with pytest.raises(Error) as caught:
        Agent("a", model="sim:echo", output_type=Odd)
    assert caught.value.code is Code.AGENT_INVALID
