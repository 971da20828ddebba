"""S16: what a model or a client may ask for is bounded, each bound is told, and nothing that was accepted is lost."""

from __future__ import annotations

import pytest

from perdure import Agent, Code, Error, tool
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.vocab.messages import Message, ToolResultPart
from tests.scenarios.conftest import App

ran: list[int] = []


@tool(effect="once")
async def count(n: int) -> str:
    """Count."""
    ran.append(n)
    return "counted"


@pytest.fixture(autouse=True)
def none_ran() -> None:
    ran.clear()


def results(messages: tuple[Message, ...]) -> list[object]:
    parts = [part for message in messages for part in message.parts]
    return [part.output for part in parts if isinstance(part, ToolResultPart)]


async def test_s16_calls_above_the_limit_ask_again(app: App) -> None:
    model = ScriptedModel(calls(*(call("count", n=n) for n in range(70))), say("ok"))
    rt = await app.add([Agent("a", model=model, tools=[count])])
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=30)
    assert sorted(ran) == list(range(64))
    told = results(await session.messages())
    assert len(told) == 70
    assert told[:64] == ["counted"] * 64
    refusal = {
        "error": "A reply may make at most 64 calls. This one was not run: ask again",
        "code": "too_many_calls",
    }
    assert told[64:] == [refusal] * 6


async def test_s16_calls_of_a_turn_are_limited_across_its_replies(app: App) -> None:
    model = ScriptedModel(*(calls(call("count", n=2 * n), call("count", n=2 * n + 1)) for n in range(3)), say("ok"))
    rt = await app.add([Agent("a", model=model, tools=[count], max_calls_per_reply=2, max_calls_per_turn=5)])
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=30)
    assert sorted(ran) == [0, 1, 2, 3, 4]
    assert results(await session.messages())[-1] == {
        "error": "A turn may make at most 5 calls. This one was not run: give your answer",
        "code": "too_many_calls",
    }


@pytest.mark.any_store
@pytest.mark.parametrize("name", ["max_calls_per_reply", "max_calls_per_turn"])
@pytest.mark.parametrize("wrong", [0, -1, "5", 1.5])
def test_s16_limits_of_calls_are_checked(name: str, wrong: object) -> None:
    with pytest.raises(Error) as caught:
        Agent("a", model="sim:echo", **{name: wrong})  # type: ignore[arg-type]
    assert caught.value.code is Code.AGENT_INVALID
