"""Calls that the client runs, and questions to a person: emitted, waited for, answered once, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from perdure import Code, Error, Runtime, RuntimeOptions, ToolContext, tool
from perdure.codec import Json
from perdure.commit.changes import Audit
from perdure.events import RecordEvent
from perdure.ids import PromiseId, StreamId
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.observe.pending import PendingClientCall, PendingQuestion
from perdure.runtime.core import RuntimeCore
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.sessions import answers
from perdure.runtime.sessions.session import Session
from perdure.store.shapes import Accepted, AlreadyResolved
from perdure.tools.client_side import ask_user, asking, client_tool
from perdure.tools.toolbox import ToolSource
from perdure.vocab.effects import AwaitEvent
from perdure.vocab.messages import ToolCall
from perdure.vocab.promises import EventKey, Failure, Ok, Resolution
from perdure.vocab.records import EffectStarted
from tests.scenarios.conftest import App, until
from tests.scenarios.test_bodies import HURRIED, ids, outputs, parked, status

WHERE = client_tool(
    "where_am_i",
    "Where the person is.",
    {"type": "object", "properties": {"precise": {"type": "boolean"}}, "additionalProperties": False},
    result_type={"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
)
COLOUR: dict[str, Json] = {
    "id": "colour",
    "question": "Which colour?",
    "kind": "choice",
    "options": ["red", "blue"],
    "default": "blue",
}
NAME: dict[str, Json] = {"id": "name", "question": "What is it called?"}


async def begun(app: App, model: ScriptedModel, *tools: ToolSource, tuning: RuntimeOptions = HURRIED) -> Session:
    rt = await app.open(model, *tools, tuning=tuning)
    session = await rt.session("s", agent="a")
    await session.send("go")
    return session


async def waiting_call(session: Session) -> PendingClientCall:
    await status(session, "waiting")
    [item] = await session.pending()
    assert isinstance(item, PendingClientCall)
    return item


async def waiting_question(session: Session) -> PendingQuestion:
    async def asked() -> bool:
        return bool(await session.pending())

    await until(asked)
    [item] = await session.pending()
    assert isinstance(item, PendingQuestion)
    return item


def refusal(problem: Error) -> Code:
    return problem.code


# --- calls of the client ----------------------------------------------------------------------------------------


async def test_a_clients_call_is_emitted_and_its_result_goes_to_the_model(app: App) -> None:
    session = await begun(app, ScriptedModel(call("where_am_i", precise=True), say("ok")), WHERE)
    rt = ref_of(session).runtime
    item = await waiting_call(session)
    await parked(rt, session)
    assert (item.tool, item.args, item.id, item.until) == ("where_am_i", {"precise": True}, item.call, None)
    emitted = [row.record for row in await session.journal() if isinstance(row.record, EffectStarted)][-1]
    assert isinstance(emitted.command, AwaitEvent)
    assert emitted.command.about is not None
    assert (emitted.command.about.call_id, emitted.command.about.args) == (item.call, {"precise": True})
    why = await session.why()
    assert why.summary == "waiting for the client's result of tool where_am_i"
    assert why.hint == f"the client: session.post_result({item.id!r}, ...); `perdure sessions post-result s`"
    assert why.waiting[0].who == why.hint
    assert await session.post_result(item.id, {"lat": 52.5}) == Accepted()
    await status(session, "idle")
    assert outputs(await session.messages()) == [{"lat": 52.5}]
    assert await session.pending() == ()
    started = [record for record in await ids(session) if record.startswith(">c")]
    assert started == [">c1.0.1.completion"]  # and no intent: nothing was dispatched here


async def test_the_same_result_again_is_the_same_and_another_comes_too_late(app: App) -> None:
    session = await begun(app, ScriptedModel(call("where_am_i"), say("ok")), WHERE)
    item = await waiting_call(session)
    assert await session.post_result(item.id, {"lat": 1}) == Accepted()
    for _ in range(2):
        assert await session.post_result(item.id, {"lat": 1}) == AlreadyResolved(Ok(value={"lat": 1}))
        for other in ({"value": {"lat": 2}}, {"error": Failure(code="x", message="y")}):
            with pytest.raises(Error) as caught:
                await session.post_result(item.id, **other)  # pyright: ignore[reportArgumentType] - one of both
            assert refusal(caught.value) is Code.TOOL_CALL_ANSWERED
        await status(session, "idle")
    assert outputs(await session.messages()) == [{"lat": 1}]


@pytest.mark.any_store
async def test_invalid_client_result_leaves_the_call_open(app: App) -> None:
    session = await begun(app, ScriptedModel(call("where_am_i"), say("ok")), WHERE)
    item = await waiting_call(session)
    for wrong in ({"lat": "north"}, {}, None, [1]):
        with pytest.raises(Error) as caught:
            await session.post_result(item.id, cast("Json", wrong))
        assert refusal(caught.value) is Code.TOOL_RESULT_INVALID
    with pytest.raises(Error) as caught:
        await session.post_result(item.id, {"lat": 1, "much": "x" * 300_000})
    assert refusal(caught.value) is Code.INPUT_TOO_LARGE
    with pytest.raises(Error, match="not both"):
        await session.post_result(item.id, {"lat": 1}, error=Failure(code="x", message="y"))
    assert [one.id for one in await session.pending()] == [item.id]
    assert await session.post_result(item.id, error=Failure(code="denied", message="no permission")) == Accepted()
    await status(session, "idle")
    assert outputs(await session.messages()) == [{"error": "no permission", "code": "denied"}]


async def test_results_are_found_in_their_own_session_only(app: App) -> None:
    @tool
    async def here(ctx: ToolContext) -> None:
        """Left to somebody with a key."""
        await ctx.completion_key()
        await asyncio.Event().wait()

    session = await begun(app, ScriptedModel(call("where_am_i"), say("ok")), WHERE, here)
    item = await waiting_call(session)
    rt = ref_of(session).runtime
    other = await rt.session("other", agent="a")
    await other.send("go")
    theirs = await waiting_call(other)
    strange = ["", "x", "a.b.c", f"{item.id}0", item.id.rsplit(".", 1)[0], theirs.id, "x" * 5000]
    for wrong in [*strange, cast("str", None), cast("str", []), cast("str", {})]:
        with pytest.raises(Error) as caught:
            await session.post_result(wrong, {"lat": 1})
        assert refusal(caught.value) is Code.TOOL_CALL_UNKNOWN
        with pytest.raises(Error) as caught:
            await session.answer(wrong, {}, by="ann")
        assert refusal(caught.value) is Code.TOOL_CALL_UNKNOWN
    with pytest.raises(Error) as caught:
        await session.answer(item.id, {"x": "y"}, by="ann")
    assert refusal(caught.value) is Code.TOOL_CALL_UNKNOWN
    assert await session.post_result(item.id, {"lat": 1}) == Accepted()
    assert await other.post_result(theirs.id, {"lat": 2}) == Accepted()


async def test_local_calls_run_before_client_side_calls(app: App) -> None:
    done: list[str] = []

    @tool(sequential=True)
    async def last() -> str:
        """Runs last of those that run here."""
        done.append("last")
        return "last"

    @tool
    async def first() -> str:
        """Runs here."""
        done.append("first")
        return "first"

    both = calls(call("where_am_i"), call("last"), call("where_am_i", precise=True), call("first"))
    session = await begun(app, ScriptedModel(both, say("ok")), WHERE, last, first)
    await status(session, "waiting")
    assert done == ["first", "last"]
    items = await session.pending()
    assert [item.kind for item in items] == ["client_call", "client_call"]
    marks = await ids(session)
    assert max(marks.index("<c1.1.1"), marks.index("<c1.3.1")) < marks.index("<c1.0.1")
    wrong = {items[0].id: {"lat": 1}, items[1].id: {"lat": "x"}}
    with pytest.raises(Error) as caught:
        await session.post_results(wrong)
    assert refusal(caught.value) is Code.TOOL_RESULT_INVALID
    assert len(await session.pending()) == 2
    posted = await session.post_results(
        {items[0].id: {"lat": 1}, items[1].id: Failure(code="off", message="no signal")}
    )
    assert set(posted.values()) == {Accepted()}
    await status(session, "idle")
    found = outputs(await session.messages())
    assert found == [{"lat": 1}, "last", {"error": "no signal", "code": "off"}, "first"]


async def test_a_client_that_says_nothing_in_time_is_told_to_the_model(app: App) -> None:
    quick = client_tool("look", "Look.", {"type": "object"}, timeout="100ms")
    session = await begun(app, ScriptedModel(call("look"), say("ok")), quick)
    await status(session, "idle")
    history = await session.messages()
    [output] = outputs(history)
    assert output["code"] == "tool_completion_timeout"
    [asked] = [part for message in history for part in message.parts if isinstance(part, ToolCall)]
    with pytest.raises(Error, match="the deadline has passed"):
        await session.post_result(asked.id, 1)


async def test_client_result_after_its_deadline_is_late_without_worker(app: App) -> None:
    quick = client_tool("look", "Look.", {"type": "object"}, timeout="3s")
    model = ScriptedModel(call("look"), say("ok"))
    session = await begun(app, model, quick)
    item = await waiting_call(session)
    assert item.until is not None
    elsewhere = (await app.open(model, quick, worker=False)).get_session("s")
    await ref_of(session).runtime.drain()
    while (now := await ref_of(elsewhere).runtime.store.now()) <= item.until:  # noqa: ASYNC110 - the clock is the store's
        await asyncio.sleep((item.until - now + 1) / 1000)
    with pytest.raises(Error, match="the deadline has passed"):
        await elsewhere.post_result(item.id, 1)
    await app.open(model, quick)
    await status(elsewhere, "idle")
    [output] = outputs(await elsewhere.messages())
    assert output["code"] == "tool_completion_timeout"


async def test_a_cancelled_turn_takes_no_result(app: App) -> None:
    session = await begun(app, ScriptedModel(call("where_am_i"), say("ok")), WHERE)
    item = await waiting_call(session)
    await session.cancel()
    await status(session, "idle")
    with pytest.raises(Error, match="the wait was cancelled"):
        await session.post_result(item.id, {"lat": 1})
    [output] = outputs(await session.messages())
    assert output["code"] == "tool_completion_cancelled"


async def test_a_function_may_be_the_signature_and_its_body_is_never_run(app: App) -> None:
    ran: list[str] = []

    @tool(client_side=True, timeout="1h")
    async def pick(prompt: str, limit: int = 3) -> list[str]:
        """Let the person pick files."""
        ran.append(prompt)
        return []

    definition = pick.to_definition()
    assert (definition.kind, definition.policy) == ("client_side", "client_side")

    @tool(effect="resumable")
    async def around(ctx: ToolContext) -> Json:
        """Calls the client's tool from here."""
        [child] = await ctx.tools.batch([("pick", {"prompt": "x"})])
        return child.error_code

    bad = call("pick", prompt=7)
    model = ScriptedModel(calls(bad, call("pick", prompt="photos"), call("around")), say("ok"))
    session = await begun(app, model, pick, around)
    item = await waiting_call(session)
    assert item.until is not None
    with pytest.raises(Error) as caught:
        await session.post_result(item.id, ["a", 7])
    assert refusal(caught.value) is Code.TOOL_RESULT_INVALID
    await session.post_result(item.id, ["a"])
    await status(session, "idle")
    invalid, picked, nested = outputs(await session.messages())
    assert (invalid["code"], picked, nested) == ("invalid_tool_args", ["a"], "pending_tool_not_supported_here")
    assert ran == []


async def test_a_server_can_take_over_a_session_whose_client_is_away(app: App) -> None:
    model = ScriptedModel(call("where_am_i"), say("ok"))
    session = await begun(app, model, WHERE)
    item = await waiting_call(session)
    await parked(ref_of(session).runtime, session)
    await ref_of(session).runtime.drain()
    poster = await app.open(ScriptedModel(), worker=False)
    with pytest.raises(Error) as caught:
        await poster.get_session("s").post_result(item.id, {"lat": "x"})
    assert refusal(caught.value) is Code.TOOL_RESULT_INVALID
    assert await poster.get_session("s").post_result(item.id, {"lat": 3}) == Accepted()
    other = await app.open(model, WHERE)
    there = await other.session("s", agent="a")
    await status(there, "idle")
    assert outputs(await there.messages()) == [{"lat": 3}]


@pytest.mark.parametrize(
    "option", ["probe", "retries", "in_doubt", "needs_approval", "sequential", "concurrency_group"]
)
def test_client_side_tool_refuses_worker_options(option: str) -> None:
    given: dict[str, object] = {"probe": print, "retries": 2, "in_doubt": "tell", "concurrency_group": "x"}
    with pytest.raises(Error) as caught:

        @tool(client_side=True, **{option: given.get(option, True)})  # pyright: ignore[reportArgumentType]
        async def pick() -> None:
            """Pick."""

    assert refusal(caught.value) is Code.TOOL_INVALID


# --- questions --------------------------------------------------------------------------------------------------


async def test_typed_answers_are_recorded_with_their_author(app: App) -> None:
    many: dict[str, Json] = {
        "id": "sizes",
        "question": "Sizes?",
        "kind": "choice",
        "options": ["S", "M"],
        "multiple": True,
    }
    session = await begun(app, ScriptedModel(call("ask_user", questions=[COLOUR, NAME, many]), say("ok")), ask_user)
    item = await waiting_question(session)
    assert [(one.id, one.kind, one.options) for one in item.questions] == [
        ("colour", "choice", ("red", "blue")),
        ("name", "text", ()),
        ("sizes", "choice", ("S", "M")),
    ]
    good: dict[str, str | list[str]] = {"colour": "red", "name": "Elsa", "sizes": ["M"]}
    wrong: list[object] = [
        {},
        {**good, "colour": "green"},
        {**good, "colour": ["red"]},
        {**good, "name": "  "},
        {**good, "name": 7},
        {**good, "sizes": "M"},
        {**good, "sizes": ["M", "M"]},
        {**good, "sizes": ["XL"]},
        {**good, "more": "x"},
        {"colour": "red"},
        ["red"],
        {**good, "name": "x" * 20_000},
    ]
    for one in wrong:
        with pytest.raises(Error) as caught:
            await session.answer(item.id, one, by="ann")  # pyright: ignore[reportArgumentType] - whatever people say
        assert refusal(caught.value) is Code.ANSWER_INVALID
    with pytest.raises(Error, match="an answer needs a name"):
        await session.answer(item.id, good, by=" ")
    with pytest.raises(Error) as caught:
        await session.post_result(item.id, {"answers": {}})
    assert refusal(caught.value) is Code.TOOL_CALL_UNKNOWN
    assert [one.id for one in await session.pending()] == [item.id]
    before = ref_of(session).runtime.clock.wall_ms()
    assert await session.answer(item.id, good, by="ann", via="slack") == Accepted()
    assert isinstance(await session.answer(item.id, good, by="bob"), AlreadyResolved)
    with pytest.raises(Error) as caught:
        await session.answer(item.id, {**good, "name": "Olaf"}, by="bob")
    assert refusal(caught.value) is Code.TOOL_CALL_ANSWERED
    await status(session, "idle")
    [output] = outputs(await session.messages())
    answers = output["answers"]
    assert {id: one["value"] for id, one in answers.items()} == good
    assert {(one["answered_by"], one["by"], one["via"]) for one in answers.values()} == {("person", "ann", "slack")}
    assert all(before <= one["at"] <= ref_of(session).runtime.clock.wall_ms() for one in answers.values())


async def test_silence_answers_choices_that_have_a_default_and_nothing_else(app: App) -> None:
    quick = asking(timeout="100ms")
    model = ScriptedModel(call("ask_user", questions=[COLOUR, NAME]), call("ask_user", questions=[NAME]), say("ok"))
    session = await begun(app, model, quick)
    await status(session, "idle")
    defaulted, failed = outputs(await session.messages())
    assert defaulted == {
        "answers": {
            "colour": {"value": "blue", "answered_by": "default"},
            "name": {"value": None, "answered_by": "nobody"},
        }
    }
    assert failed["code"] == "tool_completion_timeout"


async def test_invalid_questions_are_returned_to_the_model(app: App) -> None:
    wrong: list[list[Json]] = [
        [NAME, NAME],
        [{**COLOUR, "options": ["red"]}],
        [{**COLOUR, "default": "green"}],
        [{**NAME, "default": "x"}],
        [],
        [{"id": "x"}],
    ]
    model = ScriptedModel(calls(*(call("ask_user", questions=one) for one in wrong)), say("ok"))
    session = await begun(app, model, ask_user)
    await status(session, "idle")
    found = [output["code"] for output in outputs(await session.messages())]
    assert found == ["invalid_tool_args"] * 6


async def test_sixty_four_people_answer_and_the_first_counts(app: App) -> None:
    session = await begun(app, ScriptedModel(call("ask_user", questions=[NAME]), say("ok")), ask_user)
    item = await waiting_question(session)

    async def say_it(n: int) -> str:
        try:
            await session.answer(item.id, {"name": f"name-{n}"}, by=f"p{n}")
        except Error as problem:
            return problem.code
        return f"name-{n}"

    said = await asyncio.gather(*(say_it(n) for n in range(64)))
    await status(session, "idle")
    [output] = outputs(await session.messages())
    assert said.count(Code.TOOL_CALL_ANSWERED) == 63
    assert output["answers"]["name"]["value"] in said


async def test_events_tell_a_client_what_to_do(app: App) -> None:
    rt = await app.open(ScriptedModel(call("where_am_i"), say("ok")), WHERE)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    async for event in sent.events():
        match event:
            case RecordEvent(record=EffectStarted(command=AwaitEvent(about=about))) if about is not None:
                await session.post_result(about.call_id, {"lat": 4})
            case _:
                pass
    assert outputs(await session.messages()) == [{"lat": 4}]


async def test_waking_one_costs_the_same_however_many_are_parked(app: App) -> None:
    calm = RuntimeOptions(idle_timeout_s=0.0, lease_s=600)  # no lease is renewed meanwhile
    rt = await app.open(ScriptedModel(call("where_am_i"), say("ok")), WHERE, tuning=calm)

    async def park(first: int, last: int) -> None:
        for n in range(first, last):
            await (await rt.session(f"s{n}", agent="a")).send("go")
        for n in range(first, last):
            await parked(rt, rt.get_session(f"s{n}"))

    async def wake(n: int) -> tuple[int, int]:
        session = rt.get_session(f"s{n}")
        [item] = await session.pending()
        plans, commits = core_of(rt).store.counters.plans, core_of(rt).store.counters.commits
        await session.post_result(item.id, {"lat": n})
        await status(session, "idle")
        return core_of(rt).store.counters.plans - plans, core_of(rt).store.counters.commits - commits

    await park(0, 5)
    few = [await wake(n) for n in range(5)]
    await park(5, 80)
    many = [await wake(n) for n in range(20, 25)]
    for plans, commits in few + many:  # the answer is told, the model is asked, the turn ends; a batch more or less
        assert plans <= 5
        assert commits <= 8


async def test_results_are_refused_together_after_a_concurrent_result(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = client_tool("look", "Look.", {"type": "object"})
    session = await begun(app, ScriptedModel(calls(call("look"), call("look"), call("look")), say("ok")), look)

    async def all_asked() -> bool:
        return len(await session.pending()) == 3

    await until(all_asked)
    first, second, third = sorted(item.id for item in await session.pending())
    together = answers.resolve_all

    async def somebody_is_quicker(
        rt: RuntimeCore, stream: StreamId, given: Sequence[tuple[EventKey, Resolution, int | None]], *, audit: Audit
    ) -> dict[PromiseId, Resolution]:
        monkeypatch.setattr(answers, "resolve_all", together)
        await session.post_result(second, "theirs")
        return await together(rt, stream, given, audit=audit)

    monkeypatch.setattr(answers, "resolve_all", somebody_is_quicker)
    with pytest.raises(Error) as caught:
        await session.post_results({first: "a", second: "b", third: "c"})
    assert refusal(caught.value) is Code.TOOL_CALL_ANSWERED
    assert caught.value.details["call"] == second
    assert sorted(item.id for item in await session.pending()) == [first, third], "nothing of it was taken"
    posted = await session.post_results({first: "a", second: "theirs", third: "c"})
    assert posted == {first: Accepted(), second: AlreadyResolved(Ok(value="theirs")), third: Accepted()}
    await status(session, "idle")
    assert outputs(await session.messages()) == ["a", "theirs", "c"]


async def test_s2_results_reach_a_session_of_the_named_tenant(app: App) -> None:
    session = await begun(app, ScriptedModel(call("where_am_i"), say("There.")), WHERE)
    item = await waiting_call(session)
    async with Runtime(app.new_store(), worker=False, tenant="other") as host:
        with pytest.raises(Error) as caught:
            await host.get_session("s").post_result(item.id, {"lat": 1})
        assert caught.value.code is Code.TOOL_CALL_UNKNOWN
        named = host.get_session("s", tenant="default")
        assert await named.post_result(item.id, {"lat": 1}, by="host") == Accepted()
    await status(session, "idle")
    assert outputs(await session.messages()) == [{"lat": 1}]
