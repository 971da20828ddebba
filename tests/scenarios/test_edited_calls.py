"""Calls whose arguments a person changed: prepared for these, judged by these, asked about with these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from perdure import OutcomeUnknown, Runtime, ToolError, tool
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, call, say
from perdure.observe.pending import PendingDecision
from perdure.tools.prepare import ToolPrepareContext
from perdure.tools.provider import ProviderContext, ToolProvider
from perdure.vocab.effects import CallTool, PreparedToolCall
from perdure.vocab.outcomes import Failed, FailureDetail
from perdure.vocab.records import EffectStarted
from perdure.vocab.tools import Durability, RetryPolicy, ToolContract, ToolManifest
from tests.scenarios.conftest import App, until
from tests.scenarios.test_approvals import HURRIED, asked, contradictions, outputs

CENTS: Json = {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}
RAN = "A person changed the arguments of this call before they approved it. It ran with these arguments"
DID_NOT_RUN = "A person changed the arguments of this call to these before they approved it. It did not run"


class Bank(ToolProvider):
    """A source of one tool that needs a person's leave; its hook is the test's."""

    def __init__(self, hook: Callable[[PreparedToolCall], object], durability: Durability | None = None) -> None:
        self.manifest = ToolManifest(name="pay", durability=durability or Durability())
        self.hook = hook
        self.asked: list[Json] = []
        self.ran: list[tuple[Json, Json]] = []
        self.fails = False

    def tool_manifests(self) -> tuple[ToolManifest, ...]:
        return (self.manifest,)

    def resolve_contract(self, name: str) -> ToolContract:
        contract = self.manifest.contract(CENTS)
        return replace(contract, definition=replace(contract.definition, policy="requires_approval"))

    def prepare_tool_call(self, ctx: ToolPrepareContext, call: PreparedToolCall) -> Json:
        self.asked.append(call.args)
        return self.hook(call)

    async def execute(self, name: str, args: Json, ctx: ProviderContext[object]) -> str:
        self.ran.append((args, ctx.prepared_payload))
        if self.fails and len(self.ran) == 1:
            raise ToolError("not now", retry_safe=True)
        return "paid"


def limited(call: PreparedToolCall) -> PreparedToolCall | Failed:
    if call.args["cents"] > 100:
        return Failed(failure=FailureDetail(code="limit", message="never more than 100", failure_class="invalid"))
    return replace(call, prepared_payload={"account": f"for {call.args['cents']}"})


async def slowly(call: PreparedToolCall) -> object:
    await asyncio.sleep(0)
    return limited(call)


async def edited(app: App, source: Bank, cents: int) -> Json:
    """Approve a call of 50 cents with another amount; return what the model receives."""
    rt = await app.open(ScriptedModel(call("pay", cents=50), say("done")), source, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    (question,) = await asked(rt)
    await rt.approvals.approve(question.id, by="ana", args={"cents": cents})
    assert (await sent.result(20)).status == "finished"
    assert await contradictions(session) == ()
    starts = [
        r.record for r in await session.journal() if isinstance(r.record, EffectStarted) and r.record.id == "c1.0.1"
    ]
    sealed = [(s.command.call.args, s.command.call.prepared_payload) for s in starts if isinstance(s.command, CallTool)]
    assert sealed == source.ran[:1]
    (told,) = outputs(await session.messages())
    return told


@pytest.mark.parametrize("hook", [limited, slowly], ids=["sync", "async"])
async def test_edited_call_is_prepared_with_its_new_arguments(app: App, hook: Callable[..., object]) -> None:
    bank = Bank(hook)
    told = await edited(app, bank, 70)
    assert told == {"note": RAN, "arguments": {"cents": 70}, "result": "paid"}
    assert bank.ran == [({"cents": 70}, {"account": "for 70"})]
    assert bank.asked[-1] == {"cents": 70}


@pytest.mark.parametrize("hook", [limited, slowly], ids=["sync", "async"])
async def test_edited_call_refused_by_its_hook_does_not_run(app: App, hook: Callable[..., object]) -> None:
    bank = Bank(hook)
    told = await edited(app, bank, 100_000)
    refusal = {"error": "never more than 100", "code": "limit"}
    assert told == {"note": DID_NOT_RUN, "arguments": {"cents": 100_000}, "result": refusal}
    assert bank.ran == []


async def test_a_hook_that_changes_what_was_approved_is_refused(app: App) -> None:
    def rounds_up(call: PreparedToolCall) -> PreparedToolCall:
        return replace(call, args={"cents": (call.args["cents"] + 9) // 10 * 10})

    bank = Bank(rounds_up)
    told = await edited(app, bank, 71)
    assert told["note"] == DID_NOT_RUN
    assert told["result"]["code"] == "prepared_not_as_approved"
    assert bank.ran == []


async def test_a_later_attempt_gets_what_was_sealed_with_the_first(app: App) -> None:
    retry = RetryPolicy(kind="idempotent", max_attempts=2, base_delay_ms=0)
    bank = Bank(limited, Durability(effect="idempotent", retry=retry))
    bank.fails = True
    await edited(app, bank, 70)
    assert bank.ran == [({"cents": 70}, {"account": "for 70"})] * 2
    assert bank.asked.count({"cents": 70}) == 1


async def test_a_call_whose_first_preparation_failed_still_needs_leave(app: App) -> None:
    """The call had not started: the second attempt is the first that needs an approval."""

    def flaky(call: PreparedToolCall) -> PreparedToolCall:
        if len(bank.asked) == 1:
            raise ToolError("not now", retry_safe=True)
        return call

    retry = RetryPolicy(kind="idempotent", max_attempts=3, base_delay_ms=0)
    bank = Bank(flaky, Durability(effect="idempotent", retry=retry))
    rt = await app.open(ScriptedModel(call("pay", cents=50), say("done")), bank, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    (question,) = await asked(rt)
    assert bank.ran == []
    await rt.approvals.approve(question.id, by="ana", args={"cents": 60})
    assert (await sent.result(20)).status == "finished"
    assert bank.ran == [({"cents": 60}, None)]
    assert await contradictions(session) == ()


async def test_doubt_about_an_edited_call_shows_its_final_arguments(app: App) -> None:
    ran: list[int] = []

    @tool(needs_approval=True, in_doubt="ask")
    async def wire(cents: int) -> str:
        """Wire."""
        ran.append(cents)
        raise OutcomeUnknown("the line went dead")

    rt = await app.open(ScriptedModel(call("wire", cents=7), say("done")), wire, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    (question,) = await asked(rt)
    await rt.approvals.approve(question.id, by="ana", args={"cents": 5})
    doubt = await _doubt(rt, question.id)
    assert (doubt.kind, doubt.args, ran) == ("doubt", {"cents": 5}, [5])
    await rt.approvals.settle(doubt.id, "happened", by="bob", value="wired")
    assert (await sent.result(20)).status == "finished"
    (told,) = outputs(await session.messages())
    assert told == {"note": RAN, "arguments": {"cents": 5}, "result": "wired"}
    assert await contradictions(session) == ()


async def _doubt(rt: Runtime, before: str) -> PendingDecision:
    found: list[PendingDecision] = []

    async def there() -> bool:
        found[:] = [one for one in await rt.approvals.list() if one.id != before]
        return bool(found)

    await until(there)
    return found[0]
