"""The context that a process has of the session it belongs to: for background runs, and for `ctx.session()`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId, SessionId, StreamId, TurnId, process_stream, session_stream
from perdure.runtime.agent import Agent, setup_of
from perdure.runtime.agents import agent_unknown
from perdure.runtime.calls.clients import CallSite
from perdure.runtime.processes.context import ProcessContext, wiring_of
from perdure.runtime.processes.events import RunEventsClient
from perdure.runtime.processes.limits import check_child
from perdure.runtime.processes.purchases import bought
from perdure.runtime.services import BodyAccess, clients_of, services_of
from perdure.session.fold import CODE, SessionState, fold_all
from perdure.tools.body import Body
from perdure.tools.clients.process_events import ProcessEvents
from perdure.tools.clients.triggers import TriggerClient
from perdure.tools.clients.turn import TurnContext
from perdure.tools.context import ToolContext, origin_of
from perdure.tools.origin import CallOrigin
from perdure.turn.spending import spent_up
from perdure.turn.state import Turn
from perdure.vocab.messages import AttachmentRef
from perdure.vocab.refs import PROCESS_BODY
from perdure.vocab.tools import Composition

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore


async def context_of_run(
    ctx: ProcessContext,
    session: SessionId,
    agent: Agent,
    *,
    tool: str,
    args: Json,
    events: ProcessEvents,
) -> ToolContext[object]:
    """Return the context of a background run. Its body is entered once, so it has no steps of its own."""
    context = await _context(ctx, session, agent)
    origin = origin_of(context)
    clients = replace(origin.clients, process_events=events)
    own = replace(origin, body=None, process_events_id=ctx.process_id, clients=clients)
    return replace(context, tool_name=tool, args=args, _call=own)


class OwnerContext:
    """The context that a process function has of its session, made once for each entry of the function."""

    def __init__(self) -> None:
        self._made: asyncio.Task[ToolContext[object]] | None = None

    async def of(self, ctx: ProcessContext) -> ToolContext[object]:
        """Return the context: the same one each time, because it numbers its writes."""
        if self._made is None:
            self._made = asyncio.create_task(context_of_owner(ctx))
        return await asyncio.shield(self._made)


async def context_of_owner(ctx: ProcessContext) -> ToolContext[object]:
    """Return the context that a process function has of its session.

    Raises:
        Error: `invalid_argument` without such a session, `session_unknown`, `agent_unknown`.
    """
    core, originator = wiring_of(ctx).runtime, ctx.info.known.provenance.originator
    if originator is None:
        raise Error(
            Code.INVALID_ARGUMENT,
            f"the process {ctx.process_id} belongs to no session",
            because="no tool of a session started it",
            hint="await ctx.ask(agent, ...)",
            process=ctx.process_id,
        )
    session = SessionId(originator.session_id)
    info = await core.store.stream(session_stream(ctx.tenant, session))
    if info is None:
        raise Error(Code.SESSION_UNKNOWN, f"unknown session {session!r}", session=session)
    if (agent := core.agents.get(info.agent)) is None:
        raise agent_unknown(info.agent, core.agents)
    context = await _context(ctx, session, agent)
    origin = origin_of(context)

    def triggers(_: ToolContext[object]) -> TriggerClient:
        return ctx.triggers  # its calls are numbered with those of the process

    events = RunEventsClient(core.get_process(ctx.process_id), context.call_id, ctx.info.known.event_types)
    clients = replace(origin.clients, triggers=triggers, process_events=events)
    return replace(context, _call=replace(origin, clients=clients))


async def _context(ctx: ProcessContext, session: SessionId, agent: Agent) -> ToolContext[object]:
    wiring = wiring_of(ctx)
    core, body, stream = wiring.runtime, wiring.body, session_stream(ctx.tenant, session)
    assert body is not None  # a worker runs this
    loaded = await core.store.load(stream, code=CODE)
    state = fold_all(loaded.snapshot.data if loaded.snapshot else None, loaded.rows)
    composition = setup_of(agent).composition("", without=state.without_tools, model=state.model)
    site = _site(ctx, session, composition, agent, state, body)
    access = _access(ctx, core, stream, body)
    services = services_of(core, stream, agent, composition=composition, durable=access.durable, in_turn=False)
    return ToolContext(
        session_id=session,
        turn_id=TurnId(""),
        call_id=CallId(ctx.process_id),
        tool_name=wiring.tool_name,
        tenant=ctx.tenant,
        idempotency_key=ctx.idempotency_key,
        cancellation=ctx.cancellation,
        _call=CallOrigin(
            deps=wiring.deps,
            services=services,
            clients=clients_of(core, stream, agent, site, access),
            body=body,
            turn_context=site.turn_context,
            own_process_id=ctx.process_id,
        ),
    )


def _site(
    ctx: ProcessContext, session: SessionId, composition: Composition, agent: Agent, state: SessionState, body: Body
) -> CallSite:
    limits, journal = setup_of(agent).limits, body.controller.journal
    turn = Turn(TurnId(""), state.turns, state.turns, composition, limits)
    total, known = state.usage + state.child_usage, journal.ids()

    def reached() -> str:
        return spent_up(limits, bought(journal), total + bought(journal, but=known))

    about = TurnContext(session_id=session, agent=composition.agent, model=composition.model)
    return CallSite(
        turn,
        CallId(ctx.process_id),
        EffectId(PROCESS_BODY),
        about,
        reached,
        ctx.cancellation,
        place=body.place,
        controller=body.controller,
    )


def _access(ctx: ProcessContext, core: RuntimeCore, stream: StreamId, body: Body) -> BodyAccess:
    worker, mine = core.worker, process_stream(ctx.tenant, ctx.process_id)
    assert worker is not None  # a worker runs this
    parent = (ctx.process_id, ctx.info.known.provenance)

    async def fetch(ref: AttachmentRef) -> bytes:
        return (await core.store.blob(ref.hash, stream=stream)).data

    return BodyAccess(
        durable=body.controller.ledger.durable,
        fetch=fetch,
        within_limits=partial(worker.permits.held, mine),
        check_start=partial(check_child, core.store, ctx.tenant, core.process_limits, parent),
    )
