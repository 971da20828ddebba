"""Other people's code that breaks off in an unusual way: its turn or its call ends, and the session goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from perdure import Agent, Code, Error, Runtime, RuntimeOptions, Session, ToolContext, ToolError, per_turn, tool
from perdure.codec import Json
from perdure.models.protocol import ModelEvent, ModelRequest
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.providers import PreparedToolCall, ToolManifest, ToolPrepareContext, ToolProvider
from perdure.runtime.instructions import Instructions
from perdure.tools.provider import ProviderContext
from perdure.values import DepsContext, InstructionsContext
from perdure.vocab.messages import ToolResultPart
from perdure.vocab.outcomes import Failed, FailureDetail, Success
from perdure.vocab.tools import ToolContract
from tests.scenarios.conftest import App


def exits() -> object:
    raise SystemExit(3)


def interrupts() -> object:
    raise KeyboardInterrupt


def is_cancelled() -> object:
    raise asyncio.CancelledError


def generator_exits() -> object:
    raise GeneratorExit


BREAKING_OFF = [exits, interrupts, is_cancelled, generator_exits]


async def leaked_cancellation() -> object:
    """Await a cancelled future of a library, without a request to stop."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    return await future


async def goes_on(session: Session) -> None:
    """The session serves the next input."""
    assert (await (await session.send("fine")).result(timeout=10)).status == "finished"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 20_000, '```json\n{"value": ' + "[" * 9_000])
async def test_an_answer_nested_too_deeply_is_an_invalid_output(app: App, text: str) -> None:
    model = ScriptedModel.by_input({"bomb": [say(text, exact=True)] * 3}, default=[say('{"a": 1}', exact=True)])
    async with Runtime(app.new_store(), agents=[Agent("a", model=model, output_type=dict[str, int])]) as rt:
        session = await rt.session("s", agent="a")
        result = await (await session.send("bomb")).result(timeout=10)
        assert (result.status, result.reason) == ("stopped", "output_invalid")
        await goes_on(session)


class Fussy(msgspec.Struct):
    a: int

    def __post_init__(self) -> None:
        if self.a < 0:
            {}["nothing"]


async def test_a_struct_that_fails_on_an_answer_is_an_invalid_output(app: App) -> None:
    model = ScriptedModel.by_input({"bad": [say('{"a": -1}', exact=True)] * 3}, default=[say('{"a": 1}', exact=True)])
    async with Runtime(app.new_store(), agents=[Agent("a", model=model, output_type=Fussy)]) as rt:
        session = await rt.session("s", agent="a")
        result = await (await session.send("bad")).result(timeout=10)
        assert (result.status, result.reason) == ("stopped", "output_invalid")
        await goes_on(session)


class Leaving(msgspec.Struct):
    a: int

    def __post_init__(self) -> None:
        if self.a < 0:
            raise SystemExit(3)


async def test_an_output_type_that_exits_is_an_invalid_output(app: App) -> None:
    model = ScriptedModel.by_input({"bad": [say('{"a": -1}', exact=True)] * 3}, default=[say('{"a": 1}', exact=True)])
    async with Runtime(app.new_store(), agents=[Agent("a", model=model, output_type=Leaving)]) as rt:
        session = await rt.session("s", agent="a")
        result = await (await session.send("bad")).result(timeout=10)
        assert (result.status, result.reason) == ("stopped", "output_invalid")
        await goes_on(session)


class Broken:
    """A model client that breaks off once, before it says anything."""

    name = "broken"

    def __init__(self, break_off: Callable[[], object]) -> None:
        self.break_off = break_off
        self.asked = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.asked += 1
        if self.asked == 1:
            self.break_off()
        async for event in ScriptedModel(say("ok"), say("ok")).stream(request):
            yield event


@pytest.mark.parametrize("break_off", BREAKING_OFF)
async def test_a_model_client_that_breaks_off_stops_its_turn(app: App, break_off: Callable[[], object]) -> None:
    rt = await app.open(Broken(break_off))
    session = await rt.session("s", agent="a")
    result = await (await session.send("go")).result(timeout=10)
    assert (result.status, result.reason) == ("stopped", "provider_error")
    await goes_on(session)


ACT = ToolManifest(name="act", description="Acts.")


class Hooked(ToolProvider):
    """A provider whose hook is given to it."""

    def __init__(self, hook: Callable[[PreparedToolCall], object]) -> None:
        self.hook = hook
        self.ran = 0

    def tool_manifests(self) -> list[ToolManifest]:
        return [ACT]

    def resolve_contract(self, name: str) -> ToolContract | None:
        return ACT.contract({"type": "object"})

    def prepare_tool_call(self, ctx: ToolPrepareContext, call: PreparedToolCall) -> Json:
        return self.hook(call)

    async def execute(self, name: str, args: Json, ctx: ProviderContext[object]) -> object:
        self.ran += 1
        return 1


async def prepared_badly(app: App, hook: Callable[[PreparedToolCall], object]) -> dict[str, str]:
    """What the model was told about a call whose hook went wrong; nothing ran, and the session goes on."""
    provider = Hooked(hook)
    rt = await app.open(ScriptedModel.by_input({"go": [call("act"), say("ok")]}, default=[say("ok")]), provider)
    session = await rt.session("s", agent="a")
    assert (await (await session.send("go")).result(timeout=10)).status == "finished"
    assert provider.ran == 0
    told = [p for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)]
    await goes_on(session)
    return told[0].output


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("break_off", BREAKING_OFF)
async def test_a_hook_that_breaks_off_fails_its_call(app: App, break_off: Callable[[], object], later: bool) -> None:
    async def in_its_own_time() -> object:
        await asyncio.sleep(0)
        return break_off()

    told = await prepared_badly(app, lambda call: in_its_own_time() if later else break_off())
    assert told["code"] == "tool_prepare_failed"


HUGE = "x" * 1_100_000
TOO_LARGE: list[Callable[[PreparedToolCall], object]] = [
    lambda call: msgspec.structs.replace(call, prepared_payload=HUGE),
    lambda call: msgspec.structs.replace(call, prepared_payload="x" * 262_144),
    lambda call: msgspec.structs.replace(call, args={"x": HUGE}),
    lambda call: Success(value=HUGE),
    lambda call: Success(value=object()),
    lambda call: Failed(failure=FailureDetail(code=5, message="\ud800")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("hook", TOO_LARGE)
async def test_unstorable_prepared_payload_fails_its_call(app: App, hook: Callable[[PreparedToolCall], object]) -> None:
    assert (await prepared_badly(app, hook))["code"] == "tool_prepare_failed"


async def test_largest_prepared_payload_reaches_the_call(app: App) -> None:
    seen = list[int]()

    class Payload(Hooked):
        async def execute(self, name: str, args: Json, ctx: ProviderContext[object]) -> object:
            seen.append(len(ctx.prepared_payload))
            return 1

    provider = Payload(lambda call: msgspec.structs.replace(call, prepared_payload="x" * 262_142))
    rt = await app.open(ScriptedModel(calls(call("act"), call("act")), say("ok")), provider)
    await (await rt.session("s", agent="a")).ask("go")
    assert seen == [262_142, 262_142]


async def test_a_hook_that_raises_what_cannot_be_shown_fails_its_call(app: App) -> None:
    def hook(call: PreparedToolCall) -> object:
        raise ToolError("\ud800", code="busy", retry_after_ms=1.5)  # type: ignore[arg-type]

    assert (await prepared_badly(app, hook))["code"] == "busy"


def plain_instructions(break_off: Callable[[], object]) -> Instructions:
    return lambda ctx: str(break_off()) if ctx.input == "bad" else "Be kind."


def async_instructions(break_off: Callable[[], object]) -> Instructions:
    async def instructions(ctx: InstructionsContext) -> str:
        await asyncio.sleep(0)
        return str(break_off()) if ctx.input == "bad" else "Be kind."

    return instructions


def wrapped_instructions(break_off: Callable[[], object]) -> Instructions:
    inner = async_instructions(break_off)
    return lambda ctx: inner(ctx)  # type: ignore[operator]


async def leaking_instructions(ctx: InstructionsContext) -> str:
    return str(await leaked_cancellation()) if ctx.input == "bad" else "Be kind."


async def self_cancelling_instructions(ctx: InstructionsContext) -> str:
    if ctx.input == "bad" and (task := asyncio.current_task()):
        task.cancel()
        await asyncio.sleep(10)
    return "Be kind."


MADE = [make(b) for make in (plain_instructions, async_instructions, wrapped_instructions) for b in BREAKING_OFF]


@pytest.mark.parametrize("instructions", [*MADE, leaking_instructions, self_cancelling_instructions])
async def test_instructions_that_break_off_stop_their_turn(
    app: App, instructions: Instructions, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("a", model=ScriptedModel(say("ok")), instructions=instructions)
    async with Runtime(app.new_store(), agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        result = await (await session.send("bad")).result(timeout=10)
        assert (result.status, result.reason) == ("stopped", "instructions_failed")
        assert "instructions function failed" in caplog.text
        await goes_on(session)


async def test_a_runtime_that_closes_while_instructions_are_asked_loses_nothing(app: App) -> None:
    """A cancellation of our own is none of the function's, and the next worker opens the turn."""
    asked, cleaned = asyncio.Event(), list[bool]()

    async def slow(ctx: InstructionsContext) -> str:
        asked.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(True)
        return ""

    async with Runtime(
        app.new_store(), agents=[Agent("a", model="sim:echo", instructions=slow)], options=RuntimeOptions(drain_s=0.05)
    ) as rt:
        sent = await (await rt.session("s", agent="a")).send("go", key="k")
        await asked.wait()
    assert cleaned == [True]
    async with Runtime(app.new_store(), agents=[Agent("a", model=ScriptedModel(say("ok", exact=True)))]) as rt:
        again = await rt.get_session("s").send("go", key="k")
        assert again.turn_id == sent.turn_id
        assert (await again.result(timeout=10)).text == "ok"


def test_instructions_that_are_no_text_are_refused_at_once() -> None:
    with pytest.raises(Error) as caught:
        Agent("a", model="sim:echo", instructions="\ud800")
    assert caught.value.code is Code.INVALID_TEXT


def broken_plain(break_off: Callable[[], object]) -> Callable[[DepsContext], object]:
    return lambda ctx: break_off()


def broken_async(break_off: Callable[[], object]) -> Callable[[DepsContext], object]:
    async def make(ctx: DepsContext) -> object:
        await asyncio.sleep(0)
        return break_off()

    return make


def broken_generator(break_off: Callable[[], object]) -> Callable[[DepsContext], object]:
    async def make(ctx: DepsContext) -> AsyncIterator[object]:
        yield break_off()

    return make


def leaking_factory(ctx: DepsContext) -> object:
    return leaked_cancellation()


async def self_cancelling_factory(ctx: DepsContext) -> object:
    if task := asyncio.current_task():
        task.cancel()
    return 5


FACTORIES = [make(b) for make in (broken_plain, broken_async, broken_generator) for b in BREAKING_OFF]


@pytest.mark.parametrize("factory", [*FACTORIES, leaking_factory, self_cancelling_factory])
async def test_dependencies_that_break_off_fail_a_call_that_never_ran(
    app: App, factory: Callable[[DepsContext], object]
) -> None:
    ran = list[str]()

    @tool
    async def charge(ctx: ToolContext) -> None:
        """Charge."""
        ran.append(ctx.call_id)

    model = ScriptedModel.by_input({"go": [call("charge"), say("ok")]}, default=[say("ok")])
    rt = await app.open(model, charge, deps=per_turn(factory))
    session = await rt.session("s", agent="a")
    assert (await (await session.send("go")).result(timeout=10)).status == "finished"
    told = [p for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)]
    assert (told[0].output["code"], ran) == ("internal_error", [])
    await goes_on(session)


@pytest.mark.parametrize("break_off", BREAKING_OFF)
async def test_dependencies_that_break_off_when_they_are_closed_change_nothing(
    app: App, break_off: Callable[[], object]
) -> None:
    @tool(effect="pure")
    async def look(ctx: ToolContext) -> int:
        """Look."""
        return ctx.deps

    async def make(ctx: DepsContext) -> AsyncIterator[int]:
        yield 5
        break_off()

    model = ScriptedModel.by_input({"go": [call("look"), say("ok")]}, default=[say("ok")])
    rt = await app.open(model, look, deps=per_turn(make))
    session = await rt.session("s", agent="a")
    assert (await (await session.send("go")).result(timeout=10)).status == "finished"
    told = [p for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)]
    assert told[0].output == 5
    await goes_on(session)
