"""`perdure ps` and `perdure processes list | show | logs | signal | cancel | why | abandon | delete | edges`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from perdure.cli.options import Db, Json, Quiet

if TYPE_CHECKING:
    from perdure.processes.record import ProcessRecord
    from perdure.vocab.records import Record, Row

app = Typer(help="Look at processes and speak to them.", no_args_is_help=True, rich_markup_mode=None)

ProcessName = Annotated[str, Argument(metavar="ID", help="The id of a process.", show_default=False)]
Limit = Annotated[int, Option("--limit", "-n", min=1, help="How many at most.")]


def ps(db: Db = "", limit: Limit = 50, json: Json = False, quiet: Quiet = False) -> None:
    """List the processes that have not ended."""
    from perdure.cli.places import run

    run(lambda: _list(db, limit, all=False, json=json, quiet=quiet))


@app.command("list")
def list_processes(
    db: Db = "",
    all: Annotated[bool, Option("--all", "-a", help="Also those that have ended.")] = False,
    limit: Limit = 50,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List processes, the latest first."""
    from perdure.cli.places import run

    run(lambda: _list(db, limit, all=all, json=json, quiet=quiet))


async def _list(db: str, limit: int, *, all: bool, json: bool, quiet: bool) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import Column, ago, emit, note, one_line, say, table

    async with opened(db) as rt:
        now = rt.clock.wall_ms()
        found = await rt.processes.list("all" if all else "live", limit=limit)
        records = [] if quiet and not json else [await one.handle.record() for one in found]
    if json:
        for one, record in zip(found, records, strict=True):
            emit(**_fields(one.handle.id, record))
        return
    if quiet:
        for one in found:
            say(one.handle.id)
        return
    if found:
        columns = [Column("ID"), Column("STATUS"), Column("SINCE"), Column("RUNS", gives=True)]
        rows = [
            (
                *(one_line(one.handle.id, 60), record.status, ago(record.registered_at, now)),
                *(one_line(_runs(record), 40), one_line(_waits(record), 60)),
            )
            for one, record in zip(found, records, strict=True)
        ]
        table([*columns, Column("WAITS FOR", gives=True)], rows)
    note("1 process." if len(found) == 1 else f"{len(found)} processes.")


def _runs(record: ProcessRecord) -> str:
    from perdure.processes.commands import command_of

    command = command_of(record.known)
    return record.known.definition if command is None else f"$ {' '.join(command.argv)}"


def _waits(record: ProcessRecord) -> str:
    from perdure.processes.commands import command_of

    command = command_of(record.known)
    if command is not None and record.output is None:
        return f"its end, on {command.host}"
    return ", ".join(wait.effect.partition("/")[2] for wait in record.waiting) or "-"


def _fields(id: str, record: ProcessRecord) -> dict[str, object]:
    from perdure.cli.screen import utc
    from perdure.codec import decode, encode

    return {
        "id": id,
        "status": record.status,
        "definition": record.known.definition,
        "label": record.known.label,
        "registered_at": utc(record.registered_at),
        "first_worker": record.first_worker,
        "waiting": [wait.effect.partition("/")[2] for wait in record.waiting],
        "cancel_requested": record.cancel is not None,
        "output": None if record.output is None else decode(encode(record.output)),
        "unused_steps": list(record.unused_steps),
        "phases": [one.name for one in record.phases if one.until is None],
    }


@app.command()
def show(id: ProcessName, db: Db = "", json: Json = False) -> None:
    """Show one process: what it is, what it waits for, how it ended."""
    from perdure.cli.places import run

    run(lambda: _show(id, db, json=json))


async def _show(id: str, db: str, *, json: bool) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import emit, one_line, say
    from perdure.codec import encode
    from perdure.processes.record import fold_all

    async with opened(db) as rt:
        rows = await rt.process(id).rows()
    fields = _fields(id, fold_all(rows)) | _of_command(rows)
    if json:
        emit(**fields)
        return
    for name, value in fields.items():
        if value not in (None, "", [], False):
            told = value if isinstance(value, str) else encode(value).decode()
            say(f"{name.replace('_', ' '):<17} {one_line(told, 200)}")


def _of_command(rows: tuple[Row, ...]) -> dict[str, object]:
    """What else there is to say of a command."""
    from perdure.processes import commands
    from perdure.processes.record import fold_all

    command = commands.command_of(fold_all(rows).known)
    if command is None:
        return {}
    known = commands.fold_all(command, (row.record for row in rows))
    return {
        "command": list(command.argv),
        "host": command.host,
        "cwd": command.cwd,
        "pid": None if known.spawned is None else known.spawned.pid,
        "attempts": known.attempts,
        "folder": None if known.spawning is None else known.spawning.folder,
        "printed_bytes": dict(known.taken),
        "cut": list(known.cut),
        "exit": known.exit,
    }


@app.command()
def logs(
    id: ProcessName,
    db: Db = "",
    follow: Annotated[bool, Option("--follow", "-f", help="Go on until it ends.")] = False,
) -> None:
    """Print a process's log, a line for each record."""
    from perdure.cli.places import run

    run(lambda: _logs(id, db, follow=follow))


async def _logs(id: str, db: str, *, follow: bool) -> None:
    from perdure.cli.lines import Reader
    from perdure.cli.places import opened
    from perdure.cli.screen import in_line, say, utc
    from perdure.observe.events import Fact
    from perdure.vocab.records import ProcessEvent

    reader = Reader()
    async with opened(db) as rt:
        handle = rt.process(id)
        last = (await handle.rows())[-1].seq
        async for event in handle.events():
            if not isinstance(event, Fact):
                continue
            line = reader.line(event)
            said = _printed(event.record)
            for text in [line.result] if said is None else said:
                say(f"{utc(line.at)}  {in_line(line.kind):<8} {in_line(line.name):<32} {in_line(text)}")
            ended = isinstance(event.record, ProcessEvent) and event.record.output is not None
            if ended or (not follow and event.cursor.seq >= last):
                return


def _printed(record: Record) -> list[str] | None:
    """The lines that a command printed, if this is what it tells."""
    from perdure.processes.commands import OUTPUT
    from perdure.vocab.records import ProcessEvent

    if not isinstance(record, ProcessEvent) or record.event != OUTPUT:
        return None
    return [f"{record.payload['stream']}: {line}" for line in str(record.payload["text"]).splitlines()]


@app.command()
def signal(
    id: ProcessName,
    name: Annotated[str, Argument(metavar="NAME", help="The name of the signal.", show_default=False)],
    payload: Annotated[str, Argument(metavar="JSON", help="What it carries.")] = "null",
    db: Db = "",
    key: Annotated[
        str, Option("--key", metavar="KEY", help="The same key and payload again is one signal.", show_default=False)
    ] = "",
) -> None:
    """Send a signal to a process."""
    from perdure.cli.places import run

    run(lambda: _signal(id, name, payload, db, key))


async def _signal(id: str, name: str, payload: str, db: str, key: str) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import note
    from perdure.codec import decode

    value = decode(payload)
    async with opened(db) as rt:
        await rt.process(id).signal(name, value, id=key or None)
    note(f"Signal {name} is with process {id}.")


@app.command()
def cancel(
    id: ProcessName,
    db: Db = "",
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Why.", show_default=False)] = "",
) -> None:
    """Ask a process to end; it may clean up first."""
    from perdure.cli.places import run

    run(lambda: _cancel(id, db, reason))


async def _cancel(id: str, db: str, reason: str) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import note

    async with opened(db) as rt:
        asked = await rt.process(id).cancel(reason)
    note(f"Process {id} was asked to end." if asked else f"Process {id} has ended, or was asked before.")


@app.command()
def why(id: ProcessName, db: Db = "", json: Json = False) -> None:
    """Say why nothing happens to a process, if nothing does."""
    from perdure.cli.places import run

    run(lambda: _why(id, db, json=json))


async def _why(id: str, db: str, *, json: bool) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import emit, one_line, say

    async with opened(db) as rt:
        answer = await rt.process(id).why()
    if json:
        emit(type="why", v=1, process=id, status=answer.status, because=answer.because, code=answer.code or None)
        return
    say(f"{one_line(id, 60)}  {answer.status}")
    say(f"  because    {one_line(answer.because, 400)}")
    if answer.code:
        say(f"  code       {answer.code}")


@app.command()
def abandon(
    id: ProcessName,
    db: Db = "",
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Why.", show_default=False)] = "",
    by: Annotated[str, Option("--by", metavar="NAME", help="Who gives it up.", show_default=False)] = "",
) -> None:
    """Give a process up that nobody will go on with: it ends as abandoned."""
    from perdure.cli.places import run

    run(lambda: _abandon(id, db, reason, by))


async def _abandon(id: str, db: str, reason: str, by: str) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import note

    async with opened(db) as rt:
        asked = await rt.process(id).abandon(reason, by=by)
    told = f"Process {id} is given up; it ends as abandoned once a worker looks at it."
    note(told if asked else f"Process {id} was given up before.")


@app.command()
def delete(id: ProcessName, db: Db = "") -> None:
    """Remove a process that has ended, with its whole log. Its id is not used again."""
    from perdure.cli.places import run

    run(lambda: _delete(id, db))


async def _delete(id: str, db: str) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import note
    from perdure.processes.registration import unknown

    async with opened(db) as rt:
        if not await rt.process(id).delete():
            raise unknown(id)
    note(f"Process {id} is removed.")


@app.command()
def edges(
    id: ProcessName,
    db: Db = "",
    add: Annotated[
        str, Option("--add", metavar="SESSION", help="Let this session see it too.", show_default=False)
    ] = "",
    remove: Annotated[
        str, Option("--remove", metavar="SESSION", help="Let this session not see it.", show_default=False)
    ] = "",
    json: Json = False,
) -> None:
    """List from which sessions a process is seen, or change that. The process goes on."""
    from perdure.cli.places import run

    run(lambda: _edges(id, db, add, remove, json=json))


async def _edges(id: str, db: str, add: str, remove: str, *, json: bool) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import emit, note, one_line, say
    from perdure.ids import SessionId, session_stream

    async with opened(db) as rt:
        if add:
            await rt.processes.grant(id, session=add)
        if remove:
            await rt.processes.revoke(id, session=remove)
        seen = (await rt.process(id).record()).observers
        there = [
            scope
            for scope in seen
            if await rt.store.stream(session_stream(rt.tenant, SessionId(scope.session_id))) is not None
        ]
    for scope in there:
        if json:
            emit(process=id, session=scope.session_id, frame=scope.frame_id or None)
        else:
            say(one_line(scope.session_id, 60) + (f"  {one_line(scope.frame_id, 60)}" if scope.frame_id else ""))
    if not json:
        note("Seen from 1 session." if len(there) == 1 else f"Seen from {len(there)} sessions.")
