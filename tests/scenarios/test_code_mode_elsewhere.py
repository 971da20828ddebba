"""Programs that call tools which are run elsewhere, and tools that wait themselves: they park, and go on days later."""

from __future__ import annotations

import pytest

from perdure import Code, Error, Runtime, RuntimeOptions, Session
from perdure.codec import Json
from perdure.codemode import code_mode
from perdure.models.scripted import ScriptedModel, call, say
from perdure.observe.pending import PendingClientCall, PendingItem, PendingQuestion
from perdure.runtime.calls.programs import ProgramsClient
from perdure.runtime.internals import core_of
from perdure.tools.client_side import asking, client_tool
from perdure.vocab.promises import Failure
from tests.scenarios.conftest import App, until
from tests.scenarios.test_code_mode import check, script, shop, told

WHERE = client_tool(
    "where_am_i",
    "Where the person is.",
    {"type": "object", "properties": {"precise": {"type": "boolean"}}, "additionalProperties": False},
    result_type={"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
)
QUESTION: Json = {"id": "colour", "question": "Which colour?", "kind": "choice", "options": ["red", "blue"]}


async def waiting(session: Session, items: int = 1) -> list[PendingItem]:
    async def so() -> bool:
        return len(await session.pending()) == items

    await until(so)
    return sorted(await session.pending(), key=lambda item: item.id)


async def parked(rt: Runtime) -> None:
    async def so() -> bool:
        [info] = await core_of(rt).session_streams()
        return info.parked and info.owner is None and not core_of(rt).has_in_hand(info.stream)

    await until(so)


@pytest.mark.parametrize("kept", [True, False])
async def test_a_program_waits_for_its_client_and_goes_on_where_it_stood(
    app: App, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    sold: list[int] = []
    code = "a = buy(1)\nhere = where_am_i(precise=True)\n[a, here['lat'], buy(2)]"
    rt = await app.open(script(code), *shop(sold), WHERE, code_mode(), tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    [item] = await waiting(session)
    assert isinstance(item, PendingClientCall)
    assert (item.tool, item.args) == ("where_am_i", {"precise": True})
    await parked(rt)
    if not kept:

        async def fetch(_: ProgramsClient, __: str) -> bytes | None:
            return None

        monkeypatch.setattr(ProgramsClient, "fetch", fetch)
    with pytest.raises(Error) as refused:
        await session.post_result(item.id, {"lon": 1})
    assert refused.value.code is Code.TOOL_RESULT_INVALID
    await session.post_result(item.id, {"lat": 52.5})
    assert (await sent.result(timeout=30)).status == "finished"
    assert await told(session) == [{"result": ["bought 1", 52.5, "bought 2"]}]
    assert sold == [1, 2]
    await session.post_result(item.id, {"lat": 52.5})  # a client without a reply repeats its result
    with pytest.raises(Error) as late:
        await session.post_result(item.id, {"lat": 0})
    assert late.value.code is Code.TOOL_CALL_ANSWERED
    await check(rt)


async def test_gathered_calls_of_the_client_wait_together_and_its_failures_are_raised(app: App) -> None:
    code = """
import asyncio
async def safe(one):
    try:
        return await one
    except RuntimeError as e:
        return str(e) if "invalid" not in str(e) else str(e).split(":")[0]
await asyncio.gather(safe(where_am_i()), safe(where_am_i(precise=True)), safe(where_am_i(wrong=1)))
"""
    rt = await app.open(script(code), WHERE, code_mode(), tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    [first, second] = await waiting(session, 2)
    await session.post_result(second.id, Failure(code="denied", message="not allowed"))
    await session.post_result(first.id, {"lat": 1})
    await sent.result(timeout=30)
    assert await told(session) == [{"result": [{"lat": 1}, "denied: not allowed", "invalid_tool_args"]}]
    await check(rt)


async def test_a_program_asks_a_person_and_silence_means_what_the_question_says(app: App) -> None:
    code = f"""
told = ask_user(questions=[{QUESTION!r}])
silent = ask_user(questions=[{ {**QUESTION, "default": "blue"}!r}])
[told["answers"]["colour"]["value"], silent["answers"]["colour"]["value"]]
"""
    rt = await app.open(script(code), asking(timeout=1.0), code_mode(), tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    [item] = await waiting(session)
    assert isinstance(item, PendingQuestion)
    await session.answer(item.id, {"colour": "red"}, by="ana")
    await sent.result(timeout=30)
    assert await told(session) == [{"result": ["red", "blue"]}]
    await check(rt)


async def test_a_cancelled_program_wants_nothing_of_its_client_any_more(app: App) -> None:
    rt = await app.open(script("where_am_i()"), WHERE, code_mode(), tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    [item] = await waiting(session)
    await session.cancel()
    assert (await sent.result(timeout=30)).status == "stopped"
    with pytest.raises(Error) as refused:
        await session.post_result(item.id, {"lat": 1})
    assert refused.value.code is Code.TOOL_CALL_ANSWERED
    assert await session.pending() == ()
    await check(rt)


async def test_client_result_is_available_to_a_later_program(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel.by_input(
        {
            "one": [call("run_python", code="here = where_am_i()"), say("ok")],
            "two": [call("run_python", code="here['lat']"), say("ok")],
        }
    )
    rt = await app.open(model, WHERE, code_mode())
    session = await rt.session("s", agent="a")
    sent = await session.send("one")
    [item] = await waiting(session)
    await session.post_result(item.id, {"lat": 7})
    await sent.result(timeout=30)

    async def fetch(_: ProgramsClient, __: str) -> bytes | None:
        return None

    monkeypatch.setattr(ProgramsClient, "fetch", fetch)
    await session.ask("two")
    assert (await told(session))[-1] == {"result": 7}
    await check(rt)
