"""Commentary of a model is shown, and is no part of structured output."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Runtime
from perdure.runtime.clock import SystemClock
from perdure.store.memory.store import MemoryStore
from tests.providers import shapes
from tests.providers.asking import model_at
from tests.providers.loopback import Answer, Loopback, answer


class Count(BaseModel):
    n: int


def message(id: str, text: str, phase: str) -> dict[str, Any]:
    return shapes.said(text) | {"id": id, "phase": phase}


ASIDE, FINAL = message("msg_1", "Let me count. ", "commentary"), message("msg_2", '{"n": 3}', "final_answer")


def streamed() -> Answer:
    pieces: list[dict[str, Any]] = [{"type": "response.created", "response": shapes.response(status="in_progress")}]
    for index, said in enumerate((ASIDE, FINAL)):
        where = {"item_id": said["id"], "output_index": index, "content_index": 0}
        text: str = said["content"][0]["text"]
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []}
        item: dict[str, Any] = {**said, "status": "in_progress", "content": []}
        pieces += [
            {"type": "response.output_item.added", "item": item, "output_index": index},
            {"type": "response.content_part.added", "part": part, **where},
            {"type": "response.output_text.delta", "delta": text, "logprobs": [], **where},
            {"type": "response.output_item.done", "item": said, "output_index": index},
        ]
    pieces.append({"type": "response.completed", "response": shapes.response(ASIDE, FINAL)})
    return shapes.response_stream(*pieces)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_an_answer_that_must_have_a_form_is_found_beside_a_commentary(stream: bool) -> None:
    given = streamed() if stream else answer(shapes.response(ASIDE, FINAL))
    async with Loopback([given, given]).running() as server:
        model = model_at(f"{server.url}/v1", "openai", "gpt-5.2")
        agent = Agent("a", model=model, output_type=Count, model_settings={"stream": stream})
        async with Runtime(MemoryStore(SystemClock()), agents=[agent]) as rt:
            session = await rt.session("s", agent="a")
            result = await (await session.send("how many?")).result(30)
            again = await (await session.send("how many?", key="k")).result(30)
            told = await (await rt.get_session("s").send("how many?", key="k")).result(30)
    assert len(server.asked) == 2, "an accepted answer is not requested again"
    assert (result.output, result.text) == (Count(n=3), '{"n": 3}')
    assert (again.output, again.text) == (told.output, told.text) == (Count(n=3), '{"n": 3}')


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_where_no_form_is_asked_for_all_of_it_is_the_text(stream: bool) -> None:
    given = streamed() if stream else answer(shapes.response(ASIDE, FINAL))
    async with Loopback([given]).running() as server:
        model = model_at(f"{server.url}/v1", "openai", "gpt-5.2")
        async with Runtime(
            MemoryStore(SystemClock()), agents=[Agent("a", model=model, model_settings={"stream": stream})]
        ) as rt:
            assert await (await rt.session("s", agent="a")).ask("hi") == 'Let me count. {"n": 3}'
