"""Providers: what follows from their manifests, and which of them are refused before a turn meets them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import CallId, SessionId
from perdure.tools.context import ToolContext
from perdure.tools.decorator import tool
from perdure.tools.errors import ToolError
from perdure.tools.json_schema import mismatches
from perdure.tools.prepare import ToolPrepareContext
from perdure.tools.provider import ToolProvider, provider_context
from perdure.tools.toolbox import Toolbox, ToolSource
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.tools import Durability, RetryPolicy, ToolContract, ToolManifest
from tests.unit.tools.calling import context

ANY: Json = {"type": "object"}


class Offer(ToolProvider):
    def __init__(self, *manifests: ToolManifest, schema: Json = None) -> None:
        self.manifests = manifests
        self.schema = schema or ANY

    def tool_manifests(self) -> Sequence[ToolManifest]:
        return self.manifests

    def resolve_contract(self, name: str) -> ToolContract | None:
        manifest = self.resolve_manifest(name)
        return manifest.contract(self.schema) if manifest else None

    async def execute(self, name: str, args: Json, ctx: ToolContext[object]) -> object:
        return [name, args]


LOOK, ASK = ToolManifest(name="look"), ToolManifest(name="ask", id="weather/ask")


def test_the_forms_by_id_follow_from_the_manifests() -> None:
    offer = Offer(LOOK, ASK)
    assert offer.resolve_manifest("ask") is offer.resolve_manifest_by_id("weather/ask") is ASK
    assert offer.resolve_manifest_by_id("tool:look") is LOOK
    assert offer.resolve_manifest_by_id("tool:ask") is None
    assert offer.resolve_manifest("fly") is None
    contract = offer.resolve_contract_by_id("weather/ask")
    assert contract is not None
    assert (contract.name, contract.tool_id, contract.manifest) == ("ask", "weather/ask", ASK)
    assert offer.resolve_contract_by_id("tool:fly") is None


async def test_execution_by_unknown_id_is_a_tool_error() -> None:
    offer = Offer(LOOK, ASK)
    assert await offer.execute_by_id("weather/ask", {"a": 1}, provider_context(context())) == ["ask", {"a": 1}]
    with pytest.raises(ToolError, match="Unknown tool id: tool:fly") as caught:
        await offer.execute_by_id("tool:fly", {}, provider_context(context()))
    assert caught.value.code == "tool_error"


def test_preparation_changes_nothing_by_default() -> None:
    call = PreparedToolCall(call_id=CallId("c"), tool_id="tool:look", tool_name="look", args={})
    assert Offer(LOOK).prepare_tool_call(ToolPrepareContext(session_id=SessionId("s")), call) is call


async def test_a_preparation_without_a_session_says_so() -> None:
    ctx = ToolPrepareContext(session_id=SessionId("s"))
    for ask in (ctx.session_snapshot, ctx.tool_catalog, ctx.shared_tool_catalog):
        with pytest.raises(ToolError) as caught:
            await ask()
        assert caught.value.code == "service_unavailable"
    with pytest.raises(ToolError, match="Deps"):
        _ = ctx.deps
    assert ToolPrepareContext(session_id=SessionId("s"), _deps=7).deps == 7


def test_a_provider_needs_its_three_methods() -> None:
    class Half(ToolProvider):
        def tool_manifests(self) -> Sequence[ToolManifest]:
            return ()

    with pytest.raises(TypeError, match="execute"):
        Half()  # pyright: ignore[reportAbstractUsage]


class Blocking(Offer):
    def execute(self, name: str, args: Json, ctx: ToolContext[object]) -> Json:
        return None


class Contradicting(Offer):
    def resolve_contract(self, name: str) -> ToolContract | None:
        return ToolManifest(name=name, durability=Durability(effect="pure")).contract(ANY)


@tool
def look(city: str) -> str:
    """Look."""
    return city


PROBED = ToolManifest(name="look", durability=Durability(doubt="probe"))
RERUN = ToolManifest(name="look", durability=Durability(retry=RetryPolicy(kind="idempotent", max_attempts=2)))
REFUSED: list[tuple[tuple[object, ...], str]] = [
    ((Offer(LOOK, LOOK),), "duplicate tool name look"),
    ((look, Offer(LOOK)), "duplicate tool name look"),
    ((Offer(ToolManifest(name="x", id=" ")),), "blank id"),
    ((Offer(PROBED),), "has no probe"),
    ((Offer(RERUN),), "retry policy idempotent"),
    ((Contradicting(LOOK),), "contract that differs from its manifest"),
    ((Offer(LOOK, schema={"type": "string"}),), "JSON schema of type object"),
    ((Offer(LOOK, schema={"type": "object", "properties": 7}),), "invalid arguments schema"),
    ((Blocking(LOOK),), "is not async"),
    ((Offer,), "is not a tool"),
    ((object(),), "is not a tool"),
]


@pytest.mark.parametrize(("sources", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_invalid_tool_source_is_refused_at_once(sources: tuple[object, ...], why: str) -> None:
    with pytest.raises(Error) as caught:
        Toolbox(cast("Sequence[ToolSource]", sources))
    assert caught.value.code is Code.TOOL_INVALID
    assert why in f"{caught.value.message} {caught.value.hint}"


def test_a_provider_may_change_its_tools_while_it_is_used() -> None:
    offer = Offer(LOOK)
    box = Toolbox([offer, look_at])
    assert [one.name for one in box.contracts()] == ["look", "look_at"]
    offer.manifests = (ASK, LOOK, ToolManifest(name="look_at"))
    assert [one.name for one in box.contracts()] == ["ask", "look", "look_at"]
    assert box.get("look_at") is look_at, "a tool of the program keeps its name"


@tool
def look_at(city: str) -> str:
    """Look at."""
    return city


# --- checking arguments against a schema ---------------------------------------------------------------------------

SCHEMA: Json = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["n"],
    "additionalProperties": False,
}


async def test_every_violation_is_told_with_its_place() -> None:
    assert await mismatches(SCHEMA, {"n": 1, "tags": ["a"]}) == []
    told = "\n".join(await mismatches(SCHEMA, {"n": 0, "tags": ["a", 2], "x": 1}))
    assert "$.n: 0 is less than the minimum of 1" in told
    assert "$.tags[1]: 2 is not of type 'string'" in told
    assert "'x' was unexpected" in told


async def test_ten_violations_are_enough() -> None:
    told = "\n".join(await mismatches(SCHEMA, {"n": 1, "tags": list(range(12))}))
    assert told.count("\n") == 10
    assert told.endswith("- and 2 more")


async def test_a_schema_never_reaches_for_the_network() -> None:
    told = "\n".join(
        await mismatches({"type": "object", "properties": {"a": {"$ref": "http://localhost:1/s.json"}}}, {"a": 1})
    )
    assert "cannot be checked" in told
    assert "http://localhost:1/s.json" in told
