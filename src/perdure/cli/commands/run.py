"""`perdure run`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from perdure.cli.options import Db, Json, Terse
from perdure.runtime.internals import core_of

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime
    from perdure.runtime.sessions.sent import TurnHandle
    from perdure.runtime.sessions.session import Session

DETACH_S = 1.0
"""Seconds that a running turn may continue after Ctrl-C before it is handed over."""


@dataclass(frozen=True, slots=True)
class _RunCommand:
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
    text: Annotated[str, Argument(metavar="INPUT", help="The input text.", show_default=False)],
    session: Annotated[str, Option(metavar="ID", help="Continue this session, or create it.")] = "",
    agent: Annotated[str, Option(metavar="NAME", help="The agent, if the target has several.")] = "",
    model: Annotated[str, Option(metavar="MODEL", help="Use another model, e.g. sim:echo or openai:gpt-5.2.")] = "",
    base_url: Annotated[str, Option(metavar="URL", help="With --model: address of the provider.")] = "",
    detach: Annotated[bool, Option("--detach", help="Send and exit; another worker runs the turn.")] = False,
    db: Db = "",
    json: Json = False,
    quiet: Terse = False,
) -> None:
    """Send an input to an agent and stream the reply.

    TARGET is a Runtime, an Agent, a list of agents or a function that returns one. The turn is durable: Ctrl-C only
    detaches, and the next worker resumes unfinished work.
    """
    from perdure.cli.store_locator import run as run_async

    order = _RunCommand(
        target, text, session or None, agent or None, model or None, base_url or None, db, detach, json, quiet
    )
    raise Exit(run_async(lambda: _run(order)))


async def _run(order: _RunCommand) -> int:
    import logging

    from perdure.cli.exits import debugging
    from perdure.cli.store_locator import url_of
    from perdure.cli.targets import runtime_for
    from perdure.models.registry import at_address

    if not debugging():  # runtime logs are for operators
        logging.getLogger("perdure").addHandler(logging.NullHandler())
    model = at_address(order.model, order.base_url) if order.model and order.base_url else order.model
    runtime = runtime_for(order.target, store=url_of(order.db), model=model, worker=not order.detach)
    async with runtime as rt:
        session = await _session(rt, order)
        sent = await session.send(order.text)
        if order.detach:
            return await _left(rt, session, sent, order)
        return await _stream(rt, session, sent, order)


async def _session(rt: Runtime, order: _RunCommand) -> Session:
    from perdure.errors import Code, Error
    from perdure.ids import SessionId, session_stream
    from perdure.models.registry import check_ready
    from perdure.runtime.agent import setup_of

    agent = order.agent
    known = (
        None
        if order.session is None
        else await core_of(rt).store.stream(session_stream(rt.tenant, SessionId(order.session)))
    )
    if agent is None and not known and rt.agents:
        if len(rt.agents) > 1:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"{order.target} has {len(rt.agents)} agents",
                because=f"the agents are {', '.join(rt.agents)}",
                hint=f"--agent {shlex.quote(next(iter(rt.agents)))}",
            )
        agent = next(iter(rt.agents))
    asked = rt.agents.get(agent or (known.agent if known else ""))
    if asked is not None and not order.detach:  # detached: the worker that runs the turn needs the key
        await check_ready(setup_of(asked).model)
    return await rt.session(order.session, agent=agent)


async def _left(rt: Runtime, session: Session, sent: TurnHandle, order: _RunCommand) -> int:
    from perdure.cli.program import own_command
    from perdure.cli.screen import emit, note, say

    alive = sum(worker.alive for worker in await core_of(rt).store.workers())
    if order.json:
        emit(type="sent", v=1, session=session.id, turn=sent.turn_id, input=sent.input_id, workers=alive)
        return 0
    say(session.id)
    if not order.quiet:
        who = "a worker is running" if alive else "no worker is running; the input waits for one"
        note(f"Sent: {who}.")
        note(f"  watch     {own_command('sessions watch', session.id, flags=_db_flag(rt, order))}")
    return 0


async def _stream(rt: Runtime, session: Session, sent: TurnHandle, order: _RunCommand) -> int:
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


async def _print(sent: TurnHandle, order: _RunCommand) -> None:
    import sys

    from perdure.cli.events import Talk, emit_event

    talk = Talk(tools=not order.quiet and sys.stderr.isatty())
    async for event in sent.events():
        if order.json:
            emit_event(sent.session.id, event)
        else:
            talk.show(event)


async def _detach(rt: Runtime, session: Session, order: _RunCommand) -> int:
    from perdure.cli.exits import INTERRUPTED
    from perdure.cli.program import own_command, program
    from perdure.cli.screen import note
    from perdure.cli.store_locator import db_flag

    await rt.drain(DETACH_S)
    why = await session.why()
    rest = "The turn has ended." if why.status == "idle" else "The turn is saved for the next worker."
    db = _db_flag(rt, order)
    note("")
    note(f"Detached from {session.id}. {rest}")
    note(f"  watch     {own_command('sessions watch', session.id, flags=db)}")
    again = f'{shlex.quote(order.target)} "…" --session {shlex.quote(session.id)}{db_flag(order.db)}'
    note(f"  continue  {program()} run {again}")
    return INTERRUPTED


async def _conclude(rt: Runtime, session: Session, sent: TurnHandle, order: _RunCommand) -> int:
    from perdure.cli.exits import FAILED, OK, OVER_LIMIT, complain
    from perdure.cli.screen import emit, note
    from perdure.observe.command_lines import command_line

    result = await sent.result()
    if order.json:
        emit(
            type="result",
            v=1,
            session=session.id,
            turn=result.turn_id,
            status=result.status,
            reason=result.reason,
            text=result.text,
            message=result.message,
            tokens=result.usage.tokens,
        )
    elif result.status == "finished" and not order.quiet:
        note(f"{result.usage.tokens} tok.  Continue with --session {shlex.quote(session.id)}")
    if result.status == "finished":
        return OK
    if not order.json:
        reason = (result.reason or "stopped").replace("_", " ")
        hint = command_line("journal show", session.id, flags=_db_flag(rt, order))
        complain(f"turn stopped: {reason}", because=result.message, hint=result.hint or hint)
    return OVER_LIMIT if result.reason == "limit_reached" else FAILED


def _db_flag(rt: Runtime, order: _RunCommand) -> str:
    """Return the `--db` option with which other commands find this store."""
    from perdure.cli.store_locator import DEFAULT, db_flag

    path = getattr(core_of(rt).store, "path", None)
    if path is None:
        return db_flag(order.db)
    return "" if path == DEFAULT and not order.db else db_flag(str(path))
