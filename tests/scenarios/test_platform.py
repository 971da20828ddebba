"""The platform store of a tool: open other sessions, send to them, wait for them and read them."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from perdure import Agent, Runtime, ToolContext, ToolError, client_tool, tool
from perdure.codec import Json
from perdure.compat.seeds import SeedToolContext
from perdure.models.scripted import ScriptedModel, call, say
from perdure.services.subagents import SpawnClaimed, SpawnPendingChild, SpawnRunning, SpawnSettled
from perdure.testing import tool_context
from perdure.tools.decorator import AnyTool
from perdure.tools.services import IdleStatus
from perdure.vocab.messages import Message, Text, ToolResultPart
from tests.scenarios.conftest import NewStore


def house(new_store: NewStore, work: AnyTool, **writers: ScriptedModel) -> AbstractAsyncContextManager[Runtime]:
    chief = Agent("chief", model=ScriptedModel(call(work.name), say("done", exact=True)), tools=[work])
    agents = [Agent(name, model=model) for name, model in writers.items()]
    return Runtime(new_store(), agents=[chief, *agents])


def results(messages: tuple[Message, ...]) -> list[Json]:
    return [part.output for message in messages for part in message.parts if isinstance(part, ToolResultPart)]


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [part.text for message in messages for part in message.parts if isinstance(part, Text)]


async def asked(rt: Runtime) -> Json:
    session = await rt.session("s", agent="chief")
    await session.ask("go", timeout=30)
    (result,) = results(await session.messages())
    return result


@tool(effect="idempotent")
async def delegate(ctx: ToolContext) -> Json:
    """Have it written by somebody."""
    child = ctx.sessions.get("child")
    made = await ctx.sessions.create("writer", id="child", title="About tea")
    again = await ctx.sessions.create("writer", id="child")
    await child.send("Write about tea", key=ctx.idempotency_key)
    await child.send("Write about tea", key=ctx.idempotency_key)
    status = await child.wait_for_idle(30)
    said = await child.messages()
    last = await child.messages(1)
    found = await child.info()
    return {
        "made": [made.id, made.agent, made.title, again.id],
        "status": status,
        "said": texts(said),
        "last": texts(last),
        "found": found is not None and found.title,
        "missing": await ctx.sessions.get("nobody").info() is None,
    }


async def test_a_tool_opens_a_session_speaks_to_it_and_reads_its_answer(new_store: NewStore) -> None:
    async with house(new_store, delegate, writer=ScriptedModel(say("Tea is hot", exact=True))) as rt:
        assert await asked(rt) == {
            "made": ["child", "writer", "About tea", "child"],
            "status": "idle",
            "said": ["Write about tea", "Tea is hot"],
            "last": ["Tea is hot"],
            "found": "About tea",
            "missing": True,
        }


@tool(effect="idempotent")
async def refused(ctx: ToolContext) -> Json:
    """Ask for what cannot be."""
    nowhere, told = ctx.sessions.get("nowhere"), list[str]()
    await ctx.sessions.create("writer", id="child")
    for attempt in (
        lambda: ctx.sessions.create("nobody"),
        lambda: ctx.sessions.create("chief", id="child"),
        lambda: nowhere.send("hello"),
        lambda: nowhere.messages(),
        lambda: nowhere.wait_for_idle(),
        lambda: ctx.sessions.get(ctx.session_id).wait_for_idle(),
    ):
        try:
            await attempt()
        except ToolError as problem:
            told.append(str(problem.code))
    return told


async def test_refused_operations_have_codes(new_store: NewStore) -> None:
    async with house(new_store, refused, writer=ScriptedModel(say("hi"))) as rt:
        assert await asked(rt) == [
            "agent_unknown",
            "session_agent_conflict",
            "session_unknown",
            "session_unknown",
            "session_unknown",
            "session_is_own",
        ]


@pytest.mark.parametrize(
    ("model", "wait", "status"),
    [
        (ScriptedModel(say("slow", latency_ms=600_000)), 0.0, "timeout"),
        (ScriptedModel(), 30.0, "error"),
    ],
)
async def test_waiting_tells_how_a_session_rests(
    new_store: NewStore, model: ScriptedModel, wait: float, status: IdleStatus
) -> None:
    @tool(effect="idempotent")
    async def waits(ctx: ToolContext) -> Json:
        """Wait for it."""
        await ctx.sessions.create("writer", id="child")
        await ctx.sessions.get("child").send("Write", key="k")
        return await ctx.sessions.get("child").wait_for_idle(wait)

    async with house(new_store, waits, writer=model) as rt:
        assert await asked(rt) == status
        await rt.get_session("child").cancel()


async def test_a_paused_session_is_not_waited_for(new_store: NewStore) -> None:
    @tool(effect="idempotent")
    async def waits(ctx: ToolContext) -> Json:
        """Wait for it."""
        return await ctx.sessions.get("child").wait_for_idle(30)

    async with house(new_store, waits, writer=ScriptedModel(say("hi"))) as rt:
        child = await rt.session("child", agent="writer")
        await child.ask("hello", timeout=30)
        await child.pause()
        await child.send("more")
        assert await asked(rt) == "paused"


async def test_session_with_a_client_side_call_has_the_status_of_the_seed(new_store: NewStore) -> None:
    @tool(effect="idempotent")
    async def waits(ctx: ToolContext) -> Json:
        """Wait for it."""
        await ctx.sessions.create("writer", id="child")
        await ctx.sessions.get("child").send("Where am I?", key="k")
        return await ctx.sessions.get("child").wait_for_idle(30)

    where = client_tool("where_am_i", "Where the person is.", {"type": "object", "properties": {}})
    chief = Agent("chief", model=ScriptedModel(call("waits"), say("done")), tools=[waits])
    writer = Agent("writer", model=ScriptedModel(call("where_am_i"), say("here")), tools=[where])
    async with Runtime(new_store(), agents=[chief, writer]) as rt:
        assert await asked(rt) == "waiting_for_tool_results"
        assert (await rt.get_session("child").why()).status == "waiting"
        await rt.get_session("child").cancel()


# --- starting a child in a way of one's own


@tool(effect="idempotent")
async def spawn(ctx: ToolContext) -> Json:
    """Start a session, once for this call: claim, register, settle."""
    spawns, platform, told = ctx.services.subagent_spawn_store, ctx.services.platform_store, list[str]()
    assert spawns is not None
    assert platform is not None
    for token in ("one", "two", "three", "four"):
        claim = await spawns.try_claim_spawn(ctx.session_id, ctx.call_id, "writer", "Tea", token)
        told.append(type(claim).__name__)
        match claim:
            case SpawnClaimed():
                continue  # as if the worker had died here
            case SpawnPendingChild(spawn_handle_id=handle, claim_token=held):
                child = await platform.create_session("writer", session_id=f"child-{held}")
                await spawns.register_child_session(handle, held, child.id)
                await platform.send_message(child.id, "Tea", key=handle)
            case SpawnRunning(child_session_id=child_id, claim_token=held):
                status = await platform.wait_for_idle(child_id, 30)
                (answer,) = texts(await platform.get_messages(child_id, 1))
                await spawns.settle_spawn(ctx.session_id, ctx.call_id, held, status, answer)
            case SpawnSettled(child_session_id=child_id, terminal_status=status, terminal_result=answer):
                told += [child_id, status, answer]
    return told


async def test_a_tool_claims_registers_and_settles_a_child_of_its_own(new_store: NewStore) -> None:
    async with house(new_store, spawn, writer=ScriptedModel(say("Tea is hot", exact=True))) as rt:
        assert await asked(rt) == [
            "SpawnClaimed",
            "SpawnPendingChild",
            "SpawnRunning",
            "SpawnSettled",
            "child-one",
            "idle",
            "Tea is hot",
        ]


def test_a_context_without_them_says_so() -> None:
    ctx = SeedToolContext(tool_context("x"))
    with pytest.raises(ToolError, match="Platform store not available"):
        _ = ctx.platform_store
    with pytest.raises(ToolError, match="Subagent spawn store not available"):
        _ = ctx.subagent_spawn_store
