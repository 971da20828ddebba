"""Children, completions and bytes of a resumable body: recorded like its steps, answered from the log on re-entry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from perdure import Agent, Runtime, RuntimeOptions, Session, ToolContext, ToolError, tool
from perdure.codec import Json
from perdure.models.protocol import Model
from perdure.models.scripted import ScriptedModel, call, fail, say
from perdure.tools.clients.completions import DirectRequest
from perdure.tools.clients.dispatch import ChildCall
from perdure.tools.context import completions_of
from perdure.tools.prepare import ToolPrepareContext
from perdure.tools.provider import ProviderContext, ToolProvider
from perdure.tools.toolbox import ToolSource
from perdure.vocab.effects import EffectKind, PreparedToolCall
from perdure.vocab.messages import AttachmentRef, Message, ToolResultPart
from perdure.vocab.outcomes import DirectOutcome
from perdure.vocab.records import EffectSettled, EffectStarted
from perdure.vocab.tools import Durability, ToolContract, ToolManifest
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import App, NewStore
from tests.scenarios.test_bodies import HURRIED, parked


def outputs(history: tuple[Message, ...]) -> list[Json]:
    return [part.output for message in history for part in message.parts if isinstance(part, ToolResultPart)]


async def started(session: Session) -> list[str]:
    rows = [row.record for row in await session.journal()]
    return [record.id for record in rows if isinstance(record, EffectStarted) and "/step:" in record.id]


async def test_child_calls_of_a_body_run_once_despite_reentry(app: App) -> None:
    ran: list[str] = []

    @tool
    async def pay(ctx: ToolContext, n: int) -> int:
        """Once."""
        ran.append(f"pay {ctx.call_id.partition(':')[2]}")
        if n == 9:
            raise ToolError("too much", code="declined")
        return n

    @tool(effect="pure")
    async def look(n: int) -> int:
        """Pure."""
        ran.append("look")
        return n

    @tool(effect="resumable")
    async def do(ctx: ToolContext) -> Json:
        """Do it."""
        first = await ctx.tools.batch([("pay", {"n": 1}), ("look", {"n": 2}), ("fly", {})])
        second = await ctx.tools.batch([ChildCall("pay", {"n": 9}, "big"), ("do", {})])
        await ctx.wait_for_event("go on")
        return [[one.call_id, one.value, one.error_code] for one in (*first, *second)]

    rt = await app.open(ScriptedModel(call("do"), say("ok")), do, pay, look, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    await session.resolve("go on", None)
    await sent.result(10)
    assert outputs(await session.messages()) == [
        [
            ["0", 1, None],
            ["1", 2, None],
            ["2", None, "tool_unavailable"],
            ["big", None, "declined"],
            ["1", None, "nested_effect_not_recorded"],
        ]
    ]
    assert sorted(ran) == ["look", "pay batch:1:child:0:0", "pay batch:2:child:0:big"]
    assert await started(session) == ["c1.0/step:batch:1:child:0:0", "c1.0/step:batch:2:child:0:big"]


async def handed_over(
    new_store: NewStore, tools: Sequence[ToolSource], then: Sequence[ToolSource], begun: asyncio.Event
) -> tuple[Json, str]:
    """A worker stops in the middle; another one, perhaps with other code, goes on."""
    steps = (call("do"), say("ok"))

    def agent(tools: Sequence[ToolSource]) -> Agent:
        model: Model = ScriptedModel(*steps)
        return Agent("a", model=model, tools=tools)

    async with Runtime(new_store(), agents=[agent(tools)], options=RuntimeOptions(drain_s=0)) as rt:
        await (await rt.session("s", agent="a")).send("go", key="k")
        await asyncio.wait_for(begun.wait(), 10)
    async with Runtime(new_store(), agents=[agent(then)]) as rt:
        session = await rt.session("s")
        await (await session.send("go", key="k")).result(10)
        return outputs(await session.messages())[0], (await session.why()).status


async def test_interrupted_once_child_is_in_doubt(new_store: NewStore) -> None:
    begun, ran = asyncio.Event(), list[str]()

    @tool
    async def pay() -> int:
        """Once."""
        ran.append("pay")
        begun.set()
        await asyncio.Event().wait()
        return 1

    @tool(effect="pure")
    async def look() -> int:
        """Pure."""
        return 2

    @tool(effect="resumable")
    async def do(ctx: ToolContext) -> Json:
        """Do it."""
        return [one.error_code for one in await ctx.tools.batch([("pay", {}), ("look", {})])]

    told, _ = await handed_over(new_store, [do, pay, look], [do, pay, look], begun)
    assert told == ["outcome_unknown", None]
    assert ran == ["pay"]


async def test_a_child_that_was_answered_stays_answered_although_its_tool_is_gone(new_store: NewStore) -> None:
    begun = asyncio.Event()
    wait = [True]

    @tool
    async def pay() -> int:
        """Once."""
        return 7

    @tool(effect="idempotent")
    async def hang() -> str:
        """Idempotent."""
        if wait:
            begun.set()
            await asyncio.Event().wait()
        return "done"

    @tool(effect="resumable")
    async def do(ctx: ToolContext) -> Json:
        """Do it."""
        [paid] = await ctx.tools.batch([("pay", {})])
        if begun.is_set():
            wait.clear()
        [hung] = await ctx.tools.batch([("hang", {})])
        return [paid.value, hung.value]

    told, _ = await handed_over(new_store, [do, pay, hang], [do, hang], begun)
    assert told == [7, "done"]


async def test_a_child_with_other_arguments_than_last_time_is_a_mismatch(new_store: NewStore) -> None:
    begun, ran = asyncio.Event(), list[int]()

    @tool
    async def pay(n: int) -> int:
        """Once."""
        ran.append(n)
        return n

    @tool(effect="pure")
    async def hang() -> str:
        """Pure."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    amounts = iter([1, 2])

    @tool(effect="resumable")
    async def do(ctx: ToolContext) -> Json:
        """Do it."""
        await ctx.tools.batch([("pay", {"n": next(amounts)})])
        await ctx.tools.batch([("hang", {})])
        return None

    told, status = await handed_over(new_store, [do, pay, hang], [do, pay, hang], begun)
    assert told["code"] == "replay_mismatch"
    assert ran == [1], "nothing was run under a name that stood for something else"
    assert status == "idle"


class Booth(ToolProvider):
    """Hands out another ticket every time it is asked."""

    tickets = iter(range(99))

    def __init__(self, manifest: ToolManifest) -> None:
        self.manifest = manifest
        self.seen: list[Json] = []
        self.begun = asyncio.Event()
        self.hangs = True

    def tool_manifests(self) -> Sequence[ToolManifest]:
        return [self.manifest]

    def resolve_contract(self, name: str) -> ToolContract | None:
        return self.manifest.contract({"type": "object"})

    async def prepare_tool_call(self, ctx: ToolPrepareContext, call: PreparedToolCall) -> PreparedToolCall:
        return PreparedToolCall(
            call_id=call.call_id,
            tool_id=call.tool_id,
            tool_name=call.tool_name,
            args={},
            prepared_payload=next(self.tickets),
        )

    async def execute(self, name: str, args: Json, ctx: ProviderContext[object]) -> object:
        self.seen.append(ctx.prepared_payload)
        if self.manifest.durability.effect == "resumable":
            page = await ctx.step("render", lambda: "page")
            return [page, await ctx.wait_for_event("go on"), ctx.prepared_payload]
        if self.hangs:
            self.begun.set()
            await asyncio.Event().wait()
        return ctx.prepared_payload


async def test_captured_payload_is_the_same_on_every_child_run(new_store: NewStore) -> None:
    first, second = (Booth(ToolManifest(name="ride", durability=Durability(effect="idempotent"))) for _ in range(2))
    second.hangs = False

    @tool(effect="resumable")
    async def do(ctx: ToolContext) -> Json:
        """Do it."""
        return [one.value for one in await ctx.tools.batch([("ride", {})])]

    told, _ = await handed_over(new_store, [do, first], [do, second], first.begun)
    assert first.seen == second.seen == told


async def test_resumable_provider_tool_reenters_with_its_captured_payload(app: App) -> None:
    booth = Booth(ToolManifest(name="do", durability=Durability(effect="resumable")))
    rt = await app.open(ScriptedModel(call("do"), say("ok")), booth, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    await session.resolve("go on", "yes")
    await sent.result(10)
    [ticket, again] = booth.seen
    assert ticket == again
    assert outputs(await session.messages()) == [["page", "yes", ticket]]


async def test_a_completion_of_a_resumable_body_is_recorded_and_asked_for_once(app: App) -> None:
    spent = Usage(input=50, output=5, calls=1)

    @tool(effect="resumable")
    async def do(ctx: ToolContext) -> Json:
        """Do it."""
        reply = await completions_of(ctx).complete(DirectRequest("sum up", "Be brief."), "summary")
        failed = ""
        try:
            await completions_of(ctx).complete(DirectRequest("fail", key="second"), "summary")
        except ToolError as problem:
            failed = problem.code
        await ctx.wait_for_event("go on")
        return [reply.text, failed]

    model = ScriptedModel.by_input(
        {
            "go": [call("do"), say("ok", usage=Usage(calls=1))],
            "sum up": [say("short", exact=True, usage=spent)],
            "fail": [fail(401), say("never")],
        }
    )
    rt = await app.open(model, do, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await parked(rt, session)
    await session.resolve("go on", None)
    result = await sent.result(10)
    assert outputs(await session.messages()) == [["short", "direct_completion_failed"]]
    assert len(model.requests) == 4, "two of the turn, two of the body, none of them twice"
    settled = [row.record for row in await session.journal() if isinstance(row.record, EffectSettled)]
    direct = [record.outcome for record in settled if isinstance(record.outcome, DirectOutcome)]
    assert [one.source for one in direct] == ["summary", "summary"]
    assert all(one.kind is EffectKind.DIRECT for one in direct)
    assert result.usage.calls == 3
    assert result.usage.input >= 50


async def test_attachment_of_a_step_is_readable_after_reentry(new_store: NewStore) -> None:
    begun = asyncio.Event()
    wait = [True]

    @tool(effect="pure")
    async def hang() -> None:
        """Hang."""
        if wait:
            begun.set()
            await asyncio.Event().wait()

    @tool(effect="resumable")
    async def do(ctx: ToolContext) -> Json:
        """Do it."""

        async def render() -> Json:
            ref = await ctx.attachments.put(b"a,b", "text/csv")
            return {"hash": ref.hash, "media_type": ref.media_type, "size": ref.size}

        made = await ctx.step("render", render)
        if begun.is_set():
            wait.clear()
        await ctx.tools.batch([("hang", {})])
        return (await ctx.attachments.get(AttachmentRef(**made))).decode()

    told, _ = await handed_over(new_store, [do, hang], [do, hang], begun)
    assert told == "a,b"
