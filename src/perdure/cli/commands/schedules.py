"""`perdure schedules list | show | create | pause | resume | run | cancel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from perdure.cli.options import Db, Json, Quiet, who

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.runtime.schedules.schedules import ScheduleHandle
    from perdure.services.schedules import ScheduleState
    from perdure.vocab.schedules import Target

app = Typer(help="What is said, started or emitted by the clock.", no_args_is_help=True, rich_markup_mode=None)

ScheduleName = Annotated[str, Argument(metavar="ID", help="The id of a schedule.", show_default=False)]
By = Annotated[
    str, Option("--by", metavar="NAME", help="Who does it; your login name if not said.", show_default=False)
]


@app.command("list")
def list_schedules(
    db: Db = "",
    session: Annotated[str, Option(metavar="SESSION", help="Only those of this session.", show_default=False)] = "",
    all: Annotated[bool, Option("--all", "-a", help="Also those that have ended.")] = False,
    limit: Annotated[int, Option("--limit", "-n", min=1, help="How many at most.")] = 50,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List schedules, the last changed first."""
    from perdure.cli.places import run

    run(lambda: _list(db, session, limit, all=all, json=json, quiet=quiet))


async def _list(db: str, session: str, limit: int, *, all: bool, json: bool, quiet: bool) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import Column, count, note, one_line, say, table

    async with opened(db) as rt:
        infos = await rt.schedules.list(session=session or None, active=not all, limit=limit)
        found = [(handle, state, await _next(handle)) async for handle, state in rt.schedules.states(infos)]
    if json:
        for handle, state, due in found:
            _emit(handle, state, due)
        return
    if quiet:
        for handle, _, _ in found:
            say(handle.id)
        return
    if found:
        columns = [Column(title) for title in ("ID", "STATE", "NEXT", "RUNS")]
        rows = [
            (
                *(handle.id, _condition(state), due[0] if due else "-", str(state.runs)),
                *(_when(state), _deed(state)[0], one_line(_deed(state)[1], 60)),
            )
            for handle, state, due in found
        ]
        table([*columns, *(Column(title, gives=True) for title in ("WHEN", "DOES", "WHAT"))], rows)
    note(f"{count(len(found), 'schedule')}.")


@app.command()
def show(id: ScheduleName, db: Db = "", json: Json = False) -> None:
    """Show one schedule: what it says, its next five runs, and what has become of it."""
    from perdure.cli.places import run

    run(lambda: _show(id, db, json=json))


async def _show(id: str, db: str, *, json: bool) -> None:
    from perdure.cli.lines import of_schedule
    from perdure.cli.places import opened
    from perdure.cli.screen import in_line, say, utc
    from perdure.vocab.schedules import ScheduleChanged, ScheduleCreated, ScheduleFired, ScheduleSkipped

    async with opened(db) as rt:
        handle = rt.schedules.get(id)
        state, due, rows = await handle.state(), await _next(handle), await handle.rows()
    if json:
        _emit(handle, state, due)
        return
    schedule = state.known
    say(f"{handle.id}  {_condition(state)}")
    say(f"  when       {_when(state)}")
    does, what = _deed(state)
    say(f"  does       {in_line(does)}: {in_line(what)}")
    say(f"  policy     overlap {schedule.overlap}, catch up {schedule.catch_up}")
    say(f"  so far     {state.runs} run, {state.skipped} left out, {state.missed} missed")
    for number, moment in enumerate(due):
        say(f"  {'next' if not number else '    '}       {moment}")
    for row in rows[-20:]:
        record = row.record
        if isinstance(record, ScheduleCreated | ScheduleFired | ScheduleSkipped | ScheduleChanged):
            say(f"  {utc(row.at)}  {in_line(of_schedule(record))}")


@app.command()
def create(  # noqa: PLR0913 - its options, each one word
    session: Annotated[str, Argument(metavar="SESSION", help="The session it speaks to.", show_default=False)] = "",
    text: Annotated[str, Argument(metavar="TEXT", help="What is said.", show_default=False)] = "",
    start: Annotated[str, Option(metavar="PROCESS", help="Start a process instead.", show_default=False)] = "",
    args: Annotated[str, Option(metavar="JSON", help="What it is started with, a list.")] = "[]",
    emit: Annotated[str, Option(metavar="TYPE", help="Say that something happened instead.", show_default=False)] = "",
    payload: Annotated[str, Option(metavar="JSON", help="What happened.")] = "null",
    cron: Annotated[str, Option(metavar="CRON", help="Five fields: '0 9 * * 1-5'.", show_default=False)] = "",
    at: Annotated[str, Option(metavar="TIME", help="Once: 2026-12-24T18:00+01:00.", show_default=False)] = "",
    timezone: Annotated[str, Option(metavar="ZONE", help="An IANA name, such as Europe/Berlin.")] = "UTC",
    id: Annotated[str, Option(metavar="ID", help="The same schedule again is the same one.", show_default=False)] = "",
    agent: Annotated[str, Option(metavar="AGENT", help="Open the session if there is none.", show_default=False)] = "",
    overlap: Annotated[str, Option(metavar="POLICY", help="skip, queue or allow.")] = "skip",
    catch_up: Annotated[str, Option(metavar="POLICY", help="none, one or all.")] = "one",
    by: By = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Do something by the clock: say it to a session, or start, or emit. A worker makes the runs."""
    from typing import cast

    from perdure.cli.places import run
    from perdure.runtime.schedules.schedules import moment_from
    from perdure.vocab.schedules import CatchUp, Overlap

    async def make() -> None:
        from perdure.cli.places import opened
        from perdure.cli.screen import note
        from perdure.codec import decode

        async with opened(db) as rt:
            handle = await rt.schedule(
                id or None,
                say=text if session or text else None,
                session=session,
                start=start or None,
                args=tuple(decode(args, list[object])),
                emit=emit or None,
                payload=decode(payload),
                cron=cron or None,
                at=moment_from(at) if at else None,
                timezone=timezone,
                agent=agent or None,
                overlap=cast("Overlap", overlap),
                catch_up=cast("CatchUp", catch_up),
                by=who(by),
            )
            state, due = await handle.state(), await _next(handle)
        if json:
            _emit(handle, state, due)
        else:
            note(f"Schedule {handle.id}: next at {due[0] if due else '-'}.")

    run(make)


@app.command()
def pause(id: ScheduleName, by: By = "", db: Db = "") -> None:
    """Make no more runs until it is resumed."""
    _do(db, id, lambda handle: handle.pause(by=who(by)), "Paused.", "It was paused.")


@app.command()
def resume(id: ScheduleName, by: By = "", db: Db = "") -> None:
    """Go on, with what is due from now on."""
    _do(db, id, lambda handle: handle.resume(by=who(by)), "It goes on.", "It was not paused.")


@app.command("run")
def run_now(id: ScheduleName, by: By = "", db: Db = "") -> None:
    """Make a run now; it changes nothing about when it is due."""
    _do(db, id, lambda handle: handle.run(by=who(by)), "Asked for; a worker makes it.", "")


@app.command()
def cancel(id: ScheduleName, by: By = "", db: Db = "") -> None:
    """End it: no run is made any more."""
    _do(db, id, lambda handle: handle.cancel(by=who(by)), "Cancelled.", "It had ended.")


def _do(db: str, id: str, what: Callable[[ScheduleHandle], Awaitable[object]], done: str, so_already: str) -> None:
    from perdure.cli.places import run

    async def do() -> None:
        from perdure.cli.places import opened
        from perdure.cli.screen import note

        async with opened(db) as rt:
            note(done if await what(rt.schedules.get(id)) else so_already)

    run(do)


async def _next(handle: ScheduleHandle) -> tuple[str, ...]:
    """The next five runs, as the clock on its wall tells them."""
    from perdure.services.cron import zone_of

    zone = zone_of((await handle.state()).known.timezone)
    return tuple(run.astimezone(zone).strftime("%Y-%m-%d %H:%M %Z") for run in await handle.next_runs())


def _when(state: ScheduleState) -> str:
    schedule = state.known
    return f"{schedule.cron} ({schedule.timezone})" if schedule.cron else "once"


def _deed(state: ScheduleState) -> tuple[str, str]:
    """What a run does, in two cells."""
    from perdure.vocab.schedules import EmitsOccurrence, SayToSession, StartsProcess

    match state.known.target:
        case SayToSession(session=session, text=text):
            return f"says to {session}", text
        case StartsProcess(definition=definition):
            return "starts", definition
        case EmitsOccurrence(source_type=source_type, source=source):
            return "emits", f"{source_type} {source}".strip()


def _target(target: Target) -> dict[str, object]:
    from perdure.vocab.schedules import EmitsOccurrence, SayToSession, StartsProcess

    match target:
        case SayToSession(session=session, text=text):
            return {"session": session, "says": text}
        case StartsProcess(definition=definition, input=given):
            return {"starts": definition, "input": given}
        case EmitsOccurrence(source_type=source_type, payload=payload, source=source):
            return {"emits": source_type, "source": source or None, "payload": payload}


def _condition(state: ScheduleState) -> str:
    if state.ended:
        return f"ended: {state.ended.replace('_', ' ')}"
    return "paused" if state.paused else "active"


def _emit(handle: ScheduleHandle, state: ScheduleState, due: tuple[str, ...]) -> None:
    from perdure.cli.screen import emit

    schedule = state.known
    emit(
        id=handle.id,
        **_target(schedule.target),
        cron=schedule.cron or None,
        at=schedule.at,
        timezone=schedule.timezone,
        overlap=schedule.overlap,
        catch_up=schedule.catch_up,
        state="ended" if state.ended else "paused" if state.paused else "active",
        ended=state.ended or None,
        runs=state.runs,
        skipped=state.skipped,
        missed=state.missed,
        next=list(due),
    )
