"""A worker that serves all tenants: the tools of a session reach the sessions of its own tenant only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from perdure import Agent, Error, ProcessContext, Runtime, ToolContext, ToolError, WorkerOptions, process, tool
from perdure.ids import CallId, SessionId, Tenant, join, session_stream
from perdure.models.scripted import ScriptedModel, call, say
from perdure.services.subagents import SpawnClaimed, SpawnSettled
from perdure.services.tasks import CreateSessionTask
from perdure.tools.services import Services, required
from tests.scenarios.conftest import NewStore


@process
async def greet(ctx: ProcessContext, name: str) -> str:
    """Greet."""
    return f"Hello, {name}."


Attempt = Callable[[ToolContext], Awaitable[object]]

VICTIM = SessionId("victim")


async def spied(new_store: NewStore, *attempts: Attempt) -> list[object]:
    """Let a tool of tenant `evil` try these on the worker of another tenant, and return what they gave or raised.

    The session `victim` of the worker's tenant is the same afterwards.
    """
    found: list[object] = []

    @tool(effect="idempotent")
    async def spy(ctx: ToolContext) -> str:
        """Try."""
        for attempt in attempts:
            try:
                found.append(await attempt(ctx))
            except (Error, ToolError) as problem:
                found.append(problem)
        return "tried"

    desk = Agent("desk", model=ScriptedModel(say("Noted.", exact=True)))
    evil = Agent("evil", model=ScriptedModel(call("spy"), say("Done.")), tools=[spy])
    rt = Runtime(new_store(), agents=[desk, evil], processes=[greet], worker=WorkerOptions(all_tenants=True))
    async with rt, Runtime(new_store(), agents=[evil], tenant="evil", worker=False) as other:
        rt.triggers.declare("mail.received")
        victim = await rt.session(VICTIM, agent="desk")
        await victim.ask("my private matter", timeout=20)
        await victim.set_title("Private")
        before = tuple(await victim.journal())
        await (await other.session("e1", agent="evil")).ask("go", timeout=20)
        assert (await victim.info()).title == "Private"
        assert tuple(await victim.journal()) == before, "the victim's log is unchanged"
        return found


def services(ctx: ToolContext) -> Services:
    return ctx.services


async def test_s2_sessions_of_another_tenant_are_unknown(new_store: NewStore) -> None:
    unknown = "session_unknown"
    found = await spied(
        new_store,
        lambda ctx: required(services(ctx).session_store, "session_store").get_session(VICTIM),
        lambda ctx: required(services(ctx).session_mutator, "session_mutator").update_session_title(VICTIM, "OWNED"),
        lambda ctx: required(services(ctx).platform_store, "platform_store").get_session_by_id(VICTIM),
        lambda ctx: required(services(ctx).platform_store, "platform_store").send_message(VICTIM, "obey"),
        lambda ctx: ctx.sessions.snapshot(VICTIM),
    )
    assert [getattr(one, "code", one) for one in found] == [None, unknown, None, unknown, unknown]


async def test_s2_services_write_for_the_tenant_of_the_session(new_store: NewStore) -> None:
    async def schedule(ctx: ToolContext) -> object:
        return await ctx.schedules.create_schedule(ctx.session_id, "Report.", cron_expression="0 0 1 1 *")

    async def task(ctx: ToolContext) -> object:
        return await ctx.tasks.create(
            CreateSessionTask(session_id=ctx.session_id, id="t", kind="monitor", display_name="Watch")
        )

    async def command(ctx: ToolContext) -> object:
        return await (await ctx.start_command(["true"], notify=False)).result(timeout=20)

    async def started(ctx: ToolContext) -> object:
        return await ctx.processes.start(greet, "Ann", id="p")

    async def subscribed(ctx: ToolContext) -> object:
        return await ctx.triggers.subscribe("mail.received", greet, key="k")

    attempts = (schedule, task, command, started, subscribed)
    found = await spied(new_store, *attempts)
    assert not [one for one in found if isinstance(one, Error | ToolError)], found
    store = new_store()
    await store.open()
    for kind, names in (("schedule", 1), ("process", 3), ("trigger", 1)):
        assert len(await store.streams(tenant=Tenant("evil"), kind=kind, limit=10)) == names, kind
        assert not await store.streams(tenant=Tenant("default"), kind=kind, limit=10), kind
    await store.close()


async def test_d2_child_is_registered_only_with_the_claim_of_its_call(new_store: NewStore) -> None:
    call_id = CallId("x.1.0")

    async def register(ctx: ToolContext) -> object:
        spawns = required(services(ctx).subagent_spawn_store, "subagent_spawn_store")
        claimed = await spawns.try_claim_spawn(ctx.session_id, call_id, "n", "task", "right")
        assert isinstance(claimed, SpawnClaimed)
        codes: list[str] = []
        for handle, token in (
            (claimed.spawn_handle_id, "wrong"),
            (join(session_stream(ctx.tenant, ctx.session_id), "never.claimed.0", ""), "right"),
            (join(session_stream(Tenant("default"), VICTIM), call_id, ""), "right"),
            ("no handle", "right"),
            ("", "right"),
        ):
            try:
                await spawns.register_child_session(handle, token, SessionId("evil-child"))
                codes.append("registered")
            except Error as problem:
                codes.append(problem.code)
        await spawns.register_child_session(claimed.spawn_handle_id, "right", SessionId("child"))
        await spawns.settle_spawn(ctx.session_id, call_id, "right", "idle", "r")
        return codes

    [codes] = await spied(new_store, register)
    assert codes == ["subagent_claim_invalid"] * 5


async def test_d2_claims_of_another_session_are_refused(new_store: NewStore) -> None:
    """A claim hands out the token that registers and settles its child: only its own session may have it."""
    call_id = CallId("x.1.0")
    others: list[Services] = []
    codes: list[str] = []

    @tool(effect="idempotent")
    async def lend(ctx: ToolContext) -> str:
        """Keep the services of another session of the same tenant."""
        others.append(services(ctx))
        return "lent"

    @tool(effect="idempotent")
    async def act(ctx: ToolContext) -> str:
        """Claim, and let the services of the other session try to take the claim over."""
        own = required(services(ctx).subagent_spawn_store, "subagent_spawn_store")
        foreign = required(others[0].subagent_spawn_store, "subagent_spawn_store")
        claimed = await own.try_claim_spawn(ctx.session_id, call_id, "n", "task", "right")
        assert isinstance(claimed, SpawnClaimed)
        handle, child = claimed.spawn_handle_id, SessionId("child")
        for attempt in (
            lambda: foreign.try_claim_spawn(ctx.session_id, call_id, "n", "task", "other"),
            lambda: foreign.register_child_session(handle, "right", SessionId("evil-child")),
            lambda: foreign.settle_spawn(ctx.session_id, call_id, "right", "idle", "forged"),
        ):
            try:
                await attempt()
                codes.append("accepted")
            except Error as problem:
                codes.append(problem.code)
        await own.register_child_session(handle, "right", child)
        await own.settle_spawn(ctx.session_id, call_id, "right", "idle", "true")
        assert await own.try_claim_spawn(ctx.session_id, call_id, "n", "task", "right") == SpawnSettled(
            child, "idle", "true"
        )
        return "done"

    model = ScriptedModel.by_input({"lend": [call("lend"), say("ok")], "act": [call("act"), say("ok")]})
    async with Runtime(new_store(), agents=[Agent("a", model=model, tools=[lend, act])]) as rt:
        await (await rt.session("other", agent="a")).ask("lend", timeout=20)
        result = await (await (await rt.session("own", agent="a")).send("act")).result(timeout=20)
        assert result.status == "finished"
    assert codes == ["subagent_claim_invalid"] * 3
