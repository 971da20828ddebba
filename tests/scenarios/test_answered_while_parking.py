"""No wake is lost between looking and parking: whatever a turn waits for is answered exactly there, on every store."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias, cast

import pytest

from perdure import Agent, ProcessContext, Runtime, RuntimeOptions, Session, ToolContext, process, tool
from perdure.codec import Json
from perdure.commit.plan import Plan, Receipt
from perdure.effects.promises import ProcessScope, unsigned_key
from perdure.ids import EffectId, PromiseId, Tenant
from perdure.models.scripted import ScriptedModel, call, say
from perdure.processes.record import PendingSignals
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.worker.waits import Waits
from perdure.store.memory.store import MemoryStore
from perdure.store.protocol import Store
from perdure.store.shapes import StreamInfo
from perdure.tools.client_side import ask_user, client_tool
from perdure.tools.toolbox import ToolSource
from perdure.vocab.outcomes import PendingCompletion
from perdure.vocab.promises import Ok, ProcessSignal, PromiseState
from perdure.vocab.records import ProcessEvent
from tests.scenarios.conftest import NewStore
from tests.scenarios.test_bodies import HURRIED, outputs

SURE: Json = {"id": "sure", "question": "Are you sure?", "kind": "choice", "options": ["yes", "no"]}


class AnsweredWhileParking:
    """A store that receives a resolution exactly between the owner's last poll and its parking.

    It keeps what the owner is told, and how its stream stands right after that: later nobody could tell an owner that
    goes on from one that gave up and was woken.
    """

    def __init__(self, store: Store, answer: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._answer = answer
        self.parkings: list[tuple[Receipt, StreamInfo | None, int]] = []

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    def append(self, plan: Plan) -> Awaitable[Receipt]:
        return asyncio.ensure_future(self._late(plan)) if plan.parked else self._store.append(plan)

    async def _late(self, plan: Plan) -> Receipt:
        if not self.parkings:
            await self._answer()
        receipt = await self._store.append(plan)
        woken = len(await self._store.inbox(plan.stream))
        self.parkings.append((receipt, await self._store.stream(plan.stream), woken))
        return receipt


Answer: TypeAlias = Callable[[Session], Awaitable[object]]
"""What somebody does who has the store and knows the session: it is "yes", however that is said."""


def completion_key() -> tuple[ToolSource, Answer]:
    keys: list[str] = []

    @tool
    async def wait(ctx: ToolContext) -> PendingCompletion:
        """Wait."""
        keys.append((await ctx.completion_key()).text)
        return ctx.pending()

    return wait, lambda session: ref_of(session).runtime.resolve(keys[0], "yes")


def event() -> tuple[ToolSource, Answer]:
    @tool(effect="resumable")
    async def wait(ctx: ToolContext) -> object:
        """Wait."""
        return await ctx.wait_for_event("answer")

    return wait, lambda session: session.resolve("answer", "yes")


async def only_pending(session: Session) -> str:
    [item] = await session.pending()
    return item.id


def client_call() -> tuple[ToolSource, Answer]:
    async def post(session: Session) -> None:
        await session.post_result(await only_pending(session), "yes")

    return client_tool("wait", "Wait.", {"type": "object"}, result_type={"type": "string"}), post


def question() -> tuple[ToolSource, Answer]:
    async def say_so(session: Session) -> None:
        await session.answer(await only_pending(session), {"sure": "yes"}, by="ann")

    return ask_user, say_so


def approval() -> tuple[ToolSource, Answer]:
    @tool(needs_approval=True)
    async def wait() -> str:
        """Wait."""
        return "yes"

    async def approve(session: Session) -> None:
        [asked] = await ref_of(session).runtime.approvals.list()
        await ref_of(session).runtime.approvals.approve(asked.id, by="ann")

    return wait, approve


class AnsweredWhileLooking:
    """A store that receives a resolution between an owner's first poll and its wait: the reply to the poll is stale.

    Nobody else looks later: the owner is told of the answer while it looks, and never again.
    """

    def __init__(self, store: Store, answer: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._answer: Callable[[], Awaitable[object]] | None = answer

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    async def peek(self, promise: PromiseId) -> PromiseState | None:
        known = await self._store.peek(promise)
        waits = sys._getframe(1).f_code.co_name == "_known"  # pyright: ignore[reportPrivateUsage] - the waiters
        if waits and self._answer is not None and known is None:
            answer, self._answer = self._answer, None
            await answer()
        return known


async def test_resolution_between_first_poll_and_wait_resumes_the_turn(new_store: NewStore) -> None:
    source, answer = event()
    runtimes: list[Runtime] = []
    store = AnsweredWhileLooking(new_store(), lambda: answer(runtimes[0].get_session("s")))
    agent = Agent("a", model=ScriptedModel(call("wait"), say("ok")), tools=[source])
    async with Runtime(cast(Store, store), agents=[agent], options=RuntimeOptions(idle_timeout_s=600)) as rt:
        runtimes.append(rt)
        session = await rt.session("s", agent="a")
        assert (await (await session.send("go")).result(20)).status == "finished"
        assert outputs(await session.messages()) == ["yes"]


@pytest.mark.parametrize("kind", [completion_key, event, client_call, question, approval])
async def test_an_answer_between_looking_and_parking_is_not_lost(
    kind: Callable[[], tuple[ToolSource, Answer]], new_store: NewStore
) -> None:
    source, answer = kind()
    asked = call("ask_user", questions=[SURE]) if source is ask_user else call("wait")
    async with Runtime(new_store(), worker=False) as outside:  # nothing in the owner's memory tells it of the answer
        store = AnsweredWhileParking(new_store(), lambda: answer(outside.get_session("s")))
        agent = Agent("a", model=ScriptedModel(asked, say("ok")), tools=[source])
        async with Runtime(cast(Store, store), agents=[agent], options=HURRIED) as rt:
            session = await rt.session("s", agent="a")
            assert (await (await session.send("go")).result(20)).status == "finished"
            [output] = outputs(await session.messages())
            fences = {info.fence for info in await core_of(rt).session_streams()}
    assert output == "yes" or output["answers"]["sure"]["value"] == "yes"
    [(receipt, after, in_inbox)] = store.parkings
    assert [type(resolution) for _, resolution in receipt.resolved] == [Ok]
    assert after is not None
    assert (after.active, after.parked, after.owner is None, in_inbox) == (True, False, False, 0)
    assert fences == {after.fence}, "the stream was released and claimed again"


class SignalledBeforeTheWaitIsDurable:
    """A store in which a signal comes just before the record of the wait for it: its owner waits already, and is told
    of it by the receipt of that record.
    """

    def __init__(self, store: Store, signal: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._signal: Callable[[], Awaitable[object]] | None = signal
        self._in_order = asyncio.Lock()
        self.missed: list[str] = []

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    def append(self, plan: Plan) -> Awaitable[Receipt]:
        return asyncio.ensure_future(self._append(plan))

    async def _append(self, plan: Plan) -> Receipt:
        async with self._in_order:
            waited_for = any(b"p/signal:say:1" in entry.data for entry in plan.entries)
            if waited_for and self._signal is not None:
                signal, self._signal = self._signal, None
                await signal()
            receipt = await self._store.append(plan)
            self.missed += [row.kind for row in receipt.missed]
            return receipt


async def test_signal_recorded_before_parking_is_not_lost(new_store: NewStore) -> None:
    runtimes: list[Runtime] = []

    @process
    async def hears(ctx: ProcessContext) -> object:
        try:
            return await ctx.wait_for_signal("say")
        finally:  # it is put aside: meanwhile its worker looks at the inbox, and uses up the wake that it finds
            core_of(runtimes[0]).notify_streams((runtimes[0].processes.from_json("p").stream,))
            await asyncio.sleep(0.05)

    async with Runtime(new_store(), worker=False) as outside:
        signal = outside.processes.from_json("p").signal
        store = SignalledBeforeTheWaitIsDurable(new_store(), lambda: signal("say", "yes", id="1"))
        async with Runtime(cast(Store, store), processes=[hears], options=HURRIED) as rt:
            runtimes.append(rt)
            started = await rt.start(hears, id="p")
            assert await started.result(10) == "yes"
    assert "process_event" in store.missed


async def test_wait_with_a_pending_signal_is_not_parked() -> None:
    owner, signals = EffectId("p"), PendingSignals()
    waits = Waits(MemoryStore(SystemClock()), SystemClock(), lambda: None, signals)
    scope = ProcessScope(Tenant("default"), "p").id
    key = unsigned_key(scope, ProcessSignal(process_id="p", name="say", ordinal=1))
    waiter = asyncio.create_task(waits.until(owner, key, None))
    while not waits.waiting(owner):  # noqa: ASYNC110 - no notification
        await asyncio.sleep(0)
    signals.fold(ProcessEvent(event="signal.say", payload="yes", replay="1"))
    waits.hand_out()
    assert not waits.waiting(owner)
    assert await waiter == Ok(value="yes")
