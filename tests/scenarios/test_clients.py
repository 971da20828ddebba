"""Clients of the tool context, on every store: sessions, other tools, attachments, its model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

import pytest

from perdure import Agent, Code, Error, Runtime, RuntimeOptions, ToolContext, ToolError, WorkerOptions, tool
from perdure.codec import Json
from perdure.commit.changes import Intervention
from perdure.compat.seeds import SeedToolContext
from perdure.models.scripted import ScriptedModel, call, fail, say
from perdure.observe.events import ToolOutputDelta, ToolProgress
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.sessions.results import wait_for
from perdure.store.protocol import Store
from perdure.store.shapes import Intervened
from perdure.testing.gated_store import AppendGate
from perdure.tools.clients.completions import DirectRequest
from perdure.tools.clients.dispatch import ChildCall
from perdure.tools.clients.progress import SandboxMessage
from perdure.tools.context import completions_of, dispatch_of, origin_of
from perdure.tools.decorator import AnyTool
from perdure.tools.execution_result import ToolResult
from perdure.vocab.log_keys import gate_key
from perdure.vocab.messages import AttachmentRef, Text, ToolResultPart
from perdure.vocab.outcomes import DirectOutcome
from perdure.vocab.records import AttachmentStored, EffectSettled, ToolMembershipChanged
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import App, NewStore, until

pytestmark = pytest.mark.any_store

Body = Callable[[ToolContext], Awaitable[Json]]


def doing(body: Body, effect: str = "idempotent") -> AnyTool:
    """A tool `do` with this body."""

    @tool(effect=effect)  # pyright: ignore[reportArgumentType] - one of the classes
    async def do(ctx: ToolContext) -> Json:
        """Do it."""
        return await body(ctx)

    return do


@tool(effect="pure")
async def double(n: int) -> int:
    """Double."""
    return n * 2


@tool(effect="pure", sequential=True)
async def log(ctx: ToolContext, n: int) -> str:
    """Serial."""
    return ctx.call_id.rsplit(":", 3)[-3]


@tool
async def pay(n: int) -> int:
    """Once."""
    raise AssertionError("it must not run")


async def done(app: App, body: Body, *others: AnyTool, text: str = "go") -> tuple[Runtime, Json]:
    """Let a tool do something in session `s`, and say what the model was told of it."""
    model = ScriptedModel.by_input({text: [call("do"), say("ok")]}, default=[say("hello", exact=True)])
    rt = await app.open(model, doing(body), *others)
    session = await rt.session("s", agent="a")
    await session.ask(text, timeout=20)
    history = await session.messages()
    return rt, next(part.output for message in history for part in message.parts if isinstance(part, ToolResultPart))


# --- sessions ------------------------------------------------------------------------------------------------------


async def test_a_tool_reads_its_own_session_and_another(app: App) -> None:
    async def body(ctx: ToolContext) -> Json:
        now, other = await ctx.sessions.snapshot_current(), await ctx.sessions.snapshot("other")
        assert isinstance(other.messages[0].parts[0], Text)
        return {
            "model": ctx.sessions.model().name,
            "mine": [now.session_id, now.agent, now.turns, now.open_turn == ctx.turn_id, len(now.messages)],
            "other": [other.turns, other.open_turn, other.messages[0].parts[0].text, other.usage.calls],
        }

    model = ScriptedModel.by_input({"go": [call("do"), say("ok")]}, default=[say("hello", exact=True)])
    rt = await app.open(model, doing(body))
    await (await rt.session("other", agent="a")).ask("hi")
    session = await rt.session("s", agent="a")
    await session.ask("go")
    [told] = [p.output for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)]
    assert told == {
        "model": "scripted",
        "mine": ["s", "a", 1, True, 3],
        "other": [1, None, "hi", 1],
    }


async def test_a_tool_opens_a_session_starts_a_turn_and_reads_its_end(app: App) -> None:
    async def body(ctx: ToolContext) -> Json:
        name = await ctx.sessions.create_session()
        named = await ctx.sessions.create_session("helper", agent="a")
        started = await ctx.sessions.start_turn(name, "k", "hi")
        again = await ctx.sessions.start_turn(name, "k", "hi")
        assert (again.turn_id, again.duplicate, started.duplicate) == (started.turn_id, True, False)
        return [name, named, await ctx.sessions.turn_result(started, timeout=10)]

    rt, [name, named, text] = await done(app, body)
    assert text == "hello"
    assert named == "helper"
    assert {info.id for info in await rt.list_sessions()} == {"s", name, "helper"}
    assert [message.role for message in await rt.get_session(name).messages()] == ["user", "assistant"]


async def test_an_attempt_that_runs_again_opens_no_second_session(app: App) -> None:
    names: list[str] = []

    @tool(effect="idempotent", retries=1)
    async def do(ctx: ToolContext) -> str:
        """Do it, at the second try."""
        names.append(await ctx.sessions.create_session())
        if ctx.attempt == 1:
            raise ToolError("not yet")
        return names[-1]

    rt = await app.open(ScriptedModel(call("do"), say("ok")), do)
    await (await rt.session("s", agent="a")).ask("go")
    assert len(names) == 2
    assert len(set(names)) == 1
    assert len(await rt.list_sessions()) == 2


async def test_a_tool_closes_another_session_by_stopping_what_runs_there(app: App) -> None:
    reached = asyncio.Event()

    @tool(effect="pure")
    async def hang() -> None:
        """Hang."""
        reached.set()
        await asyncio.Event().wait()

    async def body(ctx: ToolContext) -> Json:
        return [await ctx.sessions.close_session("busy"), await ctx.sessions.close_session("idle")]

    model = ScriptedModel.by_input(
        {"go": [call("do"), say("ok")], "hang": [call("hang"), say("never")]}, default=[say("hello")]
    )
    rt = await app.open(model, doing(body), hang)
    await (await rt.session("idle", agent="a")).ask("hi")
    busy = await rt.session("busy", agent="a")
    running, waiting = await busy.send("hang"), await busy.send("hi")
    await reached.wait()
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=20)
    [told] = [p.output for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)]
    assert told == [True, False]
    assert [(await sent.result(10)).reason for sent in (running, waiting)] == ["cancelled", "cancelled"]


class _Leisurely:
    """A store that tells of an intervention when everything that follows from it has happened."""

    def __init__(self, store: Store, followed: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._followed = followed

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    async def intervene(self, intervention: Intervention) -> Intervened:
        done = await self._store.intervene(intervention)
        await self._followed()
        return done


async def test_tool_closes_a_session_before_its_turn_is_durable(new_store: NewStore) -> None:
    reached, ran = asyncio.Event(), list[str]()

    @tool(effect="pure")
    async def hang() -> None:
        """Hang."""
        reached.set()
        await asyncio.Event().wait()

    @tool(effect="pure")
    def note() -> None:
        """Run what was closed."""
        ran.append("note")

    async def body(ctx: ToolContext) -> Json:
        return await ctx.sessions.close_session("busy")

    async def idle() -> bool:
        return (await busy.why()).status == "idle" and not await busy.queued_inputs()

    async def followed() -> None:
        gate.release()
        if await ref_of(busy).runtime.store.find(
            ref_of(busy).stream, gate_key(sent[0].turn_id)
        ):  # else it hangs, and goes on hanging
            await until(idle)

    scripts = {"go": [call("do"), say("ok")], "hang": [call("hang"), say("never")], "next": [call("note"), say("no")]}
    agent = Agent("a", model=ScriptedModel.by_input(scripts), tools=[doing(body), hang, note])
    gate = AppendGate(lambda what: "turn_opened" in what)
    leisurely = cast(Store, _Leisurely(new_store(), followed))
    async with (
        Runtime(gate.guard(new_store()), agents=[agent], worker=WorkerOptions(queues=["slow"])) as slow,
        Runtime(leisurely, agents=[agent], worker=WorkerOptions(queues=["default"])) as rt,
    ):
        busy = await slow.session("busy", agent="a", queue="slow")
        sent = [await busy.send(text) for text in ("hang", "next", "next")]
        await reached.wait()
        session = await rt.session("s", agent="a")
        await session.ask("go", timeout=20)
        [told] = [p.output for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)]
        assert told is True
        assert [(await one.result(10)).reason for one in sent] == ["cancelled"] * 3
        assert ran == []


REFUSED: list[tuple[str, Callable[[ToolContext], Awaitable[object]], str]] = [
    ("an unknown session", lambda ctx: ctx.sessions.snapshot("nobody"), "session_unknown"),
    ("a session without a name", lambda ctx: ctx.sessions.snapshot(" "), "invalid_id"),
    ("an agent that is not there", lambda ctx: ctx.sessions.create_session("x", agent="b"), "agent_unknown"),
    ("a turn of an unknown session", lambda ctx: ctx.sessions.start_turn("nobody", "k", "hi"), "session_unknown"),
    ("an empty input", lambda ctx: ctx.sessions.start_turn("s", "k", " "), "invalid_argument"),
    ("closing itself", lambda ctx: ctx.sessions.close_session("s"), "session_is_own"),
    ("an unknown tool", lambda ctx: ctx.sessions.set_tool_membership(["do", "fly"], False), "tool_unavailable"),
    ("bytes of no type", lambda ctx: ctx.attachments.put(b"x", "text/odd"), "runtime_effect_attachment_media_type"),
    ("no bytes", lambda ctx: ctx.attachments.put(b"", "text/csv"), "runtime_effect_attachment_missing_reference"),
    (
        "too many bytes",
        lambda ctx: ctx.attachments.put(bytes(16_777_217), "text/csv"),
        "runtime_effect_attachment_store",
    ),
    ("a completion on nobody's account", lambda ctx: completions_of(ctx).complete("hi", " "), "invalid_argument"),
    (
        "a completion of nothing",
        lambda ctx: completions_of(ctx).complete(DirectRequest(()), "x"),
        "invalid_argument",
    ),
]


@pytest.mark.parametrize(("what", "ask", "code"), REFUSED, ids=[what for what, _, _ in REFUSED])
async def test_refused_client_operation_is_returned_to_the_model(
    app: App, what: str, ask: Callable[[ToolContext], Awaitable[object]], code: str
) -> None:
    async def body(ctx: ToolContext) -> Json:
        await ask(ctx)
        return "done"

    rt, told = await done(app, body)
    assert told["code"] == code
    assert await (await rt.session("s")).ask("still there?") == "hello"


async def test_a_turn_of_the_same_session_is_queued_and_cannot_be_awaited(app: App) -> None:
    async def body(ctx: ToolContext) -> Json:
        started = await ctx.sessions.start_turn("s", "next", "and then?")
        with pytest.raises(ToolError, match="cannot be awaited"):
            await ctx.sessions.turn_result(started)
        return started.turn_id

    rt, turn = await done(app, body)
    session = await rt.session("s")
    assert (await wait_for(ref_of(session), turn)).text == "hello"


# --- which tools there are -----------------------------------------------------------------------------------------


async def test_removed_tool_is_missing_from_the_next_turn_on(new_store: NewStore) -> None:
    generations: list[int] = []

    @tool(effect="idempotent")
    async def change(ctx: ToolContext, names: list[str], present: bool) -> Json:
        """Change the tools."""
        generations.append(await ctx.sessions.set_tool_membership(names, present))
        return [one["name"] for one in await ctx.sessions.tool_catalog()]

    def agent() -> tuple[Agent, ScriptedModel]:
        steps = {
            "out": [call("change", names=["double", "log", "double"], present=False), call("double", n=2), say("ok")],
            "again": [call("change", names=["log"], present=False), call("double", n=2), say("ok")],
            "back": [call("change", names=["double"], present=True), say("ok")],
        }
        model = ScriptedModel.by_input(steps, default=[call("double", n=4), say("ok")])
        return Agent("a", model=model, tools=[change, double, log]), model

    def shown(model: ScriptedModel) -> list[list[str]]:
        return [[one.name for one in request.tools] for request in model.requests]

    everything = ["change", "double", "log"]
    first, model = agent()
    async with Runtime(new_store(), agents=[first]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("out")
        assert shown(model) == [everything] * 3, "the turn goes on with what it began with"
        await session.ask("again")
        assert shown(model)[3:] == [["change"]] * 3
    second, model = agent()
    async with Runtime(new_store(), agents=[second]) as rt:
        session = await rt.session("s")
        await session.ask("back")
        assert shown(model) == [["change"]] * 2
        await session.ask("and now?")
        assert shown(model)[2:] == [["change", "double"]] * 2
        outputs = [p.output for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)]
        changes = [row.record for row in await session.journal() if isinstance(row.record, ToolMembershipChanged)]
    assert generations == [1, 1, 2], "an update without change is no new generation"
    assert [(one.names, one.present) for one in changes] == [(("double", "log"), False), (("double",), True)]
    assert outputs[0] == everything
    assert outputs[1] == 4
    assert outputs[3]["code"] == "tool_unavailable"
    assert outputs[-1] == 8


async def test_the_tools_of_another_session_are_those_of_its_next_turn(app: App) -> None:
    async def body(ctx: ToolContext) -> Json:
        if ctx.session_id == "s":
            await ctx.sessions.set_tool_membership(["double"], False)
        other = await ctx.sessions.shared_tool_catalog("s")
        return [one.name for one in other]

    rt, told = await done(app, body, double)
    assert told == ["do", "double"], "the running turn keeps its tools"
    watcher = await rt.session("t", agent="a")
    await watcher.ask("go")
    [seen] = [p.output for m in await watcher.messages() for p in m.parts if isinstance(p, ToolResultPart)]
    assert seen == ["do"]


# --- other tools ---------------------------------------------------------------------------------------------------


async def test_children_answer_in_source_order_and_what_cannot_run_is_answered_too(app: App) -> None:
    async def body(ctx: ToolContext) -> Json:
        manifest = dispatch_of(ctx).callable_tool_manifest("double")
        assert manifest is not None
        assert dispatch_of(ctx).callable_tool_manifest_by_id("tool:double") == manifest
        assert dispatch_of(ctx).callable_tool_manifest("fly") is None
        results = await ctx.tools.batch(
            [
                ChildCall("double", {"n": 1}),
                ChildCall("log", {"n": 0}, "tail"),
                ChildCall("fly"),
                ChildCall("pay", {"n": 1}),
                ChildCall("double", {"n": "much"}),
                ChildCall("double", {"n": 4}, "four"),
            ]
        )
        return [[one.call_id, one.tool_name, one.value, one.error_code] for one in results]

    _, told = await done(app, body, double, log, pay)
    assert told == [
        ["0", "double", 2, None],
        ["tail", "log", "child", None],
        ["2", "fly", None, "tool_unavailable"],
        ["3", "pay", None, "nested_effect_not_recorded"],
        ["4", "double", None, "invalid_tool_args"],
        ["four", "double", 8, None],
    ]


async def test_a_child_knows_its_parent_and_has_no_children(app: App) -> None:
    seen: list[ToolContext] = []

    @tool(effect="pure")
    async def child(ctx: ToolContext) -> str:
        """A child."""
        seen.append(ctx)
        return dispatch_of(ctx).__class__.__name__

    async def body(ctx: ToolContext) -> Json:
        seen.append(ctx)
        [result] = await ctx.tools.batch([ChildCall("child", {}, "one")])
        return result.error_code

    _, told = await done(app, body, child)
    assert told == "service_unavailable"
    parent, one = seen
    origin = origin_of(one)
    assert origin.parent_call_id == parent.call_id
    assert one.call_id == f"{parent.call_id}:batch:1:child:0:one"
    assert one.idempotency_key != parent.idempotency_key
    assert origin.parent_invocation is not None
    assert origin.parent_invocation.effect_kind == "tool_batch"


async def test_twenty_six_children_are_too_many_and_none_runs(app: App) -> None:
    async def body(ctx: ToolContext) -> Json:
        results = await ctx.tools.batch([("double", {"n": n}) for n in range(26)])
        return [one.error_code for one in results]

    _, told = await done(app, body, double)
    assert told == ["tool_batch_too_large"] * 26


# --- bytes ---------------------------------------------------------------------------------------------------------


async def test_bytes_are_kept_with_the_outcome_and_only_their_session_reads_them(app: App) -> None:
    kept: list[AttachmentRef] = []

    async def body(ctx: ToolContext) -> Json:
        if kept:
            try:
                return (await ctx.attachments.get(kept[0])).decode()
            except ToolError as problem:
                return problem.code
        kept.append(await ctx.attachments.put(b"a,b", "text/csv", name="t.csv"))
        return (await ctx.attachments.get(kept[0])).decode()

    rt, told = await done(app, body)
    assert told == "a,b", "before it is durable"
    [ref] = kept
    assert (ref.media_type, ref.size, ref.name) == ("text/csv", 3, "t.csv")
    assert (await core_of(rt).store.blob(ref.hash)).data == b"a,b"
    again: list[Json] = []
    for name in ("s", "t"):
        session = await rt.session(name, agent="a")
        await session.ask("go")
        again += [p.output for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)][-1:]
    assert again == ["a,b", "attachment_not_found"]


# --- the model -----------------------------------------------------------------------------------------------------


async def test_a_direct_completion_is_outside_the_conversation_and_counts_for_the_turn(app: App) -> None:
    async def body(ctx: ToolContext) -> Json:
        reply = await completions_of(ctx).complete(DirectRequest("sum up", "Be brief."), "summary")
        return reply.text

    spent = Usage(input=100, output=10, calls=1)
    model = ScriptedModel.by_input(
        {"go": [call("do"), say("ok", usage=Usage(calls=1))], "sum up": [say("short", exact=True, usage=spent)]}
    )
    rt = await app.open(model, doing(body))
    session = await rt.session("s", agent="a")
    result = await (await session.send("go")).result(20)
    history = await session.messages()
    assert [p.output for m in history for p in m.parts if isinstance(p, ToolResultPart)] == ["short"]
    direct = model.requests[1]
    assert (direct.instructions, direct.tools, len(direct.messages)) == ("Be brief.", (), 1)
    assert result.usage.calls == 3
    outcomes = [row.record.outcome for row in await session.journal() if isinstance(row.record, EffectSettled)]
    bought = DirectOutcome(source="summary", model="scripted", spent=spent)
    assert [one for one in outcomes if isinstance(one, DirectOutcome)] == [bought]
    assert result.usage.input >= 100


async def test_failed_direct_completion_fails_the_tool_call(app: App) -> None:
    async def body(ctx: ToolContext) -> Json:
        return await ctx.complete("sum up", source="summary")

    model = ScriptedModel.by_input({"go": [call("do"), say("ok")], "sum up": [fail(401, message="no key"), say("x")]})
    rt = await app.open(model, doing(body))
    session = await rt.session("s", agent="a")
    await session.ask("go")
    [told] = [p.output for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)]
    assert told["code"] == "direct_completion_failed"
    assert "no key" in told["error"]


# --- the rest ------------------------------------------------------------------------------------------------------


async def test_progress_reaches_observers_by_its_kind(app: App) -> None:
    watched = asyncio.Event()

    async def body(ctx: ToolContext) -> Json:
        await watched.wait()
        SeedToolContext(ctx).progress(SandboxMessage("half way"))
        SeedToolContext(ctx).progress(SandboxMessage("line 1", "stdout"))
        return 1

    model = ScriptedModel(call("do"), say("ok"))
    rt = await app.open(model, doing(body))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    live: list[ToolProgress | ToolOutputDelta] = []
    async for event in sent.events():
        watched.set()
        if isinstance(event, ToolProgress | ToolOutputDelta):
            live.append(event)
    assert [event.message if isinstance(event, ToolProgress) else event.text for event in live] == [
        "half way",
        "line 1",
    ]


WRONG_ARGUMENTS: list[Callable[[ToolContext], Awaitable[object]]] = [
    lambda ctx: ctx.tools.batch([5]),  # type: ignore[list-item]
    lambda ctx: ctx.tools.batch(5),  # type: ignore[arg-type]
    lambda ctx: ctx.tools.batch([ChildCall(name=5)]),  # type: ignore[arg-type]
    lambda ctx: ctx.tools.batch([ChildCall("double", call_id=5)]),  # type: ignore[arg-type]
    lambda ctx: ctx.attachments.put("x", "text/plain"),  # type: ignore[arg-type]
    lambda ctx: ctx.attachments.put(5, "text/plain"),  # type: ignore[arg-type]
    lambda ctx: ctx.attachments.put(b"x", ["text/plain"]),  # type: ignore[arg-type]
    lambda ctx: ctx.attachments.put(b"x", "text/plain", name=5),  # type: ignore[arg-type]
    lambda ctx: ctx.attachments.get("x"),  # type: ignore[arg-type]
    lambda ctx: completions_of(ctx).complete(5, "me"),  # type: ignore[arg-type]
    lambda ctx: completions_of(ctx).complete("hi", 5),  # type: ignore[arg-type]
    lambda ctx: completions_of(ctx).complete(DirectRequest(5), "me"),  # type: ignore[arg-type]
    lambda ctx: completions_of(ctx).complete(DirectRequest(["hi"]), "me"),  # type: ignore[list-item]
    lambda ctx: completions_of(ctx).complete(DirectRequest("hi", instructions=5), "me"),  # type: ignore[arg-type]
    lambda ctx: completions_of(ctx).complete(DirectRequest("hi", key=5), "me"),  # type: ignore[arg-type]
    lambda ctx: ctx.sessions.turn_result(5),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("wrong", WRONG_ARGUMENTS)
async def test_an_argument_that_is_something_else_is_refused_in_words(
    app: App, wrong: Callable[[ToolContext], Awaitable[object]]
) -> None:
    async def body(ctx: ToolContext) -> Json:
        with pytest.raises(ToolError) as caught:
            await wrong(ctx)
        return [caught.value.code, caught.value.message]

    _, told = await done(app, body, double)
    assert told[0] == "invalid_argument"
    assert "must be" in told[1] or "batch" in told[1].lower()


@pytest.mark.parametrize("raw", [5, b"bytes", object(), "\ud800", "text"])
@pytest.mark.parametrize("value", [7, {"n": 7}])
async def test_raw_output_of_any_value_keeps_the_call_successful(app: App, value: Json, raw: object) -> None:
    async def body(ctx: ToolContext) -> Json:
        return ToolResult.success_with_raw_output(value, raw)  # type: ignore[arg-type]

    _, told = await done(app, body)
    assert told == value


async def test_process_events_are_missing_outside_a_process(app: App) -> None:
    async def body(ctx: ToolContext) -> Json:
        return (await SeedToolContext(ctx).process_events.emit("x", {})).sequence

    _, told = await done(app, body)
    assert told["code"] == "service_unavailable"
    assert "Process events" in told["error"]


# --- bytes that a call keeps


@tool(name="store")
async def store_bytes(ctx: ToolContext) -> Json:
    """Keep something."""
    ref = await ctx.attachments.put(b"top secret", "text/plain", name="n.txt")
    return {"hash": ref.hash, "media_type": ref.media_type, "size": ref.size}


@tool(name="store", effect="resumable")
async def store_in_a_step(ctx: ToolContext) -> Json:
    """Keep something, and wait."""

    async def keep() -> Json:
        ref = await ctx.attachments.put(b"top secret", "text/plain")
        return {"hash": ref.hash, "media_type": ref.media_type, "size": ref.size}

    kept = await ctx.step("keep", keep)
    await ctx.sleep("a little", 0.01)
    return kept


@pytest.mark.parametrize("one", [store_bytes, store_in_a_step])
async def test_stored_attachment_is_deleted_by_redacting_its_record(app: App, one: AnyTool) -> None:
    rt = await app.open(ScriptedModel(call("store"), say("kept")), one, tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="a")
    await session.ask("go")
    [kept] = [row for row in await session.journal() if isinstance(row.record, AttachmentStored)]
    assert isinstance(kept.record, AttachmentStored)
    assert kept.record.ref is not None
    hash = kept.record.ref.hash
    assert (await core_of(rt).store.blob(hash, stream=ref_of(session).stream)).data == b"top secret"
    await session.redact(kept.seq)
    with pytest.raises(Error) as gone:
        await core_of(rt).store.blob(hash, stream=ref_of(session).stream)
    assert gone.value.code is Code.BLOB_UNKNOWN


async def test_bytes_that_a_call_keeps_are_exported_and_imported(app: App) -> None:
    rt = await app.open(ScriptedModel(call("store"), say("kept")), store_bytes)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    [ref] = [row.record.ref for row in await session.journal() if isinstance(row.record, AttachmentStored)]
    assert ref is not None
    copy = await rt.import_session("copy", await session.export())
    assert (await core_of(rt).store.blob(ref.hash, stream=ref_of(copy).stream)).data == b"top secret"


async def test_model_receives_no_removed_tools(app: App) -> None:
    @tool
    async def off(ctx: ToolContext) -> int:
        """Take a tool away."""
        return await ctx.sessions.set_tool_membership(["admin"], False)

    @tool
    async def admin() -> str:
        """What not everybody may do."""
        return "done"

    model = ScriptedModel.by_input({"take it away": [call("off"), say("done")]}, default=[call("admin"), say("done")])
    rt = await app.open(model, off, admin)
    session = await rt.session("s", agent="a")
    await session.ask("take it away")
    await session.ask("use it")
    told = [
        part.output
        for message in await session.messages()
        for part in message.parts
        if isinstance(part, ToolResultPart)
    ]
    assert "The tools are: off" in str(told[-1])
    assert "admin" not in str(told[-1]).partition("The tools are:")[2]


@pytest.mark.parametrize("timeout", ["soon", True, [1]])
async def test_a_timeout_that_is_none_is_refused_before_anything_is_sent(app: App, timeout: object) -> None:
    rt = await app.open(ScriptedModel(say("hello")))
    session = await rt.session("s", agent="a")
    with pytest.raises(Error) as refused:
        await session.ask("hi", timeout=timeout)  # type: ignore[arg-type]
    assert refused.value.code is Code.INVALID_ARGUMENT
    assert await rt.list_sessions() == ()
    assert (await session.ask("hi", timeout="30s")).startswith("hello")
