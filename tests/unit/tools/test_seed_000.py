"""The tests of the first source document, as ours. See docs/contributing/seeds.md."""

from __future__ import annotations

import pytest

from perdure.compat.seeds import SeedToolContext, prepared_call, with_, with_async_process, with_retry_context
from perdure.errors import Code, Error
from perdure.ids import CallId
from perdure.testing import tool_context
from perdure.tools.catalog import ActiveCatalog
from perdure.tools.clients.turn import TurnContext
from perdure.tools.context import Cancellation
from perdure.tools.errors import ToolError
from perdure.tools.origin import ChildProcessStarted
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
    token = Cancellation()
    ctx = SeedToolContext(with_async_process(prepared_call(context("demo_tool"), PREPARED), "process-1", token))
    assert ctx.session_id == "s1"
    assert ctx.tool_call_id == "call-1"
    assert ctx.prepared_payload == {"prepared": True}
    assert ctx.async_process_id == "process-1"
    assert ctx.cancellation is token


def test_durable_effects_need_a_prepared_call_and_a_controller_that_supports_them() -> None:
    nameless = tool_context("demo_tool", call_id=" ")
    for ctx, code in (
        (nameless, Code.DURABLE_EFFECTS_MISSING_CALL_ID),
        (context("demo_tool"), Code.DURABLE_EFFECTS_UNAVAILABLE),
    ):
        with pytest.raises(Error) as caught:
            SeedToolContext(ctx).durable_effects()
        assert caught.value.code is code


def test_a_context_is_changed_by_copies() -> None:
    before = context("demo_tool")
    after = prepared_call(before, PREPARED)
    assert (before.call_id, SeedToolContext(before).prepared_payload) == ("t1.1.0", None)
    assert after is not before


def test_fresh_context_has_defaults() -> None:
    ctx = SeedToolContext(tool_context("demo_tool", call_id=""))
    assert (ctx.attempt_number, ctx.max_attempts, ctx.replay_key) == (1, 1, None)
    assert (ctx.prepared_payload, ctx.agent_frame_id, ctx.async_process_id) == (None, "", None)
    assert (ctx.parent_invocation, ctx.parent_call_id, ctx.runtime_process_id) == (None, None, None)


def test_retry_context_counts_from_one_with_a_stable_key() -> None:
    first = with_retry_context(prepared_call(context("demo_tool"), PREPARED), "demo_tool", 0, 0)
    low, later = SeedToolContext(first), SeedToolContext(with_retry_context(first, "demo_tool", 2, 3))
    assert (low.attempt_number, low.max_attempts) == (1, 1)
    assert (later.attempt_number, later.max_attempts) == (2, 3)
    assert low.replay_key == later.replay_key == "perdure-tool:default:s1:call-1:demo_tool"


def test_without_a_call_there_is_no_key_to_retry_under() -> None:
    ctx = tool_context("x", call_id="", tenant="acme")
    assert SeedToolContext(with_retry_context(ctx, "x", 1, 2)).replay_key is None


def test_process_id_prefers_async_then_runtime_then_events() -> None:
    ctx = context()
    assert SeedToolContext(ctx).runtime_process_id is None
    ctx = with_(ctx, process_events_id="events")
    assert SeedToolContext(ctx).runtime_process_id == "events"
    ctx = with_(ctx, own_process_id="own")
    assert SeedToolContext(ctx).runtime_process_id == "own"
    ctx = with_(ctx, async_process_id="async")
    assert SeedToolContext(ctx).runtime_process_id == "async"
    moved = SeedToolContext(with_async_process(context(), "p", Cancellation()))
    assert (moved.async_process_id, moved.own_process_id) == ("p", "p")


def test_a_payload_is_decoded_by_its_type_or_refused() -> None:
    ctx = SeedToolContext(prepared_call(context(), PREPARED))
    assert ctx.decode_prepared_payload(dict[str, bool]) == {"prepared": True}
    with pytest.raises(Error) as caught:
        ctx.decode_prepared_payload(dict[str, int])
    assert caught.value.code is Code.INVALID_JSON


def test_started_child_process_is_reported_to_the_hook() -> None:
    seen: list[ChildProcessStarted] = []
    SeedToolContext(context()).emit_child_process_started("p1")
    SeedToolContext(with_(context(), on_child_process=seen.append)).emit_child_process_started("p2", "main")
    assert seen == [ChildProcessStarted("p2", "main")]


def test_plugin_input_of_another_type_is_none() -> None:
    ctx = with_(context(), turn_context=TurnContext(plugin_inputs={"crm": {"id": 7}}))
    assert ctx.plugin_input("crm", dict[str, int]) == {"id": 7}
    assert ctx.plugin_input("crm", list[int]) is None
    assert ctx.plugin_input("mail", dict[str, int]) is None


@pytest.mark.parametrize(
    "service", ["sessions", "dispatch", "attachments", "direct_completions", "process_events", "progress"]
)
def test_a_missing_service_is_a_visible_error_that_names_it(service: str) -> None:
    with pytest.raises(ToolError) as caught:
        getattr(SeedToolContext(context()), service)
    assert caught.value.code == "service_unavailable"
    assert service.replace("_", " ") in caught.value.message.lower()


def test_context_repr_shows_presence_only() -> None:
    given = TurnContext(plugin_inputs={"crm": {"token": "hush"}})
    ctx = with_(prepared_call(context(), PREPARED), turn_context=given)
    assert "prepared_payload=present" in repr(ctx)
    assert "clients=Clients()" in repr(ctx)
    assert "hush" not in repr(ctx)
    assert "hush" not in repr(given)


def test_projection_policy_comes_from_the_active_catalog() -> None:
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
