"""`perdure schedules list | show | create | pause | resume | run | delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from perdure.cli.options import By, Db, Json, Limit, Quiet, who

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.runtime.schedules.schedules import ScheduleHandle
    from perdure.services.schedules import ScheduleState
    from perdure.vocab.schedules import Target

app = Typer(help="Manage schedules.", no_args_is_help=True, rich_markup_mode=None)

ScheduleName = Annotated[str, Argument(metavar="ID", help="The id of a schedule.", show_default=False)]


@app.command("list")
def list_schedules(
    db: Db = "",
    session: Annotated[str, Option(metavar="SESSION", help="Only schedules of this session.", show_default=False)] = "",
    all: Annotated[bool, Option("--all", "-a", help="Include ended schedules.")] = False,
    limit: Limit = 50,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List schedules, last changed first."""
    from perdure.cli.store_locator import run

    run(lambda: _list(db, session, limit, all=all, json=json, quiet=quiet))


async def _list(db: str, session: str, limit: int, *, all: bool, json: bool, quiet: bool) -> None:
    from perdure.cli.screen import Column, count, note, one_line, say, table
    from perdure.cli.store_locator import opened

    async with opened(db) as rt:
        infos = await rt.schedules.list(session=session or None, active=not all, limit=limit)
        handles = [rt.schedules.get(info.name) for info in infos]
        found = [(handle, await handle.info(), await _next(handle)) for handle in handles]
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
    """Show one schedule: action, next runs and history."""
    from perdure.cli.store_locator import run

    run(lambda: _show(id, db, json=json))


async def _show(id: str, db: str, *, json: bool) -> None:
    from perdure.cli.lines import of_schedule
    from perdure.cli.screen import in_line, say, utc
    from perdure.cli.store_locator import opened
    from perdure.vocab.schedules import ScheduleChanged, ScheduleCreated, ScheduleFired, ScheduleSkipped

    async with opened(db) as rt:
        handle = rt.schedules.get(id)
        state, due, rows = await handle.info(), await _next(handle), await handle.journal()
    if json:
        _emit(handle, state, due)
        return
    schedule = state.known
    say(f"{handle.id}  {_condition(state)}")
    say(f"  when       {_when(state)}")
    does, what = _deed(state)
    say(f"  does       {in_line(does)}: {in_line(what)}")
    say(f"  policy     overlap {schedule.overlap}, catch up {schedule.catch_up}")
    say(f"  so far     {state.runs} run, {state.skipped} skipped, {state.missed} missed")
    for number, moment in enumerate(due):
        say(f"  {'next' if not number else '    '}       {moment}")
    for row in rows[-20:]:
        record = row.record
        if isinstance(record, ScheduleCreated | ScheduleFired | ScheduleSkipped | ScheduleChanged):
            say(f"  {utc(row.at)}  {in_line(of_schedule(record))}")


@app.command()
def create(  # noqa: PLR0913 - its options, each one word
    session: Annotated[
        str, Argument(metavar="SESSION", help="The session that receives the input.", show_default=False)
    ] = "",
    text: Annotated[str, Argument(metavar="TEXT", help="The input text.", show_default=False)] = "",
    start: Annotated[str, Option(metavar="PROCESS", help="Start a process instead.", show_default=False)] = "",
    args: Annotated[str, Option(metavar="JSON", help="The arguments, as a JSON list.")] = "[]",
    emit: Annotated[str, Option(metavar="TYPE", help="Emit an occurrence instead.", show_default=False)] = "",
    payload: Annotated[str, Option(metavar="JSON", help="The payload of the occurrence.")] = "null",
    cron: Annotated[str, Option(metavar="CRON", help="Five fields: '0 9 * * 1-5'.", show_default=False)] = "",
    at: Annotated[str, Option(metavar="TIME", help="Once: 2026-12-24T18:00+01:00.", show_default=False)] = "",
    timezone: Annotated[str, Option(metavar="ZONE", help="IANA time zone, e.g. Europe/Berlin.")] = "UTC",
    id: Annotated[str, Option(metavar="ID", help="Idempotency key of the schedule.", show_default=False)] = "",
    agent: Annotated[
        str, Option(metavar="AGENT", help="Agent of a session that a run creates.", show_default=False)
    ] = "",
    overlap: Annotated[str, Option(metavar="POLICY", help="skip, queue or allow.")] = "skip",
    catch_up: Annotated[str, Option(metavar="POLICY", help="none, one or all.")] = "one",
    by: By = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Create a schedule.

    A run sends an input to a session, starts a process or emits an occurrence. Workers make the runs.
    """
    from typing import cast

    from perdure.cli.store_locator import run
    from perdure.runtime.schedules.schedules import moment_from
    from perdure.vocab.schedules import CatchUp, Overlap

    async def make() -> None:
        from perdure.cli.screen import note
        from perdure.cli.store_locator import opened
        from perdure.codec import decode

        async with opened(db) as rt:
            handle = await rt.schedule(
                id or None,
                send=text if session or text else None,
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
            state, due = await handle.info(), await _next(handle)
        if json:
            _emit(handle, state, due)
        else:
            note(f"Schedule {handle.id}: next at {due[0] if due else '-'}.")

    run(make)


@app.command()
def pause(id: ScheduleName, by: By = "", db: Db = "") -> None:
    """Pause a schedule until it is resumed."""
    _do(db, id, lambda handle: handle.pause(by=who(by)), "Paused.", "Already paused.")


@app.command()
def resume(id: ScheduleName, by: By = "", db: Db = "") -> None:
    """Resume a schedule.

    Due times that passed during the pause are not made up for.
    """
    _do(db, id, lambda handle: handle.resume(by=who(by)), "Resumed.", "Not paused.")


@app.command("run")
def run_now(id: ScheduleName, by: By = "", db: Db = "") -> None:
    """Run a schedule now, without changing its due times."""
    _do(db, id, lambda handle: handle.run(by=who(by)), "Run requested; a worker makes it.", "")


@app.command()
def delete(id: ScheduleName, by: By = "", db: Db = "") -> None:
    """Delete a schedule: no further runs."""
    _do(db, id, lambda handle: handle.delete(by=who(by)), "Deleted.", "Already ended.")


def _do(db: str, id: str, what: Callable[[ScheduleHandle], Awaitable[object]], done: str, so_already: str) -> None:
    from perdure.cli.store_locator import run

    async def do() -> None:
        from perdure.cli.screen import note
        from perdure.cli.store_locator import opened

        async with opened(db) as rt:
            note(done if await what(rt.schedules.get(id)) else so_already)

    run(do)


async def _next(handle: ScheduleHandle) -> tuple[str, ...]:
    """Return the next five runs, in the schedule's time zone."""
    from perdure.services.cron import zone_of

    zone = zone_of((await handle.info()).known.timezone)
    return tuple(run.astimezone(zone).strftime("%Y-%m-%d %H:%M %Z") for run in await handle.next_runs())


def _when(state: ScheduleState) -> str:
    schedule = state.known
    return f"{schedule.cron} ({schedule.timezone})" if schedule.cron else "once"


def _deed(state: ScheduleState) -> tuple[str, str]:
    """Return the action of a run, as two cells."""
    from perdure.vocab.schedules import EmitsOccurrence, SendInput, StartsProcess

    match state.known.target:
        case SendInput(session=session, text=text):
            return f"sends to {session}", text
        case StartsProcess(definition=definition):
            return "starts", definition
        case EmitsOccurrence(source_type=source_type, source=source):
            return "emits", f"{source_type} {source}".strip()


def _target(target: Target) -> dict[str, object]:
    from perdure.vocab.schedules import EmitsOccurrence, SendInput, StartsProcess

    match target:
        case SendInput(session=session, text=text):
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
