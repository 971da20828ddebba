"""Durable effects inside a tool: the tests of the first source document. See docs/contributing/seeds.md."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Generator, Iterator

import pytest

from perdure.codec import Json
from perdure.compat.seeds import SeedToolContext, with_
from perdure.effects.controller import JournaledController
from perdure.effects.journal import EffectJournal
from perdure.effects.promises import TurnScope, check_key
from perdure.errors import Code, Error
from perdure.ids import CallId, SessionId, Tenant, TurnId, WorkerId
from perdure.inbox.admit import Delivery
from perdure.runtime.clock import SystemClock
from perdure.tools.body import Body
from perdure.tools.body_scope import call_place
from perdure.tools.clients.process_events import ProcessEventInfo
from perdure.tools.context import ToolContext
from perdure.tools.errors import ToolError
from perdure.tools.origin import Clients
from perdure.tools.step_outcomes import EventFailed, EventTimedOut, StepFailed
from perdure.tools.threads import ToolThreads
from perdure.vocab.promises import Cancelled, Custom, EventKey, Failure, Ok, Resolution, TimedOut
from perdure.vocab.records import Record
from tests.unit.tools.calling import context

SECRET = b"s" * 32
SCOPE = TurnScope(Tenant("default"), SessionId("s1"), TurnId("t1"))


class Paper:
    """A ledger that is durable at once."""

    worker = WorkerId("w")

    def __init__(self) -> None:
        self.records: list[Record] = []

    def submit(self, *records: Record, outbox: tuple[Delivery, ...] = ()) -> tuple[Record, ...]:
        self.records.extend(records)
        return records

    async def durable(self) -> None: ...

    def lease_live(self) -> bool:
        return True

    async def reassert(self) -> None: ...


class Answers:
    """Everything that is awaited has been answered."""

    def __init__(self, answers: dict[str, Resolution]) -> None:
        self._answers = answers

    async def until(self, promise: EventKey | None, due_at: int | None) -> Resolution | None:
        if promise is None:
            return None
        assert isinstance(promise.wait, Custom)
        return self._answers[promise.wait.key]

    async def give_up(self, promise: EventKey, silence: Json = None) -> Resolution:
        return TimedOut()

    def let_go(self, promise: EventKey) -> None: ...

    def changed(self) -> None: ...


@pytest.fixture
def threads() -> Iterator[ToolThreads]:
    pool = ToolThreads(2)
    yield pool
    pool.close()


def body(threads: ToolThreads, answers: dict[str, Resolution] | None = None, *, journal: EffectJournal) -> Body:
    place = call_place(SCOPE, 0, 1, 0, CallId("call-1"), "publish")
    controller = JournaledController(journal, Paper())
    return Body(place, controller, Answers(answers or {}), SystemClock(), threads, SECRET)


def plain(threads: ToolThreads, answers: dict[str, Resolution] | None = None) -> ToolContext[object]:
    return with_(context("publish"), call_id=CallId("call-1"), body=body(threads, answers, journal=EffectJournal()))


def resumable(threads: ToolThreads, answers: dict[str, Resolution] | None = None) -> SeedToolContext[object]:
    return SeedToolContext(plain(threads, answers))


async def refused(work: object) -> Code:
    with pytest.raises(Error) as caught:
        await work  # type: ignore[misc]
    return caught.value.code


def test_durable_effects_need_a_call_and_a_body_that_is_recorded(threads: ToolThreads) -> None:
    ctx = plain(threads)
    with pytest.raises(Error) as caught:
        SeedToolContext(with_(ctx, call_id=CallId(" "))).durable_effects()
    assert caught.value.code is Code.DURABLE_EFFECTS_MISSING_CALL_ID
    with pytest.raises(Error) as caught:
        SeedToolContext(with_(ctx, body=None)).durable_effects()
    assert caught.value.code is Code.DURABLE_EFFECTS_UNAVAILABLE
    assert 'effect="resumable"' in caught.value.hint


def test_only_a_controller_that_cannot_nest_refuses_a_batch(threads: ToolThreads) -> None:
    ctx = resumable(threads)
    body = ctx.durable_effects()
    body.place = dataclasses.replace(body.place, in_batch=True)
    assert ctx.durable_effects() is body
    body.controller.nests = False
    with pytest.raises(Error) as caught:
        ctx.durable_effects()
    assert caught.value.code is Code.DURABLE_EFFECTS_UNAVAILABLE_IN_TOOL_BATCH


async def test_awaitable_returned_by_a_step_is_awaited(threads: ToolThreads) -> None:
    ctx = resumable(threads)

    async def value() -> int:
        return 7

    async def forgets() -> object:
        return value()

    async def begins() -> object:
        return asyncio.ensure_future(value())

    class Pool:
        def __await__(self) -> Generator[object, None, Pool]:
            yield from ()
            return self

    async def returns_itself() -> object:
        return Pool()

    assert await ctx.step("plain", value) == 7
    assert await ctx.step("thread", lambda: value()) == 7
    assert await ctx.step("coroutine", forgets) == 7
    assert await ctx.step("task", begins) == 7
    with pytest.raises(StepFailed, match="Pool is not JSON"):
        await ctx.step("pool", returns_itself)


async def test_run_json_returns_the_value_or_raises_the_error(threads: ToolThreads) -> None:
    ctx = resumable(threads)

    async def double(given: Json) -> Json:
        return {"n": 2 * given["n"]}

    async def fail(given: Json) -> Json:
        raise ToolError("it does not work", code="custom_code")

    assert await ctx.run_json("ok", {"n": 21}, double) == {"n": 42}
    with pytest.raises(StepFailed) as caught:
        await ctx.run_json("fail", {}, fail)
    assert (caught.value.code, caught.value.message) == ("custom_code", "it does not work")


async def test_blank_and_repeated_step_ids_are_refused_before_anything_runs(threads: ToolThreads) -> None:
    ctx = resumable(threads)
    runs: list[str] = []

    async def run(given: Json) -> Json:
        runs.append(given)

    assert await refused(ctx.run_json("", "blank", run)) is Code.DURABLE_EFFECT_EMPTY_STEP_ID
    await ctx.run_json("same", "first", run)
    assert await refused(ctx.run_json("same", "second", run)) is Code.DURABLE_EFFECT_DUPLICATE_STEP_ID
    assert runs == ["first"]


async def test_a_replayed_step_calls_nothing_and_another_input_is_refused(threads: ToolThreads) -> None:
    journal = EffectJournal()
    runs: list[Json] = []

    async def run(given: Json) -> Json:
        runs.append(given)
        return len(runs)

    async def entry(given: Json) -> Json:
        again = with_(context("publish"), call_id=CallId("call-1"), body=body(threads, journal=journal))
        return await SeedToolContext(again).run_json("one", given, run)

    assert [await entry({"a": 1}), await entry({"a": 1})] == [1, 1]
    assert await refused(entry({"a": 2})) is Code.REPLAY_MISMATCH
    assert runs == [{"a": 1}]


async def test_an_external_event_key_is_custom_and_stable(threads: ToolThreads) -> None:
    ctx = resumable(threads)
    key = await ctx.external_event_key("tool-event-stable")
    assert key == await ctx.external_event_key("tool-event-stable")
    assert key.wait == Custom(key="tool-event-stable")
    check_key(SECRET, key)
    with pytest.raises(Error) as caught:
        check_key(b"another secret", key)
    assert caught.value.code is Code.EVENT_KEY_INVALID
    assert await refused(ctx.external_event_key(" ")) is Code.DURABLE_EFFECT_EMPTY_EVENT_KEY


async def test_await_event_json_tells_each_end_apart(threads: ToolThreads) -> None:
    answers: dict[str, Resolution] = {
        "ok": Ok(value={"ok": True}),
        "err": Failure(code="external_failed", message="outside said no"),
        "cancelled": Cancelled(),
        "timeout": TimedOut(),
    }
    ctx = resumable(threads, answers)

    async def wait(name: str) -> Json:
        return await ctx.await_event_json(await ctx.external_event_key(name))

    assert await wait("ok") == {"ok": True}
    found: list[tuple[str, str]] = []
    for name in ("err", "cancelled", "timeout"):
        with pytest.raises(EventFailed) as caught:
            await wait(name)
        found.append((type(caught.value).__name__, caught.value.code))
    assert found == [
        ("EventFailed", "external_failed"),
        ("EventFailed", "durable_effect_event_cancelled"),
        ("EventTimedOut", "durable_effect_event_timeout"),
    ]
    assert issubclass(EventTimedOut, EventFailed)


class Process:
    """A process that declares one type of event."""

    def __init__(self, id: str) -> None:
        self._id = id
        self.keys: list[str] = []

    async def emit(self, event_type: str, payload: Json) -> ProcessEventInfo:
        raise NotImplementedError

    async def emit_request(self, event_type: str, payload: Json, *, replay_key: str) -> ProcessEventInfo:
        self.keys.append(replay_key)
        if event_type != "tool.event":
            raise Error(Code.INVALID_ARGUMENT, f"the type {event_type} is not declared")
        return ProcessEventInfo(self._id, len(self.keys), event_type, payload, replay_key)

    async def wait_event_after(self, event_type: str, after: int) -> ProcessEventInfo:
        raise NotImplementedError


async def test_process_event_needs_a_process_and_has_ordinal_key(threads: ToolThreads) -> None:
    ctx = plain(threads)
    assert (
        await refused(SeedToolContext(ctx).emit_process_event("", {})) is Code.DURABLE_EFFECT_PROCESS_EVENT_UNAVAILABLE
    )
    process = Process("p1")
    within = with_(ctx, clients=Clients(process_events=process), process_events_id="p1")
    inside = SeedToolContext(within)
    assert await refused(inside.emit_process_event(" ", {})) is Code.DURABLE_EFFECT_EMPTY_PROCESS_EVENT_TYPE
    assert (await inside.emit_process_event("tool.event", {"ok": True})).payload == {"ok": True}
    assert await refused(inside.emit_process_event("other", {})) is Code.DURABLE_EFFECT_PROCESS_EVENT_APPEND_FAILED
    elsewhere = SeedToolContext(with_(within, process_events_id="p2"))
    code = await refused(elsewhere.emit_process_event("tool.event", {}))
    assert code is Code.DURABLE_EFFECT_PROCESS_EVENT_PROCESS_MISMATCH
    assert process.keys == [f"tool:call-1:durable-process-event:{n}" for n in range(3)]


async def test_a_context_is_over_with_its_call(threads: ToolThreads) -> None:
    ctx = resumable(threads)
    await ctx.durable_effects().life.end()
    assert await refused(ctx.step("late", print)) is Code.DURABLE_EFFECT_STATE_POISONED
