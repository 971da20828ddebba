"""Session-wide approvals: each belongs to an agent, a tool and a contract; on every store."""

from __future__ import annotations

import pytest

from perdure import Agent, Runtime, RuntimeOptions, Session, ToolContext, handoff, tool
from perdure.models.scripted import ScriptedModel, call, say
from perdure.observe.pending import PendingDecision
from perdure.tools.decorator import AnyTool
from tests.scenarios.conftest import App, until


def sender(sent: list[str], description: str = "Send an e-mail.") -> AnyTool:
    @tool(name="send", needs_approval=True, description=description)
    async def send(to: str) -> str:
        sent.append(to)
        return "sent"

    return send


async def the_question(rt: Runtime) -> PendingDecision:
    async def there() -> bool:
        return bool(await rt.approvals.list())

    await until(there)
    (question,) = await rt.approvals.list()
    return question


async def allow_for_the_session(rt: Runtime, session: Session) -> None:
    sent = await session.send("one")
    await rt.approvals.approve((await the_question(rt)).id, by="ann", for_session=True)
    await sent.result(20)


@pytest.mark.parametrize("nested", [False, True])
async def test_s11_grant_covers_no_tool_of_another_agent(app: App, nested: bool) -> None:
    mails: list[str] = []
    transfers: list[str] = []

    @tool(effect="resumable")
    async def through(to: str, ctx: ToolContext) -> object:
        """Send from a body."""
        return (await ctx.tools.call("send", {"to": to}, step="send")).output

    first = "through" if nested else "send"
    clerk_model = ScriptedModel.by_input(
        {
            "one": [call(first, to="newsletter"), say("ok")],
            "same": [call(first, to="digest"), say("ok")],
            "two": [call("handoff", to="bank")],
        }
    )
    bank_model = ScriptedModel(say("not asked"), call(first, to="iban"), say("done"))
    clerk = Agent("clerk", model=clerk_model, tools=[sender(mails), through, handoff("bank")])
    bank = Agent("bank", model=bank_model, tools=[sender(transfers), through])
    rt = await app.add([clerk, bank])
    session = await rt.session("s", agent="clerk")
    await allow_for_the_session(rt, session)
    await session.ask("same")
    assert mails == ["newsletter", "digest"], "the grant covers the same tool of the same agent"

    sent = await session.send("two")
    question = await the_question(rt)
    assert (question.tool, question.args, transfers) == ("send", {"to": "iban"}, [])
    await rt.approvals.approve(question.id, by="ann", for_session=True)
    await sent.result(20)
    assert transfers == ["iban"]
    assert [(one.agent, one.tool) for one in await session.grants()] == [("clerk", "send"), ("bank", "send")]


async def test_s11_grant_covers_no_contract_that_a_deploy_changed(app: App) -> None:
    before: list[str] = []
    after: list[str] = []
    model = ScriptedModel.by_input({}, default=[call("send", to="a"), say("ok")])
    async with Runtime(app.new_store(), agents=[Agent("a", model=model, tools=[sender(before)])]) as rt:
        await allow_for_the_session(rt, await rt.session("s", agent="a"))
        await rt.get_session("s").ask("again")
    assert before == ["a", "a"]
    rt = await app.open(model, sender(after, "Send money."))
    session = rt.get_session("s")
    sent = await session.send("two")
    question = await the_question(rt)
    assert after == []
    await rt.approvals.approve(question.id, by="ann", for_session=True)
    await sent.result(20)
    assert len(await session.grants()) == 1, "one grant per tool: the new contract replaces the old one"
    await session.ask("three")
    assert after == ["a", "a"]


async def test_s11_grant_covers_no_contract_deployed_during_the_turn(app: App) -> None:
    before: list[str] = []
    after: list[str] = []

    @tool(effect="resumable")
    async def pause(ctx: ToolContext) -> object:
        """Wait for a deploy."""
        return await ctx.wait_for_event("deployed")

    script = {"one": [call("send", to="a"), say("ok")], "two": [call("pause"), call("send", to="b"), say("ok")]}
    model = ScriptedModel.by_input(script)
    agent = Agent("a", model=model, tools=[sender(before), pause])
    async with Runtime(app.new_store(), agents=[agent], options=RuntimeOptions(idle_timeout_s=0.0)) as rt:
        session = await rt.session("s", agent="a")
        await allow_for_the_session(rt, session)
        await session.send("two")

        async def waits() -> bool:
            return (await session.why()).status == "waiting"

        await until(waits)
    rt = await app.open(model, sender(after, "Send money."), pause)
    await rt.get_session("s").resolve("deployed", None)
    question = await the_question(rt)
    assert (question.args, before, after) == ({"to": "b"}, ["a"], [])
