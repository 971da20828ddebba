"""`perdure why`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument

from perdure.cli.options import Db, Json
from perdure.runtime.internals import core_of

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime
    from perdure.runtime.sessions.session import Session

Name = Annotated[
    str, Argument(metavar="ID", help="A session id or a unique prefix of it, or a process id.", show_default=False)
]


def why(id: Name, db: Db = "", json: Json = False) -> None:
    """Explain what a session or a process does or waits for."""
    from perdure.cli.store_locator import run

    run(lambda: _explain(id, db, json=json))


async def _explain(id: str, db: str, *, json: bool) -> None:
    from perdure.cli.store_locator import find_session, opened

    async with opened(db) as rt:
        if await _is_process(rt, id):
            await _explain_process(rt, id, db, json=json)
        else:
            await _explain_session(rt, await find_session(rt, id), db, json=json)


async def _is_process(rt: Runtime, id: str) -> bool:
    """Return True if the id names a process and no session."""
    from perdure.ids import SessionId, process_stream, session_stream

    if await core_of(rt).store.stream(session_stream(rt.tenant, SessionId(id))) is not None:
        return False
    return await core_of(rt).store.stream(process_stream(rt.tenant, id)) is not None


async def _explain_process(rt: Runtime, id: str, db: str, *, json: bool) -> None:
    from perdure.cli.screen import emit, one_line, say, took, utc
    from perdure.cli.store_locator import to_paste
    from perdure.observe.command_lines import command_line
    from perdure.vocab.refs import PartRef

    handle = rt.get_process(id)
    answer, waits = await handle.why(), (await handle.info()).waiting
    refs = [PartRef.parse(wait.effect) for wait in waits]
    signals = [ref.name.rpartition(":")[0] for ref in refs if ref.kind == "signal"]
    hint = f"`{command_line('processes signal', id, signals[0])}`" if signals else ""
    if json:
        waiting = [
            {
                "what": wait.effect.partition("/")[2],
                "since": utc(wait.since),
                "until": utc(wait.until) if wait.until else None,
            }
            for wait in waits
        ]
        emit(
            type="why",
            v=1,
            process=id,
            status=answer.status,
            because=answer.because,
            code=answer.code or None,
            waiting=waiting,
            hint=hint,
        )
        return
    say(f"{one_line(id, 60)}  {answer.status}")
    say(f"  because    {one_line(answer.because, 400)}")
    if answer.code:
        say(f"  code       {answer.code}")
    now = core_of(rt).clock.wall_ms()
    for wait in waits:
        left = f", for {took(max(0, wait.until - now))} more" if wait.until else ""
        what = one_line(wait.effect.partition("/")[2], 80)
        say(f"  waits for  {what}, for {took(now - wait.since)} now{left}")
    if hint:
        say(f"  hint       {to_paste(hint, db)}")


async def _explain_session(rt: Runtime, session: Session, db: str, *, json: bool) -> None:
    from perdure.cli.screen import count, emit, say, took, utc
    from perdure.cli.store_locator import to_paste

    answer = await session.why()
    workers = {worker.id: worker for worker in await core_of(rt).store.workers()}
    now = core_of(rt).clock.wall_ms()
    owner = next((worker for id, worker in workers.items() if id == answer.owner), None)
    if json:
        waiting = [
            {
                "what": item.what,
                "since": utc(item.since),
                "until": utc(item.until) if item.until else None,
                "who": item.who,
            }
            for item in answer.waiting
        ]
        emit(
            type="why",
            v=1,
            session=session.id,
            status=answer.status,
            summary=answer.summary,
            turn=answer.turn,
            waiting=waiting,
            queued=answer.queued,
            worker_pid=owner.pid if owner else None,
            worker_alive=bool(owner and owner.alive),
            hint=answer.hint,
        )
        return
    say(f"{session.id}  {answer.status}")
    say(f"  because    {answer.summary}")
    for item in answer.waiting:
        left = f", for {took(max(0, item.until - now))} more" if item.until else ""
        say(f"  waits for  {item.what}, for {took(now - item.since)} now{left}")
        if item.who:
            say(f"  from       {to_paste(item.who, db)}")
    if answer.queued:
        say(f"  queued     {count(answer.queued, 'input')}")
    if owner:
        say(f"  worker     pid {owner.pid}, {'alive' if owner.alive else 'gone'}")
    if answer.hint and all(item.who != answer.hint for item in answer.waiting):
        say(f"  hint       {to_paste(answer.hint, db)}")
