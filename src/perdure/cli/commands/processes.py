"""`perdure ps` and `perdure processes list | show | logs | signal | cancel`."""

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
    from perdure.cli.screen import Column, emit, note, one_line, say, table, utc

    async with opened(db) as rt:
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
        columns = [Column(title) for title in ("ID", "STATUS", "RUNS", "SINCE")]
        rows = [
            (
                *(one_line(one.handle.id, 60), record.status, one_line(_runs(record), 40)),
                *(utc(record.registered_at), one_line(_waits(record), 60)),
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
    }


@app.command()
def show(id: ProcessName, db: Db = "", json: Json = False) -> None:
    """Show one process: what it is, what it waits for, how it ended."""
    from perdure.cli.places import run

    run(lambda: _show(id, db, json=json))


async def _show(id: str, db: str, *, json: bool) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import emit, one_line, say
    from perdure.processes.record import fold_all

    async with opened(db) as rt:
        rows = await rt.process(id).rows()
    fields = _fields(id, fold_all(rows)) | _of_command(rows)
    if json:
        emit(**fields)
        return
    for name, value in fields.items():
        if value not in (None, "", [], False):
            say(f"{name.replace('_', ' '):<17} {one_line(str(value), 200)}")


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
