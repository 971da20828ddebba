"""One deed per audited act: how it is carried out through the public API, and the entry that it must leave.

The entries are written here by hand. `answered` is called right after the answer of each act: a crash test dies there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import cast

from perdure import (
    Agent,
    OutcomeUnknown,
    ProcessContext,
    Runtime,
    RuntimeOptions,
    Session,
    ToolContext,
    ask_user,
    client_tool,
    process,
    tool,
)
from perdure.codec import encode
from perdure.commit.changes import NewStream
from perdure.commit.plan import Entry
from perdure.ids import DEFAULT_TENANT, InputId, SessionId, TurnId, session_stream
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest, ProviderCall
from perdure.models.scripted import ScriptedModel, call, say
from perdure.observe.pending import PendingDecision
from perdure.runtime.internals import core_of
from perdure.store.protocol import Store
from perdure.vocab.messages import Text
from perdure.vocab.outcomes import PendingCompletion
from perdure.vocab.promises import EventKey
from perdure.vocab.records import InputAdmitted, SessionOpened, TurnEnded


@dataclass(frozen=True)
class Wanted:
    """The entry of an act; `by`, `via` and `session` are those of most deeds."""

    act: str
    target: str = ""
    detail: str = ""
    session: str = "s"
    by: str = "ann"
    via: str = "test"
    outcome: str = "done"


Answered = Callable[[], None]
Deed = Callable[[Runtime, Answered], Awaitable[tuple[Wanted, ...]]]

HURRIED = RuntimeOptions(idle_timeout_s=0.0)


@process
async def waits(ctx: ProcessContext) -> str:
    """Wait for an event."""
    return str(await ctx.wait_for_event("go"))


@process
async def ends(ctx: ProcessContext) -> str:
    """End at once."""
    return "over"


@tool(needs_approval=True)
async def pay(cents: int) -> str:
    """Pay."""
    return "paid"


@tool(in_doubt="ask")
async def wire(cents: int) -> str:
    """Wire money."""
    raise OutcomeUnknown("the line went dead")


handed_out: list[EventKey] = []


@tool
async def order(ctx: ToolContext) -> PendingCompletion:
    """Order."""
    handed_out.append(await ctx.completion_key())
    return ctx.pending()


after_reading: list[Answered] = []
references: list[str] = []


@tool
async def login(ctx: ToolContext, token: str) -> str:
    """Log in."""
    await ctx.secrets.get(token)
    references.append(token)
    for answered in after_reading:
        answered()
    return "in"


where = client_tool("where", "Where.", {"type": "object", "properties": {}, "additionalProperties": False})
ASK = call("ask_user", questions=[{"id": "name", "question": "Who?"}])
ASK_SECRET = call("ask_user", questions=[{"id": "token", "question": "Token?", "kind": "secret"}])


class Handing:
    """Follows a script, and puts the reference in the conversation in place of `$ref`."""

    name = "handing"

    def __init__(self, *steps: object) -> None:
        self._script = ScriptedModel(*steps)  # type: ignore[arg-type] - the steps of a script

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Stream the next step."""
        found = re.findall(r"secret:[0-9a-f]{32}", encode(request.messages).decode())
        async for event in self._script.stream(request):
            if isinstance(event, ModelReply) and found:
                parts = [
                    replace(part, arguments=part.arguments.replace("$ref", found[-1]))
                    if isinstance(part, ProviderCall)
                    else part
                    for part in event.parts
                ]
                yield replace(event, parts=tuple(parts))
            else:
                yield event


def agents() -> list[Agent]:
    """Return one agent per way to wait."""
    done = say("done")
    return [
        Agent("talks", model=ScriptedModel(done)),
        Agent("pays", model=ScriptedModel(call("pay", cents=5), done), tools=[pay]),
        Agent("wires", model=ScriptedModel(call("wire", cents=5), done), tools=[wire]),
        Agent("asks", model=ScriptedModel(ASK, done), tools=[ask_user]),
        Agent("keeps", model=ScriptedModel(ASK_SECRET, done), tools=[ask_user]),
        Agent("logs-in", model=Handing(ASK_SECRET, call("login", token="$ref"), done), tools=[ask_user, login]),
        Agent("locates", model=ScriptedModel(call("where"), done), tools=[where]),
        Agent("orders", model=ScriptedModel(call("order"), done), tools=[order]),
    ]


def opened(store: Store) -> Runtime:
    """Return a runtime with all agents and processes."""
    return Runtime(store, agents=agents(), processes=[waits, ends], options=HURRIED)


async def until(look: Callable[[], Awaitable[object]]) -> None:
    """Look again until it is so."""
    async with asyncio.timeout(30):
        while not await look():  # noqa: ASYNC110 - a worker of another task does it
            await asyncio.sleep(0.01)


async def begun(rt: Runtime, agent: str) -> Session:
    """Begin a turn of an agent that waits."""
    session = await rt.session("s", agent=agent)
    await session.send("go")
    await until(session.pending)
    return session


async def question(rt: Runtime, agent: str) -> PendingDecision:
    """Begin a turn that waits for a decision."""
    await begun(rt, agent)
    await until(rt.approvals.list)
    [asked] = await rt.approvals.list()
    return asked


async def talked(rt: Runtime) -> Session:
    """Return a session with an ended turn."""
    session = await rt.session("s", agent="talks")
    await session.ask("hello")
    return session


async def approve(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    asked = await question(rt, "pays")
    await rt.approvals.approve(asked.id, by="ann", via="test")
    answered()
    return (Wanted("approval_approved", asked.id),)


async def edit(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    asked = await question(rt, "pays")
    await rt.approvals.approve(asked.id, args={"cents": 4}, by="ann", via="test")
    answered()
    return (Wanted("approval_edited", asked.id),)


async def deny(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    asked = await question(rt, "pays")
    await rt.approvals.deny(asked.id, reason="too much", by="ann", via="test")
    answered()
    return (Wanted("approval_denied", asked.id),)


async def allow_for_session(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    asked = await question(rt, "pays")
    await rt.approvals.approve(asked.id, for_session=True, by="ann", via="test")
    answered()
    return (Wanted("approval_approved", asked.id), Wanted("grant_made", asked.promise, "pay"))


async def settle(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    asked = await question(rt, "wires")
    await rt.approvals.settle(asked.id, "happened", by="ann", via="test")
    answered()
    return (Wanted("doubt_settled", asked.id, "happened"),)


async def revoke_grant(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    asked = await question(rt, "pays")
    await rt.approvals.approve(asked.id, for_session=True, by="bob", via="setup")
    session = rt.get_session("s")
    await until(session.grants)
    await session.revoke_grant(asked.promise, by="ann", via="test")
    answered()
    return (Wanted("grant_revoked", asked.promise),)


async def answer(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    session = await begun(rt, "asks")
    [item] = await session.pending()
    await session.answer(item.id, {"name": "payload-of-the-answer"}, by="ann", via="test")
    answered()
    return (Wanted("question_answered", item.id),)


async def keep_secret(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    session = await begun(rt, "keeps")
    [item] = await session.pending()
    await session.answer(item.id, {"token": "hunter2-hunter2"}, by="ann", via="test")
    answered()
    await until(lambda: _spoken(session))
    found = re.findall(r"secret:[0-9a-f]{32}", repr(await session.messages()))
    return (Wanted("question_answered", item.id), Wanted("secret_stored", found[0]))


async def _spoken(session: Session) -> bool:
    return "secret:" in repr(await session.messages())


async def read_secret(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    references.clear()
    after_reading[:] = [answered]
    session = await begun(rt, "logs-in")
    [item] = await session.pending()
    await session.answer(item.id, {"token": "hunter2-hunter2"}, by="bob", via="setup")

    async def read() -> bool:
        return bool(references)

    await until(read)
    after_reading.clear()
    return (Wanted("secret_read", references[0], by="", via="tool"),)


async def post(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    session = await begun(rt, "locates")
    [item] = await session.pending()
    await session.post_result(item.id, {"lat": "payload-of-the-result"}, by="ann", via="test")
    answered()
    return (Wanted("result_posted", item.id),)


async def ordered(rt: Runtime) -> EventKey:
    """Begin a turn that hands out a key, and return the key."""
    handed_out.clear()
    await begun(rt, "orders")

    async def handed() -> bool:
        return bool(handed_out)

    await until(handed)
    return handed_out[0]


async def resolve(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    await ordered(rt)
    await rt.resolve(handed_out[0], "payload-of-the-order")
    answered()
    return (Wanted("key_resolved", handed_out[0].key_id, by="", via="key"),)


async def revoke_keys(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    session = await begun(rt, "orders")
    turn = await turn_of(session)
    await session.revoke_keys(by="ann", via="test")
    answered()
    return (Wanted("keys_revoked", turn),)


async def resolve_event(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    session = await begun(rt, "orders")
    await session.resolve("parcel", "payload-of-the-event", by="ann", via="test")
    answered()
    return (Wanted("event_resolved", "parcel"),)


async def cancel_waits(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    asked = await question(rt, "pays")
    assert await rt.get_session("s").cancel_waits(by="ann", via="test") == 1
    answered()
    return (Wanted("wait_cancelled", asked.id),)


async def turn_of(session: Session) -> TurnId:
    """Return the turn that the session opened first."""
    [turn] = [row.record.turn for row in await session.journal() if isinstance(row.record, InputAdmitted)]
    return turn


async def cancel(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    session = await begun(rt, "asks")
    turn = await turn_of(session)
    assert await session.cancel(reason="payload-of-the-reason", by="ann", via="test") == "requested"
    answered()
    return (Wanted("turn_cancelled", turn),)


async def cancel_input(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    session = await begun(rt, "asks")
    later = await session.send("later")
    assert (await session.cancel_input(later, by="ann", via="test")).outcome == "cancelled"
    answered()
    return (Wanted("input_cancelled", later.input_id),)


async def retry(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    turn, stream = TurnId("t1"), session_stream(DEFAULT_TENANT, SessionId("s"))
    said = InputAdmitted(input=InputId("i1"), turn=turn, parts=(Text(text="go"),))
    past = (SessionOpened(agent="talks"), said, TurnEnded(turn=turn, status="stopped", reason="no_forward_progress"))
    entries = tuple(Entry.of(one, at=1) for one in past)
    await core_of(rt).store.create(NewStream(stream, "talks", entries, at=1))
    await rt.get_session("s").retry(by="ann", via="test")
    answered()
    return (Wanted("turn_retried", "t1"),)


async def pause(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    session = await talked(rt)
    assert await session.pause(by="ann", via="test")
    answered()
    return (Wanted("session_paused"),)


async def resume(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    session = await talked(rt)
    await session.pause(by="bob", via="setup")
    assert await session.resume(by="ann", via="test")
    answered()
    return (Wanted("session_resumed"),)


async def set_model(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    session = await talked(rt)
    await session.set_model("sim:echo", by="ann", via="test")
    answered()
    return (Wanted("model_set", "sim:echo"),)


async def redact(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    session = await talked(rt)
    [seq] = [row.seq for row in await session.journal() if row.kind == "input_admitted"]
    assert await session.redact(seq, by="ann", via="test")
    answered()
    return (Wanted("record_redacted", str(seq)),)


async def delete(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    session = await talked(rt)
    assert await session.delete(by="ann", via="test")
    answered()
    return (Wanted("session_deleted"),)


async def export(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    session = await talked(rt)
    await session.export(by="ann", via="test")
    answered()
    return (Wanted("session_exported"),)


async def bring_in(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    await rt.import_session("s", [{"role": "user", "content": "hello"}], agent="talks", by="ann", via="test")
    answered()
    return (Wanted("session_imported"),)


async def cancel_process(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    handle = await rt.start(waits, id="p1")
    assert await handle.cancel(by="ann", via="test")
    answered()
    return (Wanted("process_cancelled", "p1", session=""),)


async def abandon_process(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    handle = await rt.start(waits, id="p1")
    assert await handle.abandon(by="ann", via="test")
    answered()
    return (Wanted("process_abandoned", "p1", session=""),)


async def delete_process(rt: Runtime, answered: Answered) -> tuple[Wanted, ...]:
    handle = await rt.start(ends, id="p1")
    await handle.result()
    assert await handle.delete(by="ann", via="test")
    answered()
    return (Wanted("process_deleted", "p1", session=""),)


DEEDS: dict[str, Deed] = {
    "approval_approved": approve,
    "approval_edited": edit,
    "approval_denied": deny,
    "grant_made": allow_for_session,
    "doubt_settled": settle,
    "grant_revoked": revoke_grant,
    "question_answered": answer,
    "secret_stored": keep_secret,
    "secret_read": read_secret,
    "result_posted": post,
    "key_resolved": resolve,
    "keys_revoked": revoke_keys,
    "turn_cancelled": cancel,
    "input_cancelled": cancel_input,
    "turn_retried": retry,
    "session_paused": pause,
    "session_resumed": resume,
    "model_set": set_model,
    "record_redacted": redact,
    "session_deleted": delete,
    "session_exported": export,
    "session_imported": bring_in,
    "process_cancelled": cancel_process,
    "process_abandoned": abandon_process,
    "process_deleted": delete_process,
    "event_resolved": resolve_event,
    "wait_cancelled": cancel_waits,
}


async def entries(rt: Runtime) -> list[Wanted]:
    """Return all entries but those of the setup, oldest first."""
    found = [
        Wanted(one.act, one.target, one.detail, one.session, one.by, one.via, one.outcome)
        for one in reversed(await rt.audit.list(limit=1000))
    ]
    return [one for one in found if one.via != "setup"]


def acts() -> set[str]:
    """Return the names of all acts that a deed can leave."""
    from typing import get_args

    from perdure.vocab.audit import Act

    return set(cast("tuple[str, ...]", get_args(Act))) - {"refusals_omitted"}
