"""`perdure why`."""

from __future__ import annotations

from perdure.cli.options import Db, Json, SessionName


def why(session: SessionName, db: Db = "", json: Json = False) -> None:
    """Say what a session is doing or waiting for."""
    from perdure.cli.places import run

    run(lambda: _explain(session, db, json=json))


async def _explain(name: str, db: str, *, json: bool) -> None:
    from perdure.cli.places import find_session, opened, to_paste
    from perdure.cli.screen import count, emit, say, took, utc

    async with opened(db) as rt:
        session = await find_session(rt, name)
        answer = await session.why()
        workers = {worker.id: worker for worker in await rt.store.workers()}
        now = rt.clock.wall_ms()
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
    if answer.hint:
        say(f"  hint       {to_paste(answer.hint, db)}")
