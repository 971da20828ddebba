"""`perdure ps` and `perdure processes list | show | logs | signal | cancel | abandon | delete | share | unshare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from perdure.cli.options import Db, Json, Limit, Quiet, who
from perdure.runtime.internals import core_of

if TYPE_CHECKING:
    from perdure.processes.record import ProcessRecord
    from perdure.runtime.runtime import Runtime
    from perdure.vocab.processes import SessionScope
    from perdure.vocab.records import Record, Row

app = Typer(help="Inspect and control processes.", no_args_is_help=True, rich_markup_mode=None)

ProcessName = Annotated[str, Argument(metavar="ID", help="The id of a process.", show_default=False)]
Observer = Annotated[str, Argument(metavar="SESSION", help="The id of the session.", show_default=False)]


def ps(db: Db = "", limit: Limit = 50, json: Json = False, quiet: Quiet = False) -> None:
    """List the processes that have not ended."""
    from perdure.cli.store_locator import run

    run(lambda: _list(db, limit, all=False, json=json, quiet=quiet))


@app.command("list")
def list_processes(
    db: Db = "",
    all: Annotated[bool, Option("--all", "-a", help="Include ended processes.")] = False,
    limit: Limit = 50,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List processes, newest first."""
    from perdure.cli.store_locator import run

    run(lambda: _list(db, limit, all=all, json=json, quiet=quiet))


async def _list(db: str, limit: int, *, all: bool, json: bool, quiet: bool) -> None:
    from perdure.cli.program import program
    from perdure.cli.screen import Column, ago, emit, note, one_line, say, table
    from perdure.cli.store_locator import db_flag, opened

    async with opened(db) as rt:
        now = core_of(rt).clock.wall_ms()
        found = await rt.processes.list(ended=all, limit=limit)
        records = [] if quiet and not json else [await one.handle.info() for one in found]
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
    ended = "" if found or all else f" Ended ones: {program()} processes list --all{db_flag(db)}"
    note("1 process." if len(found) == 1 else f"{len(found)} processes.{ended}")


def _runs(record: ProcessRecord) -> str:
    from perdure.processes.commands import command_of

    command = command_of(record.known)
    return record.known.definition if command is None else f"$ {' '.join(command.argv)}"


def _waits(record: ProcessRecord) -> str:
    from perdure.processes.commands import command_of

    command = command_of(record.known)
    if command is not None and record.output is None:
        return f"exit on {command.host}"
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
    """Show one process: definition, waits and result."""
    from perdure.cli.store_locator import run

    run(lambda: _show(id, db, json=json))


async def _show(id: str, db: str, *, json: bool) -> None:
    from perdure.cli.screen import emit, one_line, say
    from perdure.cli.store_locator import opened
    from perdure.codec import encode
    from perdure.processes.record import fold_all

    async with opened(db) as rt:
        rows = await rt.get_process(id).journal()
        record = fold_all(rows)
        seen_by = [scope.session_id for scope in await _observers(rt, record)]
    fields = _fields(id, record) | _of_command(rows) | {"visible_to": seen_by}
    if json:
        emit(**fields)
        return
    for name, value in fields.items():
        if value not in (None, "", [], False):
            told = value if isinstance(value, str) else encode(value).decode()
            say(f"{name.replace('_', ' '):<17} {one_line(told, 200)}")


def _of_command(rows: tuple[Row, ...]) -> dict[str, object]:
    """Return the further fields of a process that runs a command."""
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
    follow: Annotated[bool, Option("--follow", "-f", help="Follow the log until the process ends.")] = False,
) -> None:
    """Print a process's log, one line per record."""
    from perdure.cli.store_locator import run

    run(lambda: _logs(id, db, follow=follow))


async def _logs(id: str, db: str, *, follow: bool) -> None:
    from perdure.cli.lines import Reader
    from perdure.cli.screen import in_line, say, utc
    from perdure.cli.store_locator import opened
    from perdure.observe.events import RecordEvent
    from perdure.vocab.records import ProcessEvent

    reader = Reader()
    async with opened(db) as rt:
        handle = rt.get_process(id)
        last = (await handle.journal())[-1].seq
        async for event in handle.events():
            if not isinstance(event, RecordEvent):
                continue
            line = reader.line(event)
            said = _printed(event.record)
            for text in [line.result] if said is None else said:
                say(f"{utc(line.at)}  {in_line(line.kind):<8} {in_line(line.name):<32} {in_line(text)}")
            ended = isinstance(event.record, ProcessEvent) and event.record.output is not None
            if ended or (not follow and event.cursor.seq >= last):
                return


def _printed(record: Record) -> list[str] | None:
    """Return the output lines of a command's output event, or None for other records."""
    from perdure.processes.commands import OUTPUT
    from perdure.vocab.records import ProcessEvent

    if not isinstance(record, ProcessEvent) or record.event != OUTPUT:
        return None
    return [f"{record.payload['stream']}: {line}" for line in str(record.payload["text"]).splitlines()]


@app.command()
def signal(
    id: ProcessName,
    name: Annotated[str, Argument(metavar="NAME", help="The name of the signal.", show_default=False)],
    payload: Annotated[str, Argument(metavar="JSON", help="The payload of the signal.")] = "null",
    db: Db = "",
    key: Annotated[
        str,
        Option(
            "--key", metavar="KEY", help="Idempotency key: the same key and payload is one signal.", show_default=False
        ),
    ] = "",
) -> None:
    """Send a signal to a process."""
    from perdure.cli.store_locator import run

    run(lambda: _signal(id, name, payload, db, key))


async def _signal(id: str, name: str, payload: str, db: str, key: str) -> None:
    from perdure.cli.screen import note
    from perdure.cli.store_locator import opened
    from perdure.codec import decode

    value = decode(payload)
    async with opened(db) as rt:
        await rt.get_process(id).signal(name, value, id=key or None)
    note(f"Signal {name} sent to process {id}.")


@app.command()
def cancel(
    id: ProcessName,
    db: Db = "",
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Reason, for the record.", show_default=False)] = "",
) -> None:
    """Request cancellation; the process may clean up first."""
    from perdure.cli.store_locator import run

    run(lambda: _cancel(id, db, reason))


async def _cancel(id: str, db: str, reason: str) -> None:
    from perdure.cli.screen import note
    from perdure.cli.store_locator import opened

    async with opened(db) as rt:
        asked = await rt.get_process(id).cancel(reason, by=who(""), via="cli")
    note(f"Cancellation of process {id} requested." if asked else f"Process {id} has ended or is being cancelled.")


@app.command()
def abandon(
    id: ProcessName,
    db: Db = "",
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Reason, for the record.", show_default=False)] = "",
    by: Annotated[str, Option("--by", metavar="NAME", help="Name to record.", show_default=False)] = "",
) -> None:
    """End a process whose worker is gone."""
    from perdure.cli.store_locator import run

    run(lambda: _abandon(id, db, reason, by))


async def _abandon(id: str, db: str, reason: str, by: str) -> None:
    from perdure.cli.screen import note
    from perdure.cli.store_locator import opened

    async with opened(db) as rt:
        asked = await rt.get_process(id).abandon(reason, by=by, via="cli")
    told = f"Process {id} abandoned; the next worker that claims it records the end."
    note(told if asked else f"Process {id} was already abandoned.")


@app.command()
def delete(id: ProcessName, db: Db = "") -> None:
    """Delete an ended process and its log.

    The id is not used again.
    """
    from perdure.cli.store_locator import run

    run(lambda: _delete(id, db))


async def _delete(id: str, db: str) -> None:
    from perdure.cli.screen import note
    from perdure.cli.store_locator import opened
    from perdure.processes.registration import unknown

    async with opened(db) as rt:
        if not await rt.get_process(id).delete(by=who(""), via="cli"):
            raise unknown(id)
    note(f"Process {id} deleted.")


@app.command()
def share(id: ProcessName, session: Observer, db: Db = "", json: Json = False) -> None:
    """Make a process visible to a session.

    Prints the sessions that can see the process. Visibility does not affect the process itself.
    """
    from perdure.cli.store_locator import run

    run(lambda: _share(id, session, db, json=json))


async def _share(id: str, session: str, db: str, *, json: bool) -> None:
    from perdure.cli.store_locator import opened

    async with opened(db) as rt:
        await rt.processes.share(id, session=session)
        await _print_observers(rt, id, json=json)


@app.command()
def unshare(id: ProcessName, session: Observer, db: Db = "", json: Json = False) -> None:
    """Hide a process from a session.

    Prints the sessions that can still see the process. Visibility does not affect the process itself.
    """
    from perdure.cli.store_locator import run

    run(lambda: _unshare(id, session, db, json=json))


async def _unshare(id: str, session: str, db: str, *, json: bool) -> None:
    from perdure.cli.store_locator import opened

    async with opened(db) as rt:
        await rt.processes.unshare(id, session=session)
        await _print_observers(rt, id, json=json)


async def _print_observers(rt: Runtime, id: str, *, json: bool) -> None:
    from perdure.cli.screen import emit, note, one_line, say

    there = await _observers(rt, await rt.get_process(id).info())
    for scope in there:
        if json:
            emit(process=id, session=scope.session_id, frame=scope.frame_id or None)
        else:
            say(one_line(scope.session_id, 60) + (f"  {one_line(scope.frame_id, 60)}" if scope.frame_id else ""))
    if not json:
        note("Visible to 1 session." if len(there) == 1 else f"Visible to {len(there)} sessions.")


async def _observers(rt: Runtime, record: ProcessRecord) -> list[SessionScope]:
    """Return the scopes that can see a process and whose session exists."""
    from perdure.ids import SessionId, session_stream

    return [
        scope
        for scope in record.observers
        if await core_of(rt).store.stream(session_stream(rt.tenant, SessionId(scope.session_id))) is not None
    ]
