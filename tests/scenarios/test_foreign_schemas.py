"""Schemas of models and servers: refused when they are accepted, and never a reason to buy a reply again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perdure import Agent, Runtime, Session, ToolContext, ToolError
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, call, give, say
from perdure.tools.provider import ToolProvider
from perdure.tools.spawn_subagent import spawn_subagent
from perdure.vocab.children import ChildRegistered
from perdure.vocab.messages import ToolResultPart
from perdure.vocab.tools import ToolContract, ToolManifest
from tests.scenarios.conftest import NewStore

BACK_TO_ITSELF: Json = {"type": "object", "$ref": "#"}
MISSING: Json = {"type": "object", "$ref": "#/$defs/Missing"}
COSTLY: Json = {
    "type": "object",
    "allOf": [{"additionalProperties": {"$ref": "#"}}, {"additionalProperties": {"$ref": "#"}}],
}
"""Accepted, because it is small. A value nested forty levels deep would need 2**40 steps."""


def nested(levels: int) -> dict[str, Json]:
    value: dict[str, Json] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


async def outputs(session: Session) -> list[Json]:
    return [part.output for one in await session.messages() for part in one.parts if isinstance(part, ToolResultPart)]


@pytest.mark.parametrize("schema", [BACK_TO_ITSELF, MISSING], ids=["itself", "missing"])
@pytest.mark.any_store
async def test_s4_t_tool_03_model_learns_that_its_result_schema_is_invalid(new_store: NewStore, schema: Json) -> None:
    asked = call("spawn_subagent", name="w", task="x", mode="foreground", result_schema=schema)
    child = ScriptedModel(give({"a": "x"}))
    agents = [
        Agent("p", model=ScriptedModel(asked, say("done", exact=True)), tools=[spawn_subagent("w")]),
        Agent("w", model=child),
    ]
    async with Runtime(new_store(), agents=agents) as rt:
        session = await rt.session("s", agent="p")
        assert await session.ask("go", timeout=20) == "done"
        [told] = await outputs(session)
        assert "invalid result_schema" in str(told)
        assert child.requests == []


async def test_s4_reply_is_bought_and_recorded_though_its_check_is_stopped(new_store: NewStore) -> None:
    asked = call("spawn_subagent", name="w", task="x", mode="foreground", result_schema=COSTLY)
    child = ScriptedModel(*[give(nested(40))] * 9)
    agents = [
        Agent("p", model=ScriptedModel(asked, say("done", exact=True)), tools=[spawn_subagent("w")]),
        Agent("w", model=child),
    ]
    async with Runtime(new_store(), agents=agents) as rt:
        session = await rt.session("s", agent="p")
        assert await session.ask("go", timeout=40) == "done"
        assert len(child.requests) == 3, "a reply that does not match is requested again, at most twice"
        [started] = [row.record for row in await session.journal() if isinstance(row.record, ChildRegistered)]
        assert (await rt.get_session(started.child).usage()).calls == 3


class CostlyShop(ToolProvider):
    """A provider whose tool has a schema that can cost more than the budget."""

    def tool_manifests(self) -> Sequence[ToolManifest]:
        return (ToolManifest(name="buy", description="Buy."),)

    def resolve_manifest(self, name: str) -> ToolManifest | None:
        return self.tool_manifests()[0] if name == "buy" else None

    def resolve_contract(self, name: str) -> ToolContract | None:
        manifest = self.resolve_manifest(name)
        return manifest.contract(COSTLY) if manifest else None

    async def execute(self, name: str, args: Json, ctx: ToolContext[object]) -> object:
        raise ToolError("must not run")


async def test_s4_arguments_that_cannot_be_checked_fail_the_call(new_store: NewStore) -> None:
    model = ScriptedModel(call("buy", **nested(40)), say("done", exact=True))
    async with Runtime(new_store(), agents=[Agent("a", model=model, tools=[CostlyShop()])]) as rt:
        session = await rt.session("s", agent="a")
        assert await session.ask("go", timeout=20) == "done"
        [told] = await outputs(session)
        assert "invalid_tool_args" in str(told)
        assert "0.5 s of CPU time" in str(told)
        assert [row.kind for row in await session.journal()].count("effect_started") == 2, "two model calls, no tool"
