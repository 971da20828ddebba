"""Ids that look alike, and one id in two tenants, never name the same thing; on every store."""

from __future__ import annotations

import asyncio
import unicodedata
from itertools import product

from perdure import Agent, ProcessContext, Runtime, ToolContext, WorkerOptions, process, tool
from perdure.ids import SessionId, Tenant, files_stream, session_stream
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import core_of
from perdure.services.tasks import CreateSessionTask
from perdure.vocab.messages import Text
from tests.scenarios.conftest import NewStore, until

ALIKE = (
    *(unicodedata.normalize(form, "café") for form in ("NFC", "NFD")),
    *("case", "Case", "CASE"),
    *("a", "a ", " a", "a\u200b", "\u0430"),  # the last one is Cyrillic
    *("a/b", "a%2Fb", "a%2fb", "a:b", "a%3Ab", "a%253Ab"),
    *("default:session:a", "..", "../a"),
)
TENANTS = (Tenant("acme"), Tenant("ACME"), Tenant("acme:session"), Tenant("acme%3Asession"))
EVERY = [(tenant, id) for tenant, id in product(TENANTS, ALIKE)]


@process
async def holds(ctx: ProcessContext, mine: str) -> str:
    """Wait for a signal."""
    await ctx.wait_for_signal("go")
    return mine


def mark(tenant: str, id: str) -> str:
    return ascii((tenant, id))


async def test_t_ten_03_alike_ids_name_different_things(new_store: NewStore) -> None:
    keys: dict[str, tuple[str, str]] = {}

    @tool(needs_approval=True)
    async def pay(ctx: ToolContext) -> str:
        """Pay."""
        assert keys.setdefault(ctx.idempotency_key, (ctx.tenant, ctx.session_id)) == (ctx.tenant, ctx.session_id)
        return mark(ctx.tenant, ctx.session_id)

    agent = Agent("a", model=ScriptedModel(call("pay"), say("paid")), tools=[pay])
    everywhere = WorkerOptions(all_tenants=True, concurrency=len(EVERY))
    async with Runtime(new_store(), agents=[agent], processes=[holds], worker=everywhere) as worker:
        store = core_of(worker).store
        approvals: list[str] = []
        for tenant in TENANTS:
            async with Runtime(new_store(), agents=[agent], processes=[holds], worker=False, tenant=tenant) as rt:
                for id in ALIKE:
                    mine = mark(tenant, id)
                    session = await rt.session(id, agent="a")
                    await session.send(mine, key="the same key")  # an input key is of its session
                    await session.set_title(mine)
                    await session.files.write_file("/mine.txt", mine)
                    await rt.start(holds, mine, id=id)
                    await rt.schedule(id, send=mine, session=id, cron="0 0 1 1 *")
                    task = CreateSessionTask(session_id=SessionId(id), id=f"t{id}", kind="monitor", display_name=mine)
                    await rt.tasks.create(task)
                    await asyncio.sleep(0)  # a memory store never waits: all would be one step

                async def asked(rt: Runtime = rt) -> bool:
                    return len(await rt.approvals.list(limit=100)) == len(ALIKE)

                await until(asked, seconds=60)
                questions = await rt.approvals.list(limit=100)
                assert sorted(one.session for one in questions) == sorted(ALIKE)
                approvals += [one.id for one in questions]
                for one in questions:
                    await rt.approvals.approve(one.id, by="ann")

                async def paid(rt: Runtime = rt) -> bool:
                    return all([(await rt.get_session(id).why()).status == "idle" for id in ALIKE])

                await until(paid, seconds=60)
                assert {one.id for one in await rt.list_sessions(limit=100)} == set(ALIKE)
        assert len(set(approvals)) == len(EVERY)
        assert sorted(keys.values()) == sorted(EVERY), "one idempotency key for each session"
        for tenant in TENANTS:
            async with Runtime(new_store(), agents=[agent], processes=[holds], worker=False, tenant=tenant) as rt:
                for id in ALIKE:
                    mine, session = mark(tenant, id), rt.get_session(id)
                    [said] = (await session.messages())[0].parts
                    assert isinstance(said, Text)
                    assert said.text == (await session.info()).title == mine
                    file = await session.files.read_file("/mine.txt")
                    assert file is not None
                    assert file.content == mine
                    assert ascii(mine) in ascii((await rt.get_process(id).info()).known.input)
                    assert ascii(mine) in ascii((await rt.schedules.get(id).info()).known.target)
                    [task] = await rt.tasks.list(SessionId(id))
                    assert task.display_name == mine
        streams = {of(tenant, SessionId(id)) for tenant, id in EVERY for of in (session_stream, files_stream)}
        assert len(streams) == 2 * len(EVERY)
        tenant, id = EVERY[0]
        assert await worker.get_session(id, tenant=tenant).delete()
        left = [(tenant, id) for tenant, id in EVERY if await store.stream(session_stream(tenant, SessionId(id)))]
        assert left == EVERY[1:], "deleting one leaves all others"
