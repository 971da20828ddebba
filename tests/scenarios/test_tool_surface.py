"""Results, progress and requests of tools: through the one loop, on every store."""

from __future__ import annotations

import asyncio
import logging
import threading
from base64 import b64encode
from collections.abc import AsyncIterator

import pytest

from perdure import Agent, Runtime, ToolContext, ToolError, tool
from perdure.codec import Json, encode
from perdure.compat.seeds import SeedToolContext, with_, with_services
from perdure.events import DeltasDropped, Event, RecordEvent
from perdure.ids import CallId
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest, ProviderCall
from perdure.models.scripted import ScriptedModel, Step, call, calls, say
from perdure.observe.events import ToolOutputDelta, ToolProgress
from perdure.observe.live import MAX_WAITING
from perdure.runtime.internals import core_of, ref_of
from perdure.testing.gated_store import AppendGate
from perdure.tools.builtin import EchoTool, FailingTool
from perdure.tools.execution_result import Image, ToolResult
from perdure.tools.objects import BaseTool
from perdure.tools.registry import ToolRegistry
from perdure.tools.result_truncation import MAX_KEPT_BYTES, MAX_SHOWN_BYTES
from perdure.vocab.messages import ImagePart, Message, Part, Text, ToolResultPart
from perdure.vocab.outcomes import Success, into_tool_call
from perdure.vocab.records import EffectSettled
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import App, NewStore, until

pytestmark = pytest.mark.any_store

PIXEL = b"\x89PNG\r\n\x1a\n-not-really"


def results(messages: tuple[Message, ...]) -> list[ToolResultPart]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolResultPart)]


def tool_parts(messages: tuple[Message, ...]) -> list[Part]:
    return [part for message in messages if message.role == "tool" for part in message.parts]


async def test_d12_raw_output_of_a_function_tool_is_not_shown(app: App) -> None:
    @tool(effect="idempotent")
    def plain() -> dict[str, Json]:
        """Return an object with a raw output."""
        return {"_raw_output": "RAW BYTES", "a": 1}

    @tool(effect="idempotent")
    def scalar() -> dict[str, Json]:
        """Return a scalar with a raw output."""
        return {"_raw_output": "RAW BYTES", "_raw_output_scalar": 7}

    @tool(effect="idempotent")
    def own() -> dict[str, Json]:
        """Return keys that are not ours."""
        return {"_raw_output_scalar": 7, "raw_output": "kept"}

    rt = await app.open(ScriptedModel(calls(call("plain"), call("scalar"), call("own")), say("ok")), plain, scalar, own)
    found = [part.output for part in await asked(rt)]
    assert found == [{"a": 1}, 7, {"_raw_output_scalar": 7, "raw_output": "kept"}]
    session = rt.get_session("s")
    assert "RAW BYTES" not in str([row.record for row in await session.journal()])


async def asked(rt: Runtime) -> list[ToolResultPart]:
    session = await rt.session("s", agent="a")
    await session.ask("go", timeout=10)
    return results(await session.messages())


async def outputs(rt: Runtime) -> list[Success]:
    found: list[Success] = []
    for row in await rt.get_session("s").journal():
        if isinstance(row.record, EffectSettled) and row.record.outcome.kind == "tool_call":
            output = into_tool_call(row.record.outcome).output
            assert isinstance(output, Success), output
            found.append(output)
    return found


# --- returning more than a value


async def test_each_way_to_end_reaches_the_model_as_it_should(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def works() -> ToolResult:
        """Works."""
        return ToolResult.success_with_raw_output({"lines": 2}, "one\ntwo\n")

    @tool
    def scalar() -> ToolResult:
        """Works, with a summary."""
        return ToolResult.success_with_raw_output("two lines", "one\ntwo\n")

    @tool
    def fails() -> ToolResult:
        """Fails."""
        return ToolResult.tool_error("no such order")

    @tool
    def breaks() -> ToolResult:
        """Breaks."""
        try:
            raise ConnectionError("db7.internal refused")
        except ConnectionError as cause:
            wrapped = RuntimeError("cannot load the order")
            wrapped.__cause__ = cause
            return ToolResult.internal_error(wrapped)

    @tool
    def connects() -> ToolResult:
        """Needs an account."""
        return ToolResult.connection_required("github")

    model = ScriptedModel(
        calls(call("works"), call("scalar"), call("fails"), call("breaks"), call("connects")), say("ok")
    )
    rt = await app.open(model, works, scalar, fails, breaks, connects)
    with caplog.at_level(logging.ERROR, "perdure.tools"):
        told = await asked(rt)
    assert [(one.name, one.output, one.is_error) for one in told] == [
        ("works", {"lines": 2}, False),
        ("scalar", "two lines", False),
        ("fails", {"error": "no such order", "code": "tool_error"}, True),
        (
            "breaks",
            {"error": "An internal error occurred while executing the tool", "code": "internal_error"},
            True,
        ),
        ("connects", {"connection_required": "github"}, False),
    ]
    assert "cannot load the order: db7.internal refused" in caplog.text
    rows = await rt.get_session("s").journal()
    assert all(b"db7.internal" not in row.data and b"cannot load" not in row.data for row in rows)
    assert any(b'"connection_required":"github"' in row.data for row in rows), "observers see it as well"


async def test_a_model_that_keeps_asking_for_a_connection_leads_nowhere(app: App) -> None:
    @tool(effect="pure")
    def connects() -> ToolResult:
        """Needs an account."""
        return ToolResult.connection_required("github")

    rt = await app.open(ScriptedModel(*(call("connects") for _ in range(20)), say("never")), connects)
    session = await rt.session("s", agent="a")
    ended = await (await session.send("go")).result(timeout=10)
    assert (ended.status, ended.reason) == ("stopped", "no_progress")


async def test_pictures_are_stored_once_and_stand_behind_their_result(app: App) -> None:
    picture = Image(b64encode(PIXEL).decode(), "image/png")

    @tool
    def draw() -> ToolResult:
        """Draw."""
        return ToolResult.success_with_images({"width": 1}, [picture])

    @tool
    def blank() -> ToolResult:
        """Draw nothing."""
        return ToolResult.success_with_images({"width": 0}, [])

    model = ScriptedModel(calls(call("draw"), call("blank")), say("ok"))
    rt = await app.open(model, draw, blank)
    await asked(rt)
    drawn, nothing = sorted(await outputs(rt), key=lambda output: -len(output.images))
    (ref,) = drawn.images
    assert (ref.media_type, ref.size) == ("image/png", len(PIXEL))
    assert nothing.images == ()
    stream = ref_of(rt.get_session("s")).stream
    assert (await core_of(rt).store.blob(ref.hash, stream=stream)).data == PIXEL
    parts = tool_parts(await rt.get_session("s").messages())
    assert [type(part) for part in parts] == [ToolResultPart, ImagePart, ToolResultPart]
    assert parts[1] == ImagePart(ref=ref)
    assert model.requests[-1].attachments == {ref.hash: PIXEL}, "the model sees the picture in the same turn"


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        (Image("AAAA", "image/tiff"), "'image/tiff' is not a supported image type"),
        (Image("not base64!", "image/png"), "base64"),
    ],
)
async def test_a_picture_that_is_none_does_not_look_like_a_success(app: App, image: Image, problem: str) -> None:
    @tool
    def draw() -> ToolResult:
        """Draw."""
        return ToolResult.success_with_images({}, [image])

    rt = await app.open(ScriptedModel(call("draw"), say("ok")), draw)
    (told,) = await asked(rt)
    assert told.output["code"] == "tool_result_invalid"
    assert problem in told.output["error"]
    assert "did run" in told.output["error"]


async def test_pictures_and_attachments_that_are_not_what_they_say_are_refused(app: App) -> None:
    html = b"<html>error 500</html>"

    @tool
    def draw() -> ToolResult:
        """Draw."""
        return ToolResult.success_with_images({}, [Image(b64encode(html).decode(), "image/png")])

    @tool
    async def keep(ctx: ToolContext, name: str, media_type: str) -> str:
        """Keep."""
        return (await ctx.attachments.put(html, media_type, name=name)).name

    asks = [call("keep", name="a.png", media_type="image/png"), call("keep", name="a\nb", media_type="text/html")]
    rt = await app.open(ScriptedModel(calls(call("draw"), *asks), say("ok")), draw, keep)
    told = [one.output for one in await asked(rt)]
    assert [one["code"] for one in told] == [
        "tool_result_invalid",
        "runtime_effect_attachment_media_type",
        "invalid_argument",
    ]
    assert "the bytes are not image/png" in told[0]["error"]
    assert "control character" in told[2]["error"]


# --- tools as classes, and registries


ORDER: Json = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}


class Refund(BaseTool):
    name = "refund"
    description = "Refund an order."
    parameters_schema = ORDER
    display_name = "Refund"

    def __init__(self) -> None:
        self.keys: list[str] = []

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.tool_error("refund needs its context")

    async def execute_with_context(self, arguments: dict[str, Json], context: ToolContext[object]) -> ToolResult:
        self.keys.append(context.idempotency_key)
        return ToolResult.success({"refunded": arguments["order"]})


async def test_an_agent_takes_a_registry_and_runs_class_tools_like_any_other(app: App) -> None:
    refund = Refund()
    registry = ToolRegistry([EchoTool(), refund, FailingTool.with_internal_error("hunter2")])
    agent = Agent(
        "a",
        model=ScriptedModel(
            calls(call("echo", message="hé"), call("refund", order="o7"), call("failing_tool")), say("ok")
        ),
        tools=registry,
    )
    async with Runtime(app.new_store(), agents=[agent]) as rt:
        told = await asked(rt)
        assert [one.output for one in told] == [
            {"echoed": "hé", "length": 3},
            {"refunded": "o7"},
            {"error": "An internal error occurred while executing the tool", "code": "internal_error"},
        ]
        assert len(refund.keys) == 1
        assert refund.keys[0]
        starts = [row for row in await rt.get_session("s").journal() if row.kind == "effect_started"]
        assert any(b'"once"' in row.data for row in starts), "a class tool that says nothing is once"
        assert all(b"hunter2" not in row.data for row in await rt.get_session("s").journal())


# --- what the context offers


async def test_a_tool_reads_the_conversation_the_session_and_its_siblings(app: App) -> None:
    seen: dict[str, object] = {}

    @tool(effect="pure")
    async def look(ctx: ToolContext) -> str:
        """Look around."""
        seen["first"] = await ctx.messages.get(0)
        seen["beyond"] = await ctx.messages.get(99)
        seen["last"] = await ctx.messages.list(last=1)
        found = await ctx.sessions.get(ctx.session_id).info()
        seen["session"] = found and (found.id, found.agent, found.tenant, found.title, found.tags)
        seen["nobody"] = await ctx.sessions.get("nobody").info()
        seen["tools"] = [one.name for one in ctx.tools.visible()]
        narrow = with_services(ctx, visible_tool_names=frozenset({"echo"}))
        seen["narrow"] = [one.name for one in narrow.tools.visible()]
        seen["names"] = (ctx.tenant, SeedToolContext(ctx).tool_call_id == ctx.call_id, ctx.locale)
        return "seen"

    agent = Agent("a", model=ScriptedModel(call("look"), say("ok")), tools=[look, EchoTool()], locale="uk-UA")
    async with Runtime(app.new_store(), agents=[agent]) as rt:
        assert [one.output for one in await asked(rt)] == ["seen"]
    first = seen["first"]
    assert isinstance(first, Message)
    assert first.role == "user"
    assert seen["beyond"] is None
    assert isinstance(seen["last"], tuple)
    assert seen["session"] == ("s", "a", "default", "", ())
    assert seen["nobody"] is None
    assert seen["tools"] == ["look", "echo"]
    assert seen["narrow"] == ["echo"]
    assert seen["names"] == ("default", True, "uk-UA")


async def test_a_tool_names_its_session(app: App) -> None:
    @tool(effect="idempotent")
    async def name_it(ctx: ToolContext, session: str, title: str) -> str:
        """Name a session."""
        named = await ctx.sessions.get(session).set_title(title)
        return named.title

    names = [
        call("name_it", session=session, title=title) for session, title in [("s", "Trip"), ("no", "x"), ("s", "a\nb")]
    ]
    rt = await app.open(ScriptedModel(calls(*names), say("ok")), name_it)
    told = await asked(rt)
    assert told[0].output == "Trip"
    assert [one.output["code"] for one in told[1:]] == ["session_unknown", "invalid_argument"]
    assert (await rt.get_session("s").info()).title == "Trip"
    assert (await rt.list_sessions())[0].title == "Trip"


async def test_a_service_that_is_missing_is_named_to_the_model(app: App) -> None:
    @tool(effect="pure")
    async def look(ctx: ToolContext) -> str:
        """Look."""
        bare = with_services(ctx, message_retriever=None)
        return str(await bare.messages.list())

    rt = await app.open(ScriptedModel(call("look"), say("ok")), look)
    (told,) = await asked(rt)
    assert told.output == {
        "error": "Message retriever not available in this context.",
        "code": "service_unavailable",
    }


# --- telling observers something


async def test_progress_and_output_reach_observers_before_the_end_of_the_call(app: App) -> None:
    watching = asyncio.Event()

    @tool
    async def build(ctx: ToolContext) -> str:
        """Build."""
        await watching.wait()
        ctx.progress("compiling")
        ctx.output("cc a.c\n")
        ctx.output("cc b.c\n")
        ctx.output("warning\n", "stderr")
        return "built"

    @tool
    def pack(ctx: ToolContext) -> str:
        """Pack, in a thread."""
        ctx.progress("packing")
        return "packed"

    rt = await app.open(ScriptedModel(call("build"), call("pack"), say("ok")), build, pack)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    events: list[Event] = []
    async with asyncio.timeout(10):
        async for event in sent.events():
            events.append(event)
            watching.set()
    live = [event for event in events if isinstance(event, ToolProgress | ToolOutputDelta)]
    assert [(one.tool, one.type) for one in live] == [
        ("build", "tool.progress"),
        ("build", "tool.output.delta"),
        ("build", "tool.output.delta"),
        ("pack", "tool.progress"),
    ]
    said = [one.message if isinstance(one, ToolProgress) else (one.stream, one.text) for one in live]
    assert said == ["compiling", ("stdout", "cc a.c\ncc b.c\n"), ("stderr", "warning\n"), "packing"]
    assert all(one.call.startswith(sent.turn_id) for one in live)
    settled = next(
        index
        for index, event in enumerate(events)
        if isinstance(event, RecordEvent) and isinstance(event.record, EffectSettled) and event.record.id == "c1.0.1"
    )
    assert max(events.index(one) for one in live if one.tool == "build") < settled
    assert all(b"compiling" not in row.data for row in await session.journal()), "progress is not stored"


async def test_tool_progress_is_published_after_earlier_records_commit(new_store: NewStore) -> None:
    gate = AppendGate(lambda what: "effect_settled m1.1" in what)
    goes_on, watched = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def think(ctx: ToolContext) -> str:
        """Think."""
        await watched.wait()
        ctx.progress("thinking")
        await goes_on.wait()
        return "thought"

    agent = Agent("a", model=ScriptedModel(call("think"), say("ok")), tools=[think])
    async with Runtime(gate.guard(new_store()), agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go")
        heard: list[str] = []

        async def watch() -> None:
            async for event in sent.events():
                watched.set()
                heard.append(event.type if not isinstance(event, RecordEvent) else type(event.record).__name__)

        async def told() -> bool:
            return "tool.progress" in heard

        watching = asyncio.create_task(watch())
        await gate.reached.wait()
        await watched.wait()
        await asyncio.sleep(0.2)
        assert "tool.progress" not in heard, "the reply that asked for the call is not durable"
        gate.release()
        await until(told)
        goes_on.set()
        await asyncio.wait_for(watching, 10)
        assert heard.index("tool.progress") > heard.index("EffectSettled")


@pytest.mark.holds_the_loop("the tool reports 20,000 times in one step")
@pytest.mark.parametrize("threaded", [False, True])
async def test_a_flood_slows_nothing_and_says_how_much_was_lost(app: App, threaded: bool) -> None:
    watching, watched = asyncio.Event(), threading.Event()
    many = 20_000

    def flood(ctx: ToolContext) -> str:
        for number in range(many):
            ctx.progress(f"{number}")
        return "done"

    @tool(name="flood")
    async def in_the_loop(ctx: ToolContext) -> str:
        """Flood."""
        await watching.wait()
        return flood(ctx)

    @tool(name="flood")
    def in_a_thread(ctx: ToolContext) -> str:
        """Flood."""
        assert watched.wait(20)
        return flood(ctx)

    rt = await app.open(ScriptedModel(call("flood"), say("ok")), in_a_thread if threaded else in_the_loop)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    heard, lost = 0, 0
    async with asyncio.timeout(20):
        async for event in sent.events():
            watching.set()
            watched.set()
            heard += isinstance(event, ToolProgress)
            lost += event.dropped if isinstance(event, DeltasDropped) else 0
    assert heard + lost == many
    if not threaded:
        assert heard == MAX_WAITING


async def test_failing_or_missing_emitter_does_not_fail_the_call(app: App) -> None:
    class Broken:
        def emit(self, request: object) -> object:
            raise RuntimeError("no way out")

    @tool(effect="pure")
    def talk(ctx: ToolContext) -> str:
        """Talk."""
        ctx.progress("to nobody")
        with_(ctx, event_emitter=Broken()).progress("into the void")
        with_(ctx, event_emitter=None).progress("at all")
        with_(ctx, event_context=None).output("at all")
        with_(ctx, call_id=CallId("")).output("at all")
        return "talked"

    rt = await app.open(ScriptedModel(call("talk"), say("ok")), talk)
    assert [one.output for one in await asked(rt)] == ["talked"]


# --- results that are too long


class Reader:
    """A model that calls `big` and does as the hints say, until there is no more to read."""

    name = "reader"

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        shown = results(request.messages)
        part: Text | ProviderCall = Text(text="all read")
        if not shown:
            part = ProviderCall("p0", "big", "{}")
        elif "next_offset" in shown[-1].output:
            wanted: Json = {"call": shown[-1].output["call"], "offset": shown[-1].output["next_offset"]}
            part = ProviderCall(f"p{len(shown)}", "read_result", encode(wanted).decode())
        yield ModelReply(parts=(part,), finish="stop", usage=Usage(), model=self.name)


HARD = 'é\\"\n\x01漢𝄞' * 20_000  # escapes and characters of every length


@pytest.mark.parametrize("value", [HARD, {"rows": [HARD]}], ids=["text", "json"])
async def test_a_long_result_is_read_on_to_its_last_character(app: App, value: Json) -> None:
    @tool(effect="once")
    def big() -> Json:
        """Big."""
        return value

    model = Reader()
    rt = await app.open(model, big)
    session = await rt.session("s", agent="a")
    assert await session.ask("go", timeout=30) == "all read"
    told = results(await session.messages())
    assert all(len(encode(one.output)) <= MAX_SHOWN_BYTES for one in told)
    whole = "".join(one.output["text"] for one in told)
    assert whole == (value if isinstance(value, str) else encode(value).decode())
    assert [one.output["truncated"] for one in told] == [True] * (len(told) - 1) + [False]
    offered = [[one.name for one in request.tools] for request in model.requests]
    assert offered[0] == ["big"], "the tool is not offered before a result is truncated"
    assert all(names == ["big", "read_result"] for names in offered[1:])


async def test_reading_on_is_confined_to_the_session_and_to_what_there_is(app: App) -> None:
    @tool(effect="pure")
    def big() -> str:
        """Big."""
        return "x" * 70_000

    async def answer(session: str, *steps: Step) -> Json:
        agent = Agent("a", model=ScriptedModel(*steps, say("ok")), tools=[big])
        async with Runtime(app.new_store(), agents=[agent]) as rt:
            talk = await rt.session(session, agent="a")
            await talk.ask("go", timeout=10)
            return results(await talk.messages())[-1].output

    mine: str = (await answer("mine", call("big")))["call"]
    assert (await answer("mine", call("read_result", call=mine)))["bytes_returned"] > 60_000
    assert (await answer("mine", call("read_result", call=mine, offset=70_000)))["code"] == "offset_out_of_range"
    assert (await answer("mine", call("read_result", call=mine, offset=-1)))["code"] == "offset_out_of_range"
    assert (await answer("mine", call("read_result")))["code"] == "invalid_tool_args"
    for other in (mine, "nonsense", "", "a.b.c"):
        assert (await answer("yours", call("read_result", call=other)))["code"] == "result_unknown"


async def test_a_result_too_long_to_be_kept_promises_nothing(app: App) -> None:
    @tool(effect="pure")
    def huge() -> str:
        """Huge."""
        return "x" * (MAX_KEPT_BYTES + 1)

    model = ScriptedModel(call("huge"), say("ok"))
    rt = await app.open(model, huge)
    (told,) = await asked(rt)
    assert "next_offset" not in told.output
    assert "resume_hint" not in told.output
    assert told.output["hint"] == "the rest is not kept; ask the tool for a narrower part"
    assert [one.name for one in model.requests[-1].tools] == ["huge"]


async def test_an_agents_own_read_result_is_its_own(app: App) -> None:
    @tool(effect="pure")
    def read_result(page: int) -> str:
        """Something else entirely."""
        return f"page {page}"

    @tool(effect="pure")
    def big() -> str:
        """Big."""
        return "x" * 70_000

    rt = await app.open(ScriptedModel(call("big"), call("read_result", page=3), say("ok")), big, read_result)
    first, second = await asked(rt)
    assert "next_offset" not in first.output, "the hint would send the model to the wrong tool"
    assert second.output == "page 3"


async def test_errors_obey_the_ceiling_too(app: App) -> None:
    @tool(effect="pure")
    def moan(why: str) -> str:
        """Moan."""
        raise ToolError("\x01𝄞" * 100_000)

    odd = {"k" * 200_000: 1, "why": "x"}
    rt = await app.open(ScriptedModel(calls(call("moan", why="x"), call("moan", **odd)), say("ok")), moan)
    for one in await asked(rt):
        assert one.is_error
        assert len(encode(one.output)) <= MAX_SHOWN_BYTES


# --- with bodies that wait


class Publish(BaseTool):
    name = "publish"
    description = "Publish, in steps."
    parameters_schema = ORDER
    effect = "resumable"

    def __init__(self) -> None:
        self.rendered = 0

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.tool_error("publish needs its context")

    async def execute_with_context(self, arguments: dict[str, Json], context: ToolContext[object]) -> ToolResult:
        context.progress("rendering")
        picture = await context.step("render", self._render)
        await context.sleep("settle", "10ms")
        return ToolResult.success_with_images({"order": arguments["order"]}, [Image(picture, "image/png")])

    async def _render(self) -> str:
        self.rendered += 1
        return b64encode(PIXEL).decode()


async def test_a_class_tool_may_wait_between_steps_and_return_a_picture(app: App) -> None:
    publish = Publish()
    rt = await app.open(ScriptedModel(call("publish", order="o7"), say("ok")), publish)
    (told,) = await asked(rt)
    assert told.output == {"order": "o7"}
    assert publish.rendered == 1
    (output,) = await outputs(rt)
    assert [ref.size for ref in output.images] == [len(PIXEL)]
