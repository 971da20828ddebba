"""A store with late replies: nothing is done twice, and a drained worker keeps nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, cast

import pytest

from perdure import Agent, ProcessContext, Runtime, RuntimeOptions, Session, ToolContext, WorkerOptions, process, tool
from perdure.ids import StreamId
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.sessions.results import wait_for
from perdure.store.protocol import Store
from tests.scenarios.conftest import NewStore, until
from tests.scenarios.test_bodies import parked


class Late:
    """Does what it is asked for, and tells when it may: the first answer to one question of which `when` is true."""

    def __init__(self, store: Store, question: str, when: Callable[[object], bool] = bool) -> None:
        self._store = store
        self._question = question
        self._when = when
        self.done = asyncio.Event()
        self.tells = asyncio.Event()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            found = getattr(self._store, name)
            return self._late(found) if name == self._question else found

    def _late(self, ask: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def late(*args: object, **kwargs: object) -> object:
            answer = await ask(*args, **kwargs)
            if self._when(answer) and not self.done.is_set():
                self.done.set()
                await self.tells.wait()
            return answer

        return late

    @property
    def store(self) -> Store:
        return cast(Store, self)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@tool(effect="resumable")
async def wait(ctx: ToolContext) -> object:
    """Wait for an answer."""
    return await ctx.wait_for_event("answer")


async def is_free(rt: Runtime, stream: StreamId) -> None:
    """Wait until the stream has no owner, not even one with a lapsed lease."""

    async def nobodys() -> bool:
        info = await core_of(rt).store.stream(stream)
        return info is not None and info.owner is None

    await until(nobodys)


# --- work found before the reply to its claim


async def test_turn_started_before_its_admission_reply_runs_once(new_store: NewStore, stack: AsyncExitStack) -> None:
    late, model = Late(new_store(), "admit"), ScriptedModel(call("wait"), say("done", exact=True))
    agent = Agent("a", model=model, tools=[wait])
    rt = await stack.enter_async_context(Runtime(late.store, agents=[agent], options=RuntimeOptions(idle_timeout_s=0)))
    session = await rt.session("s", agent="a")
    sending = asyncio.create_task(session.send("go"))
    await late.done.wait()
    await parked(rt, session)
    late.tells.set()
    sent = await sending
    await session.resolve("answer", "yes")
    assert (await sent.result(20)).text == "done"
    assert len(model.requests) == 2


async def test_a_process_that_ended_before_its_starter_was_told_is_entered_once(
    new_store: NewStore, stack: AsyncExitStack
) -> None:
    entered: list[str] = []

    @process
    async def count(ctx: ProcessContext, who: str) -> str:
        entered.append(who)
        return "counted"

    late = Late(new_store(), "admit")
    rt = await stack.enter_async_context(Runtime(late.store, processes=[count]))
    starting = asyncio.create_task(rt.start(count, "ann", id="p"))
    await late.done.wait()
    assert await rt.get_process("p").result(timeout=20) == "counted"
    late.tells.set()
    handle = await starting
    assert await (await rt.start(count, "bob", id="q")).result(timeout=20) == "counted"
    assert (await handle.result(timeout=20), entered) == ("counted", ["ann", "bob"])


# --- a worker that drains meanwhile


async def leaving(
    stack: AsyncExitStack, late: Late, model: ScriptedModel, work: WorkerOptions | None = None
) -> Runtime:
    rt = Runtime(late.store, agents=[Agent("a", model=model, tools=[wait])], worker=work or True)
    return await stack.enter_async_context(rt)


async def sent_by_another(new_store: NewStore, stack: AsyncExitStack, text: str = "go") -> Session:
    agents = [Agent("a", model=ScriptedModel())]
    sender = await stack.enter_async_context(Runtime(new_store(), agents=agents, worker=False))
    session = await sender.session("s", agent="a")
    await session.send(text)
    return session


async def test_stream_claimed_by_scan_during_drain_is_released(new_store: NewStore, stack: AsyncExitStack) -> None:
    late = Late(new_store(), "claim_ready")
    rt = await leaving(stack, late, ScriptedModel(say("never")))
    session = await sent_by_another(new_store, stack)
    await late.done.wait()
    await rt.drain(0)
    late.tells.set()
    await is_free(rt, ref_of(session).stream)


async def test_stream_claimed_by_admission_during_drain_is_released(new_store: NewStore, stack: AsyncExitStack) -> None:
    late = Late(new_store(), "admit")
    rt = await leaving(stack, late, ScriptedModel(say("never")), WorkerOptions(concurrency=1))
    session = await rt.session("s", agent="a")
    sending = asyncio.create_task(session.send("go"))
    await late.done.wait()
    await rt.drain(0)
    late.tells.set()
    await sending
    await is_free(rt, ref_of(session).stream)


async def test_stream_claimed_after_drain_is_released(new_store: NewStore, stack: AsyncExitStack) -> None:
    async with Runtime(new_store(), agents=[Agent("a", model=ScriptedModel(say("hello")))]) as before:
        await (await before.session("s", agent="a")).ask("hello")
    late = Late(new_store(), "claim")
    rt = await leaving(stack, late, ScriptedModel(say("never")))
    session = await rt.session("s")
    await session.send("go", mode="interrupt")
    await late.done.wait()
    await rt.drain(0)
    late.tells.set()
    await is_free(rt, ref_of(session).stream)


async def test_turn_taken_over_during_drain_is_finished_by_others(new_store: NewStore, stack: AsyncExitStack) -> None:
    asked = asyncio.Event()

    @tool(effect="idempotent")
    async def hang() -> None:
        """Hang."""
        asked.set()
        await asyncio.Event().wait()

    first = Agent("a", model=ScriptedModel(call("hang"), say("never")), tools=[hang])
    async with Runtime(new_store(), agents=[first]) as before:
        sent = await (await before.session("s", agent="a")).send("go")
        await asked.wait()
        await before.drain(0)
    late = Late(new_store(), "load")
    rt = await leaving(stack, late, ScriptedModel(say("never")))
    await late.done.wait()
    await rt.drain(0)
    late.tells.set()
    await is_free(rt, ref_of(sent.session).stream)

    @tool(name="hang", effect="idempotent")
    async def goes_on() -> None:
        """Go on."""

    last = Agent("a", model=ScriptedModel(say("never"), say("done", exact=True)), tools=[goes_on])
    other = await stack.enter_async_context(Runtime(new_store(), agents=[last]))
    assert (await wait_for(ref_of(other.get_session("s")), sent.turn_id)).text == "done"


async def test_slot_request_refused_after_drain_is_withdrawn(new_store: NewStore, stack: AsyncExitStack) -> None:
    late = Late(new_store(), "exchange", when=lambda granted: not granted)
    rt = await leaving(
        stack, late, ScriptedModel(call("wait"), say("never")), WorkerOptions(limits={"queue:default": 1})
    )
    sitting = await rt.session("sits", agent="a")
    await sitting.send("go")

    async def sits() -> bool:
        return [one.granted for one in await core_of(rt).store.permits()] == [True]

    await until(sits)
    await sent_by_another(new_store, stack)
    await late.done.wait()
    await rt.drain(0)
    late.tells.set()

    async def nobody_waits() -> bool:
        return await core_of(rt).store.permits() == ()

    await until(nobody_waits)
