"""The behaviours that the first source document proves with its own tests, as ours. See docs/seeds.md."""

from __future__ import annotations

import pytest

from perdure.errors import Code, Error
from perdure.ids import CallId, SessionId, Tenant, TurnId
from perdure.tools.catalog import ActiveCatalog
from perdure.tools.clients.surface import ChildProcessStarted
from perdure.tools.clients.turn import TurnContext
from perdure.tools.context import CancelToken, ToolContext
from perdure.tools.errors import ToolError
from perdure.vocab.effects import PreparedToolBatch, PreparedToolCall
from perdure.vocab.tools import (
    Composition,
    Durability,
    MaterializeProjectedValues,
    PreserveProjectedRefsInField,
    ToolManifest,
)
from tests.unit.tools.calling import context

PREPARED = PreparedToolCall(
    call_id=CallId("call-1"),
    tool_id="tool:demo_tool",
    tool_name="demo_tool",
    args={"input": True},
    prepared_payload={"prepared": True},
)


def test_a_context_carries_the_prepared_call_the_cancellation_and_the_process() -> None:
    token = CancelToken()
    ctx = context("demo_tool").prepared_call(PREPARED).with_async_process("process-1", token)
    assert ctx.session_id == "s1"
    assert ctx.tool_call_id == "call-1"
    assert ctx.prepared_payload == {"prepared": True}
    assert ctx.async_process_id == "process-1"
    assert ctx.cancellation is token


def test_durable_effects_need_a_prepared_call_and_a_controller_that_supports_them() -> None:
    nameless = ToolContext[object](
        session_id=SessionId("s"), turn_id=TurnId("t"), call_id=CallId(" "), tool_name="demo_tool"
    )
    for ctx, code in (
        (nameless, Code.DURABLE_EFFECTS_MISSING_CALL_ID),
        (context("demo_tool"), Code.DURABLE_EFFECTS_UNAVAILABLE),
    ):
        with pytest.raises(Error) as caught:
            ctx.durable_effects()
        assert caught.value.code is code


def test_a_context_is_changed_by_copies() -> None:
    before = context("demo_tool")
    after = before.prepared_call(PREPARED)
    assert (before.call_id, before.prepared_payload) == ("t1.1.0", None)
    assert after is not before


def test_a_fresh_context_is_the_first_of_one_attempts_outside_any_frame_or_process() -> None:
    ctx = ToolContext[object](session_id=SessionId("s"), turn_id=TurnId("t"), call_id=CallId(""), tool_name="demo_tool")
    assert (ctx.attempt_number, ctx.max_attempts, ctx.replay_key) == (1, 1, None)
    assert (ctx.prepared_payload, ctx.agent_frame_id, ctx.async_process_id) == (None, "", None)
    assert (ctx.parent_invocation, ctx.parent_call_id, ctx.runtime_process_id) == (None, None, None)


def test_the_retry_context_counts_from_one_and_every_attempt_has_the_same_key() -> None:
    low = context("demo_tool").prepared_call(PREPARED).with_retry_context("demo_tool", 0, 0)
    later = low.with_retry_context("demo_tool", 2, 3)
    assert (low.attempt_number, low.max_attempts) == (1, 1)
    assert (later.attempt_number, later.max_attempts) == (2, 3)
    assert low.replay_key == later.replay_key == "perdure-tool:default:s1:call-1:demo_tool"


def test_without_a_call_there_is_no_key_to_retry_under() -> None:
    ctx = ToolContext[object](
        session_id=SessionId("s"), turn_id=TurnId("t"), call_id=CallId(""), tool_name="x", tenant=Tenant("acme")
    )
    assert ctx.with_retry_context("x", 1, 2).replay_key is None


def test_the_process_is_the_asynchronous_one_then_the_runtimes_then_that_of_the_events() -> None:
    ctx = context()
    assert ctx.runtime_process_id is None
    ctx = ctx.with_(process_events_id="events")
    assert ctx.runtime_process_id == "events"
    ctx = ctx.with_(own_process_id="own")
    assert ctx.runtime_process_id == "own"
    ctx = ctx.with_(async_process_id="async")
    assert ctx.runtime_process_id == "async"
    moved = context().with_async_process("p", CancelToken())
    assert (moved.async_process_id, moved.own_process_id) == ("p", "p")


def test_a_payload_is_decoded_by_its_type_or_refused() -> None:
    ctx = context().prepared_call(PREPARED)
    assert ctx.decode_prepared_payload(dict[str, bool]) == {"prepared": True}
    with pytest.raises(Error) as caught:
        ctx.decode_prepared_payload(dict[str, int])
    assert caught.value.code is Code.INVALID_JSON


def test_a_started_child_process_is_told_to_the_hook_if_there_is_one() -> None:
    seen: list[ChildProcessStarted] = []
    context().emit_child_process_started("p1")
    context().with_(on_child_process=seen.append).emit_child_process_started("p2", "main")
    assert seen == [ChildProcessStarted("p2", "main")]


def test_plugin_input_is_typed_and_absent_when_it_is_not_of_that_type() -> None:
    ctx = context().with_(turn_context=TurnContext(plugin_inputs={"crm": {"id": 7}}))
    assert ctx.plugin_input("crm", dict[str, int]) == {"id": 7}
    assert ctx.plugin_input("crm", list[int]) is None
    assert ctx.plugin_input("mail", dict[str, int]) is None


@pytest.mark.parametrize(
    "service", ["sessions", "dispatch", "attachments", "direct_completions", "process_events", "progress"]
)
def test_a_missing_service_is_a_visible_error_that_names_it(service: str) -> None:
    with pytest.raises(ToolError) as caught:
        getattr(context(), service)
    assert caught.value.code == "service_unavailable"
    assert service.replace("_", " ") in caught.value.message.lower()


def test_what_a_context_holds_is_shown_by_presence_only() -> None:
    ctx = context().prepared_call(PREPARED).with_(turn_context=TurnContext(plugin_inputs={"crm": {"token": "hush"}}))
    assert "prepared_payload=present" in repr(ctx)
    assert "clients=Clients()" in repr(ctx)
    assert "hush" not in repr(ctx)
    assert "hush" not in repr(ctx.turn_context)


def test_the_projection_policy_comes_from_the_active_catalog_and_unknown_tools_are_materialized() -> None:
    seedy = ToolManifest(name="seedy", projection=PreserveProjectedRefsInField(field="seed"))
    plain = ToolManifest(name="plain", durability=Durability(serial=True))
    tools = tuple(one.contract({"type": "object"}) for one in (seedy, plain))
    catalog = ActiveCatalog(Composition(agent="a", model="m", tools=tools))
    assert catalog.projection_policy("seedy") == PreserveProjectedRefsInField(field="seed")
    assert catalog.projection_policy("plain") == MaterializeProjectedValues()
    assert catalog.projection_policy("missing") == MaterializeProjectedValues()
    assert [catalog.is_serial(name) for name in ("plain", "seedy", "missing")] == [True, False, False]
    assert catalog.callable_tool_manifest("seedy") == seedy
    assert catalog.callable_tool_manifest_by_id("tool:seedy") == seedy
    assert catalog.callable_tool_manifest("missing") is None


def test_the_children_of_a_batch_are_told_apart_by_place_and_name() -> None:
    batch = PreparedToolBatch.of((PREPARED, PREPARED))
    assert [one.replay_suffix for one in batch.calls] == ["child:0:call-1", "child:1:call-1"]
    assert (len(batch), batch.is_empty, PreparedToolBatch.of(()).is_empty) == (2, False, True)


def test_an_identity_preparation_is_the_call_itself() -> None:
    assert PREPARED.identity is PREPARED
