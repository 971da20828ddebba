"""Seed 003: the context of a call, what it offers, what it shows of itself, and the stand-ins for services."""

from __future__ import annotations

import logging

import pytest

from perdure.compat.seeds import SeedToolContext, with_, with_services
from perdure.ids import CallId, SessionId, TurnId
from perdure.observe.emit import EmittedEvent, EventContext, EventRequest, ToolOutputDeltaData, ToolProgressData
from perdure.services.replies import PartialStreamStore, StreamHeartbeater, StreamProgress
from perdure.services.subagents import SpawnClaimed, SubagentSpawnStore
from perdure.services.tool_results import DurableToolResultStore, ToolResultClaimed
from perdure.testing.doubles import (
    NoopDurableToolResultStore,
    NoopEventEmitter,
    NoopPartialStreamStore,
    NoopStreamHeartbeater,
    NoopSubagentSpawnStore,
    RecordingEventEmitter,
)
from perdure.tools.builtin import AddTool, EchoTool, ReportProgressTool
from perdure.tools.context import ToolContext
from perdure.tools.errors import ToolError
from perdure.tools.registry import ToolRegistry
from perdure.tools.services import Services
from perdure.vocab.messages import Message
from tests.unit.tools.calling import context

WHERE = EventContext(turn_id=TurnId("t1"))


class Conversation:
    password = "hunter2"

    def __repr__(self) -> str:
        return self.password

    async def load(self, *, last: int | None = None) -> tuple[Message, ...]:
        return ()

    async def get(self, index: int) -> Message | None:
        return None


# --- services

FIELDS = [
    "session_id",
    "file_store",
    "storage_store",
    "image_store",
    "provider_credential_store",
    "utility_llm_service",
    "egress_service",
    "sqldb_store",
    "message_retriever",
    "session_store",
    "session_mutator",
    "agent_store",
    "connection_resolver",
    "schedule_store",
    "platform_store",
    "leased_resource_store",
    "session_resource_registry",
    "session_task_registry",
    "event_emitter",
    "event_context",
    "tool_call_id",
    "capability_registry",
    "tool_registry",
    "visible_tool_names",
    "org_id",
    "network_access",
    "locale",
    "budget_checker",
    "payment_authority",
    "subagent_spawn_store",
]
"""The fields of the seed's context."""
EVENTS = {"event_emitter", "event_context"}


@pytest.mark.parametrize("name", FIELDS)
def test_d8_each_field_of_the_seed_is_there_or_named_as_absent(name: str) -> None:
    seed = SeedToolContext(context())
    if name in {"tool_call_id", "session_id", "locale", "org_id", "visible_tool_names", "network_access"} | EVENTS:
        getattr(seed, name)
        return
    with pytest.raises(ToolError, match=f"^{name.replace('_', ' ').capitalize()} not available") as refused:
        getattr(seed, name)
    assert refused.value.code == "service_unavailable"


@pytest.mark.parametrize(
    ("service", "said"),
    [
        ("message_retriever", "Message retriever not available in this context."),
        ("session_store", "Session store not available in this context."),
        ("session_mutator", "Session mutator not available in this context."),
        ("tool_registry", "Tool registry not available in this context."),
        ("result_reader", "Result reader not available in this context."),
    ],
)
def test_a_missing_service_is_a_tool_error_that_names_it(service: str, said: str) -> None:
    with pytest.raises(ToolError) as caught:
        getattr(SeedToolContext(context()), service)
    assert (caught.value.message, caught.value.code) == (said, "service_unavailable")


def test_optional_context_values_default_to_none() -> None:
    ctx = SeedToolContext(context())
    assert (ctx.locale, ctx.visible_tool_names, ctx.network_access) == (None, None, None)
    assert (ctx.org_id, ctx.tool_call_id) == (ctx.tenant, ctx.call_id)


def test_a_context_is_changed_by_making_another() -> None:
    ctx = context()
    conversation = Conversation()
    other = SeedToolContext(with_(with_services(ctx, message_retriever=conversation, locale="uk-UA"), attempt=2))
    assert (other.message_retriever, other.locale, other.attempt) == (conversation, "uk-UA", 2)
    assert (ctx.services, ctx.attempt) == (Services(), 1)
    with pytest.raises(TypeError, match="no_such_service"):
        with_services(ctx, no_such_service=1)


def test_a_context_shows_which_services_there_are_and_nothing_of_them() -> None:
    shown = repr(SeedToolContext(with_services(context(), message_retriever=Conversation())))
    assert "message_retriever=True" in shown
    assert "session_store=False" in shown
    assert "session_id='s1'" in shown
    assert "tenant='default'" in shown
    assert "hunter2" not in shown


def test_only_visible_siblings_are_shown() -> None:
    ctx = with_services(context(), tool_registry=ToolRegistry([EchoTool(), AddTool()]))
    assert [one.name for one in SeedToolContext(ctx).visible_tools()] == ["echo", "add"]
    narrow = with_services(ctx, visible_tool_names=frozenset({"add", "gone"}))
    assert [one.name for one in SeedToolContext(narrow).visible_tools()] == ["add"]
    none = with_services(ctx, visible_tool_names=frozenset[str]())
    assert SeedToolContext(none).visible_tools() == ()


# --- events


def emitting(emitter: object) -> ToolContext[object]:
    return with_(context("build"), event_emitter=emitter, event_context=WHERE)


def test_progress_and_output_say_whose_they_are() -> None:
    emitter = RecordingEventEmitter()
    ctx = SeedToolContext(emitting(emitter))
    ctx.emit_progress("compiling")
    ctx.emit_tool_output("cc a.c\n", "stderr")
    assert emitter.data == [
        ToolProgressData(CallId("t1.1.0"), "build", "compiling", None),
        ToolOutputDeltaData(CallId("t1.1.0"), "build", "cc a.c\n", "stderr"),
    ]
    assert [(one.type, one.session_id, one.context) for one in emitter.requests] == [
        ("tool.progress", "s1", WHERE),
        ("tool.output.delta", "s1", WHERE),
    ]


@pytest.mark.parametrize("lacking", [{"event_emitter": None}, {"event_context": None}, {"call_id": CallId("")}])
def test_without_emitter_context_or_call_nothing_is_said(lacking: dict[str, object]) -> None:
    emitter = RecordingEventEmitter()
    ctx = SeedToolContext(with_(emitting(emitter), **lacking))
    ctx.emit_progress("compiling")
    ctx.emit_tool_output("cc\n")
    assert emitter.requests == []


def test_unsendable_event_is_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def emit(self, request: EventRequest) -> EmittedEvent:
            raise OSError("pipe closed")

    with caplog.at_level(logging.DEBUG, "perdure.tools"):
        SeedToolContext(emitting(Broken())).emit_progress("compiling")
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert "pipe closed" in record.getMessage()


async def test_a_report_of_progress_is_told_live_as_well() -> None:
    emitter = RecordingEventEmitter()
    await ReportProgressTool().execute_with_context({"status": "progress", "summary": "half"}, emitting(emitter))
    await ReportProgressTool().execute_with_context({"status": "odd", "summary": "no"}, emitting(emitter))
    assert [one.message for one in emitter.data if isinstance(one, ToolProgressData)] == ["half"]


# --- stand-ins


def test_the_noop_emitter_gives_ids_and_stores_nothing() -> None:
    emitter = NoopEventEmitter()
    request = EventRequest(SessionId("s1"), WHERE, ToolProgressData(CallId("c"), "t", "m"))
    first, second = emitter.emit(request), emitter.emit(request)
    assert (first.sequence, second.sequence, first.type) == (0, 0, "tool.progress")
    assert first.id != second.id
    assert first.request is request


async def test_the_noop_result_store_claims_every_time() -> None:
    store: DurableToolResultStore = NoopDurableToolResultStore()
    turn, call = TurnId("t"), CallId("c")
    first = await store.try_claim_tool_call(turn, call, "echo", "sha256:1")
    second = await store.try_claim_tool_call(turn, call, "echo", "sha256:2")
    assert isinstance(first, ToolResultClaimed)
    assert isinstance(second, ToolResultClaimed)
    assert first.claim_token != second.claim_token
    assert await store.settle_tool_call(turn, call, {"ok": True}, "settled", "somebody's") is True
    assert await store.get_tool_call_status(turn, call) is None


async def test_the_noop_stream_doubles_know_nothing() -> None:
    heart: StreamHeartbeater = NoopStreamHeartbeater()
    assert await heart.heartbeat(StreamProgress(accumulated_len=3, last_delta_at=1)) is None
    partial: PartialStreamStore = NoopPartialStreamStore()
    assert await partial.get_partial_stream(SessionId("s"), TurnId("t")) is None


async def test_the_noop_spawn_store_claims_with_the_given_token() -> None:
    store: SubagentSpawnStore = NoopSubagentSpawnStore()
    claims = [await store.try_claim_spawn(SessionId("s"), CallId("c"), "helper", "look", "tok") for _ in range(2)]
    assert [type(claim) for claim in claims] == [SpawnClaimed, SpawnClaimed]
    first, second = claims
    assert isinstance(first, SpawnClaimed)
    assert isinstance(second, SpawnClaimed)
    assert (first.claim_token, second.claim_token) == ("tok", "tok")
    assert first.spawn_handle_id != second.spawn_handle_id
    await store.register_child_session(first.spawn_handle_id, "tok", SessionId("child"))
    await store.settle_spawn(SessionId("s"), CallId("c"), "tok", "idle", "done")
