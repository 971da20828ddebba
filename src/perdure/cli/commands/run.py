"""`perdure run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from perdure.cli.options import Db, Json, Quiet

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime
    from perdure.runtime.sessions.sent import Sent
    from perdure.runtime.sessions.session import Session

DETACH_S = 1.0
"""How long a turn of ours may go on after Ctrl-C before it is handed over."""


@dataclass(frozen=True, slots=True)
class _Order:
    target: str
    text: str
    session: str | None
    agent: str | None
    model: str | None
    base_url: str | None
    db: str
    detach: bool
    json: bool
    quiet: bool


def run(  # noqa: PLR0913 - a command's options are its parameters
    target: Annotated[str, Argument(metavar="TARGET", help="module:attribute, e.g. agent:app.", show_default=False)],
    text: Annotated[str, Argument(metavar="INPUT", help="What to say.", show_default=False)],
    session: Annotated[str, Option(metavar="ID", help="Go on with this session, or begin it under this id.")] = "",
    agent: Annotated[str, Option(metavar="NAME", help="Which agent, if the target has several.")] = "",
    model: Annotated[str, Option(metavar="MODEL", help="Use another model, e.g. sim:echo or openai:gpt-5.2.")] = "",
    base_url: Annotated[str, Option(metavar="URL", help="With --model: where its provider is.")] = "",
    detach: Annotated[bool, Option("--detach", help="Send and leave; a worker elsewhere answers.")] = False,
    db: Db = "",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say something to an agent and stream its answer.

    TARGET is a Runtime, an Agent, a list of agents or a function that makes one. The turn is durable: Ctrl-C only
    detaches, and whatever is unfinished goes on with the next worker.
    """
    from perdure.cli.places import run as run_async

    order = _Order(
        target, text, session or None, agent or None, model or None, base_url or None, db, detach, json, quiet
    )
    raise Exit(run_async(lambda: _run(order)))


async def _run(order: _Order) -> int:
    import logging

    from perdure.cli.exits import debugging
    from perdure.cli.places import url_of
    from perdure.cli.targets import runtime_for
    from perdure.models.registry import at_address

    if not debugging():  # what the runtime logs is for operators; a user gets the result
        logging.getLogger("perdure").addHandler(logging.NullHandler())
    model = at_address(order.model, order.base_url) if order.model and order.base_url else order.model
    runtime = runtime_for(order.target, store=url_of(order.db), model=model, worker=not order.detach)
    async with runtime as rt:
        session = await _session(rt, order)
        sent = await session.send(order.text)
        if order.detach:
            return await _left(rt, session, sent, order)
        return await _stream(rt, session, sent, order)


async def _session(rt: Runtime, order: _Order) -> Session:
    from perdure.errors import Code, Error
    from perdure.ids import SessionId, session_stream
    from perdure.models.registry import check_ready

    agent = order.agent
    known = (
        None if order.session is None else await rt.store.stream(session_stream(rt.tenant, SessionId(order.session)))
    )
    if agent is None and not known and rt.agents:
        if len(rt.agents) > 1:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"{order.target} has {len(rt.agents)} agents",
                because=f"they are {', '.join(rt.agents)}",
                hint=f"choose one: --agent {next(iter(rt.agents))}",
            )
        agent = next(iter(rt.agents))
    asked = rt.agents.get(agent or (known.agent if known else ""))
    if asked is not None and not order.detach:  # detached, whoever answers has to have the key
        await check_ready(asked.resolved)
    return await rt.session(order.session, agent=agent)


async def _left(rt: Runtime, session: Session, sent: Sent, order: _Order) -> int:
    from perdure.cli.screen import emit, note, say

    alive = sum(worker.alive for worker in await rt.store.workers())
    if order.json:
        emit(type="sent", v=1, session=session.id, turn=sent.turn, input=sent.input, workers=alive)
        return 0
    say(session.id)
    if not order.quiet:
        who = "a worker has it" if alive else "no worker is running; it waits until one does"
        note(f"Sent: {who}.")
        note(f"  watch     perdure sessions watch {session.id}{_db_flag(rt, order)}")
    return 0


async def _stream(rt: Runtime, session: Session, sent: Sent, order: _Order) -> int:
    import asyncio
    import contextlib
    import signal

    stop = asyncio.Event()
    with contextlib.suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    printing = asyncio.create_task(_print(sent, order))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({printing, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not printing.done():
        printing.cancel()
        await asyncio.gather(printing, return_exceptions=True)
        return await _detach(rt, session, order)
    await printing
    return await _conclude(rt, session, sent, order)


async def _print(sent: Sent, order: _Order) -> None:
    import sys

    from perdure.cli.events import Talk, emit_event

    talk = Talk(tools=not order.quiet and sys.stderr.isatty())
    async for event in sent.events():
        if order.json:
            emit_event(sent.session.id, event)
        else:
            talk.show(event)


async def _detach(rt: Runtime, session: Session, order: _Order) -> int:
    from perdure.cli.exits import INTERRUPTED
    from perdure.cli.places import db_flag
    from perdure.cli.screen import note

    await rt.drain(DETACH_S)
    why = await session.why()
    rest = "The turn has ended." if why.status == "idle" else "The turn is saved for the next worker."
    db = _db_flag(rt, order)
    note("")
    note(f"Detached from {session.id}. {rest}")
    note(f"  watch     perdure sessions watch {session.id}{db}")
    note(f'  carry on  perdure run {order.target} "…" --session {session.id}{db_flag(order.db)}')
    return INTERRUPTED


async def _conclude(rt: Runtime, session: Session, sent: Sent, order: _Order) -> int:
    from perdure.cli.exits import FAILED, OK, OVER_LIMIT, complain
    from perdure.cli.screen import emit, note

    result = await sent.result()
    if order.json:
        emit(
            type="result",
            v=1,
            session=session.id,
            turn=result.turn,
            status=result.status,
            reason=result.reason,
            text=result.text,
            message=result.message,
            tokens=result.usage.tokens,
        )
    elif result.status == "finished" and not order.quiet:
        note(f"{result.usage.tokens} tok.  Go on with --session {session.id}")
    if result.status == "finished":
        return OK
    if not order.json:
        reason = (result.reason or "stopped").replace("_", " ")
        hint = f"perdure journal list {session.id}{_db_flag(rt, order)}"
        complain(f"the turn was stopped: {reason}", because=result.message, hint=hint)
    return OVER_LIMIT if result.reason == "limit_reached" else FAILED


def _db_flag(rt: Runtime, order: _Order) -> str:
    """What other commands need to find this store."""
    from perdure.cli.places import DEFAULT, db_flag

    path = getattr(rt.store, "path", None)
    if path is None:
        return db_flag(order.db)
    return "" if path == DEFAULT and not order.db else db_flag(str(path))
