"""What a tool reaches around its session: it opens others, speaks to them, waits for them and reads them."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from perdure import Agent, Runtime, ToolContext, ToolError, tool
from perdure.codec import Json
from perdure.ids import CallId, SessionId, TurnId
from perdure.models.scripted import ScriptedModel, call, say
from perdure.services.subagents import SpawnClaimed, SpawnPendingChild, SpawnRunning, SpawnSettled
from perdure.tools.decorator import AnyTool
from perdure.tools.services import IdleStatus
from perdure.vocab.messages import Message, Text, ToolResult
from tests.scenarios.conftest import NewStore


def house(new_store: NewStore, work: AnyTool, **writers: ScriptedModel) -> AbstractAsyncContextManager[Runtime]:
    chief = Agent("chief", model=ScriptedModel(call(work.name), say("done", exact=True)), tools=[work])
    agents = [Agent(name, model=model) for name, model in writers.items()]
    return Runtime(new_store(), agents=[chief, *agents])


def results(messages: tuple[Message, ...]) -> list[Json]:
    return [part.output for message in messages for part in message.parts if isinstance(part, ToolResult)]


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [part.text for message in messages for part in message.parts if isinstance(part, Text)]


async def asked(rt: Runtime) -> Json:
    session = await rt.session("s", agent="chief")
    await session.ask("go", timeout=30)
    (result,) = results(await session.history())
    return result


@tool(effect="idempotent")
async def delegate(ctx: ToolContext) -> Json:
    """Have it written by somebody."""
    platform = ctx.platform_store
    made = await platform.create_session("writer", session_id="child", title="About tea")
    again = await platform.create_session("writer", session_id="child")
    await platform.send_message("child", "Write about tea", key=ctx.idempotency_key)
    await platform.send_message("child", "Write about tea", key=ctx.idempotency_key)
    status = await platform.wait_for_idle("child", 30)
    said = await platform.get_messages("child")
    last = await platform.get_messages("child", 1)
    found = await platform.get_session_by_id("child")
    return {
        "made": [made.id, made.agent, made.title, again.id],
        "status": status,
        "said": texts(said),
        "last": texts(last),
        "found": found is not None and found.title,
        "missing": await platform.get_session_by_id("nobody") is None,
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
    platform = ctx.platform_store
    told: list[str] = []
    await platform.create_session("writer", session_id="child")
    for attempt in (
        lambda: platform.create_session("nobody"),
        lambda: platform.create_session("chief", session_id="child"),
        lambda: platform.send_message("nowhere", "hello"),
        lambda: platform.get_messages("nowhere"),
        lambda: platform.wait_for_idle("nowhere"),
        lambda: platform.wait_for_idle(ctx.session_id),
    ):
        try:
            await attempt()
        except ToolError as problem:
            told.append(str(problem.code))
    return told


async def test_what_cannot_be_done_is_told_with_its_code(new_store: NewStore) -> None:
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
        await ctx.platform_store.create_session("writer", session_id="child")
        await ctx.platform_store.send_message("child", "Write", key="k")
        return await ctx.platform_store.wait_for_idle("child", wait)

    async with house(new_store, waits, writer=model) as rt:
        assert await asked(rt) == status
        await rt.existing("child").cancel()


async def test_a_paused_session_is_not_waited_for(new_store: NewStore) -> None:
    @tool(effect="idempotent")
    async def waits(ctx: ToolContext) -> Json:
        """Wait for it."""
        return await ctx.platform_store.wait_for_idle("child", 30)

    async with house(new_store, waits, writer=ScriptedModel(say("hi"))) as rt:
        child = await rt.session("child", agent="writer")
        await child.ask("hello", timeout=30)
        await child.pause()
        await child.send("more")
        assert await asked(rt) == "paused"


# --- starting a child in a way of one's own


@tool(effect="idempotent")
async def spawn(ctx: ToolContext) -> Json:
    """Start a session, once for this call: claim, register, settle."""
    spawns, platform, told = ctx.subagent_spawn_store, ctx.platform_store, list[str]()
    for token in ("one", "two", "three", "four"):
        claim = await spawns.try_claim_spawn(ctx.session_id, ctx.tool_call_id, "writer", "Tea", token)
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
                await spawns.settle_spawn(ctx.session_id, ctx.tool_call_id, held, status, answer)
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
    ctx: ToolContext[object] = ToolContext(
        session_id=SessionId("s"), turn_id=TurnId("t"), call_id=CallId("c"), tool_name="x"
    )  # fmt: skip
    with pytest.raises(ToolError, match="Platform store not available"):
        _ = ctx.platform_store
    with pytest.raises(ToolError, match="Subagent spawn store not available"):
        _ = ctx.subagent_spawn_store
