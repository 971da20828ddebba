"""Approvals under real SIGKILLs at every boundary, and under decisions from many processes at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from perdure import Agent, Code, Error, Runtime, RuntimeOptions, ToolContext, tool
from perdure.models.scripted import ScriptedModel, call, say
from perdure.observe.pending import PendingDecision
from perdure.store.protocol import Store
from perdure.testing import World, every_boundary
from tests.crash.harness import processes

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

HURRIED = RuntimeOptions(idle_timeout_s=0.0)


def bank(store: Store, world: World) -> Runtime:
    @tool(needs_approval=True)
    async def refund(ctx: ToolContext, cents: int) -> str:
        """Refund."""
        world.note("refund", key=ctx.idempotency_key, cents=cents)
        return "refunded"

    agent = Agent("bank", model=ScriptedModel(call("refund", cents=5), say("done")), tools=[refund])
    return Runtime(store, agents=[agent], options=HURRIED)


async def ask_and_approve(rt: Runtime) -> None:
    session = await rt.session("customer", agent="bank")
    sent = await session.send("Refund it", key="order-7")
    result = asyncio.ensure_future(sent.result(20))
    while not result.done():
        for question in await rt.approvals.list():
            try:
                await rt.approvals.approve(question.id, by="ana")
            except Error as problem:
                if problem.code is not Code.APPROVAL_ALREADY_DECIDED:
                    raise
        await asyncio.wait({result}, timeout=0.02)
    assert result.result().text.startswith("done")


@pytest.mark.slow
def test_an_approved_call_happens_once_wherever_the_process_dies() -> None:
    crashes = every_boundary(bank, ask_and_approve, mode="sqlite")
    assert len(crashes) > 10


FACTS = [
    "after effect_started c1.0.1.approval",
    "before resolve",
    "after resolve",
    "before effect_settled c1.0.1.approval",
    "after effect_settled c1.0.1.approval",
    "before effect_settled c1.0.1,",
    "before turn_ended",
]


@pytest.mark.parametrize("on", ["sqlite", "postgres"])
def test_the_same_killed_for_real(on: str, request: pytest.FixtureRequest) -> None:
    url = str(request.getfixturevalue("postgres_url")) if on == "postgres" else None
    every_boundary(bank, ask_and_approve, mode="kill", url=url, timeout_s=60, at=FACTS)


# --- sixty-four decisions from four processes


def decide_often(url: str, id: str, who: str, report: str) -> None:
    async def one(rt: Runtime, n: int) -> dict[str, str]:
        try:
            decision = await rt.approvals.approve(id, by=f"{who}-{n}")
        except Error as problem:
            return {"code": problem.code.value, "message": problem.message}
        return {"code": "", "message": decision.by}

    async def main() -> list[dict[str, str]]:
        async with Runtime(url, worker=False) as rt:
            return await asyncio.gather(*(one(rt, n) for n in range(16)))

    Path(report).write_text(json.dumps(asyncio.run(main())))


async def waiting(rt: Runtime) -> PendingDecision:
    async with asyncio.timeout(20):
        while not (found := await rt.approvals.list()):  # noqa: ASYNC110 - it is asked by a worker of another task
            await asyncio.sleep(0.01)
    return found[0]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_sixty_four_decisions_one_effect(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"sqlite:///{tmp_path / 's.db'}" if store == "sqlite" else str(request.getfixturevalue("postgres_url"))
    paid: list[int] = []

    @tool(needs_approval=True)
    async def refund(cents: int) -> str:
        """Refund."""
        paid.append(cents)
        return "refunded"

    agent = Agent("bank", model=ScriptedModel(call("refund", cents=5), say("done")), tools=[refund])
    async with Runtime(url, agents=[agent], options=HURRIED) as rt:
        sent = await (await rt.session("s", agent="bank")).send("go")
        question = await waiting(rt)
        reports = [tmp_path / f"report-{n}" for n in range(4)]
        children = [
            processes.Process(target=decide_often, args=(url, question.id, f"p{n}", str(report)))
            for n, report in enumerate(reports)
        ]
        for process in children:
            process.start()
        for process in children:
            await asyncio.to_thread(process.join, 60)
            assert process.exitcode == 0
        assert (await sent.result(20)).text.startswith("done")
        answers = [answer for report in reports for answer in json.loads(report.read_text())]
        assert len(answers) == 64
        (winner,) = [answer["message"] for answer in answers if not answer["code"]]
        others = [answer for answer in answers if answer["code"]]
        assert {answer["code"] for answer in others} == {"approval_already_decided"}
        assert all(answer["message"].startswith(f"already decided by {winner}: approved at") for answer in others)
        assert paid == [5]
