"""Events while a program waits: approvals, other inputs and deploys. Finished calls stand, and it goes on."""

from __future__ import annotations

import pytest

from perdure import Runtime, RuntimeOptions, tool
from perdure.codemode import code_mode
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import core_of
from perdure.tools.decorator import AnyTool
from perdure.vocab.messages import Text
from tests.scenarios.conftest import App, until
from tests.scenarios.test_code_mode import asked, check, paying, script, shop, told

CODE = """
bought = buy(1)
try:
    paid = pay(2)
except RuntimeError as problem:
    paid = str(problem).split(":")[0]
[bought, paid, buy(3)]
"""
HURRIED = RuntimeOptions(idle_timeout_s=0.0)


def renamed(paid: list[int]) -> AnyTool:
    """The tool with another signature, as a new version has it."""

    @tool(needs_approval=True)
    async def pay(amount: int, currency: str) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount} {currency}"

    return pay


async def parked(rt: Runtime) -> None:
    async def so() -> bool:
        [info] = await core_of(rt).session_streams()
        return info.parked and info.owner is None and not core_of(rt).has_in_hand(info.stream)

    await until(so)


@pytest.mark.parametrize(
    ("deployed", "told_then"), [("removed", "tool_removed"), ("changed", "tool_contract_changed"), ("same", "paid 2")]
)
async def test_a_tool_that_changed_while_a_program_waited_for_its_approval(
    app: App, deployed: str, told_then: str
) -> None:
    sold: list[int] = []
    model = script(CODE)
    rt = await app.open(model, *shop(sold), paying(sold, needs_approval=True), code_mode(), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await session.send("go")
    question = await asked(rt)
    await parked(rt)
    await rt.drain()
    versions: dict[str, list[AnyTool]] = {
        "removed": [],
        "changed": [renamed(sold)],
        "same": [paying(sold, needs_approval=True)],
    }
    later = await app.open(model, *shop(sold), *versions[deployed], code_mode(), tuning=HURRIED)
    await later.approvals.approve(question, by="ana")
    session = await later.session("s", agent="a")

    async def over() -> bool:
        return (await session.why()).status == "idle"

    await until(over)
    assert await told(session) == [{"result": ["bought 1", told_then, "bought 3"]}]
    assert sold == ([1, 2, 3] if deployed == "same" else [1, 3])
    await check(later)


async def test_expired_approval_raises_in_the_program(app: App) -> None:
    sold: list[int] = []
    pay = paying(sold, needs_approval=True, approval_timeout=0.05)
    rt = await app.open(script(CODE), *shop(sold), pay, code_mode(), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    await (await session.send("go")).result(timeout=30)
    assert await told(session) == [{"result": ["bought 1", "approval_expired", "bought 3"]}]
    assert sold == [1, 3]
    await check(rt)


async def test_steering_waits_for_the_program_and_comes_before_the_next_reply(app: App) -> None:
    sold: list[int] = []
    steps = {"go": [call("run_python", code=CODE)], "hurry": [say("done", exact=True)]}
    model = ScriptedModel.by_input(steps)
    rt = await app.open(model, *shop(sold), paying(sold, needs_approval=True), code_mode(), tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    question = await asked(rt)
    await session.send("hurry", mode="steer")
    await rt.approvals.approve(question, by="ana")
    assert (await sent.result(timeout=30)).status == "finished"
    assert await told(session) == [{"result": ["bought 1", "paid 2", "bought 3"]}]
    assert sold == [1, 2, 3]
    texts = [part.text for message in await session.messages() for part in message.parts if isinstance(part, Text)]
    assert texts == ["go", "hurry", "done"]
    await check(rt)
