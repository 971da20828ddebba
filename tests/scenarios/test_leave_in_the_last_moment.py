"""Somebody's leave is gone in the very moment in which the call it allowed would begin: that call does not begin, and
nothing else changes: whoever is beside it runs, once, and the session stays where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure import Agent, Runtime, Session, tool
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.store.memory.store import MemoryStore
from perdure.store.protocol import Store
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.gated_store import AppendGate
from perdure.testing.validity import complaints
from perdure.tools.decorator import AnyTool
from perdure.vocab.records import EffectSettled, EffectStarted, OutcomeArrivedLate
from tests.scenarios.conftest import App, until
from tests.scenarios.test_approvals import asked, contradictions
from tests.scenarios.test_interrupting import codes
from tests.scenarios.verbs import Gate


def refunds(ran: list[str], timeout: str = "1d") -> AnyTool:
    @tool(needs_approval=True, approval_timeout=timeout)
    async def refund() -> str:
        """Refund."""
        ran.append("refund")
        return "refunded"

    return refund


def pays(ran: list[str]) -> AnyTool:
    @tool
    async def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    return pay


def runtime(store: Store, *tools: AnyTool) -> Runtime:
    first = [call("refund"), say("first", exact=True)]
    batch = [calls(call("pay"), call("refund")), say("done", exact=True)]
    return Runtime(store, agents=[Agent("a", model=ScriptedModel.by_input({"first": first, "go": batch}), tools=tools)])


def begins(what: str) -> bool:
    return "effect_started c1.1.1," in f"{what},"


async def granted(rt: Runtime) -> Session:
    """A session with a session-wide approval for refunds."""
    session = await rt.session("s", agent="a")
    sent = await session.send("first")
    (question,) = await asked(rt)
    await rt.approvals.approve(question.id, by="ana", for_session=True)
    assert (await sent.result(10)).text == "first"
    return session


async def owner(session: Session) -> tuple[object, int]:
    info = await ref_of(session).runtime.store.stream(ref_of(session).stream)
    assert info is not None
    return info.owner, info.fence


async def settled(session: Session) -> list[str]:
    return [row.record.id for row in await session.journal() if isinstance(row.record, EffectSettled)]


async def check(session: Session, told: list[object]) -> None:
    history = await session.messages()
    assert complaints(history) == []
    assert codes(history)[-2:] == told
    assert await contradictions(session) == ()
    assert not [row for row in await session.journal() if isinstance(row.record, OutcomeArrivedLate)]


async def test_a_grant_is_revoked_and_a_person_is_asked_instead(app: App) -> None:
    gate, ran = AppendGate(begins), list[str]()
    async with runtime(gate.guard(app.new_store()), pays(ran), refunds(ran)) as rt:
        session = await granted(rt)
        sent = await session.send("go")
        await gate.reached.wait()
        before = await owner(session)
        [grant] = await session.grants()
        await session.revoke_grant(grant.grant, by="bob")
        gate.release()
        (question,) = await asked(rt)
        await until(lambda: _holds(lambda: ran == ["refund", "pay"]))
        await rt.approvals.approve(question.id, by="bob")
        assert (await sent.result(10)).text == "done"
        assert await owner(session) == before, "the session kept its owner"
        assert ran == ["refund", "pay", "refund"]
        await check(session, ["paid", "refunded"])
        starts = [str(row.record.id) for row in await session.journal() if isinstance(row.record, EffectStarted)]
        assert starts.count("c1.1.1.approval") == 1, "a use that was refused is no use"


async def _holds(true: Callable[[], bool]) -> bool:
    return true()


async def test_an_approval_expires_and_what_runs_beside_it_ends_as_it_would(app: App) -> None:
    gate, ran, paying = AppendGate(begins), list[str](), Gate()
    async with runtime(gate.guard(app.new_store()), paying.pay, refunds(ran, "2s")) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go")
        (question,) = await asked(rt)
        await paying.entered.wait()
        await rt.approvals.approve(question.id, by="ana")
        await gate.reached.wait()
        before, due = await owner(session), question.until
        assert due is not None
        while (now := await core_of(rt).store.now()) <= due:  # noqa: ASYNC110 - the clock is the server's
            await asyncio.sleep((due - now + 1) / 1000)
        paying.go.set()
        await asyncio.sleep(0.05)  # so that it has ended, and what it gave waits behind what is being judged
        gate.release()
        assert (await sent.result(10)).text == "done"
        assert await owner(session) == before
        assert (ran, paying.world) == ([], ["pay ann"])
        await check(session, ["paid", "approval_expired"])


class Jumping(SystemClock):
    """The clock of a store, which is not that of its workers."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_approval_before_the_start_expires_by_the_store_clock(kind: str, tmp_path: Path) -> None:
    ran, clock, paying = list[str](), Jumping(), Gate()
    store = MemoryStore(clock) if kind == "memory" else SqliteStore(tmp_path / "s.db", clock)
    async with runtime(store, paying.pay, refunds(ran)) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go")
        (question,) = await asked(rt)
        await paying.entered.wait()
        await session.pause(by="maria")
        await rt.approvals.approve(question.id, by="ana")

        async def decided() -> bool:
            return any(one.endswith(".approval") for one in await settled(session))

        async def paid() -> bool:
            return "c1.0.1" in await settled(session)

        await until(decided)
        paying.go.set()
        await until(paid)  # or its worker would seem to have been away for two days in the middle of it
        clock.ahead_ms = 2 * 24 * 3_600_000
        await session.resume(by="maria")
        assert (await sent.result(10)).text == "done"
        assert (ran, paying.world) == ([], ["pay ann"])
        await check(session, ["paid", "approval_expired"])


async def test_the_turn_is_cancelled_and_what_never_began_is_not_in_doubt(app: App) -> None:
    gate, ran = AppendGate(begins), list[str]()
    async with runtime(gate.guard(app.new_store()), pays(ran), refunds(ran)) as rt:
        session = await granted(rt)
        sent = await session.send("go")
        await gate.reached.wait()
        assert await session.cancel() == "requested"
        gate.release()
        assert (await sent.result(10)).reason == "cancelled"
        assert ran == ["refund"]
        await check(session, ["cancelled", "cancelled"])
