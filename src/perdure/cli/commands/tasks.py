"""`perdure tasks list | show | message | cancel | wait`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option, Typer

from perdure.cli.options import Db, Json, Quiet, SessionName
from perdure.runtime.internals import core_of

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime
    from perdure.services.tasks import SessionTask

app = Typer(help="Inspect and control background tasks.", no_args_is_help=True, rich_markup_mode=None)

TaskName = Annotated[str, Argument(metavar="TASK", help="The id of a task.", show_default=False)]


@app.command("list")
def list_tasks(
    session: SessionName,
    db: Db = "",
    kind: Annotated[str, Option(metavar="KIND", help="Only tasks of this kind.", show_default=False)] = "",
    state: Annotated[str, Option(metavar="STATE", help="Only tasks in this state.", show_default=False)] = "",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the tasks of a session, oldest first."""
    from perdure.cli.store_locator import run

    run(lambda: _list(session, db, kind, state, json=json, quiet=quiet))


async def _list(session: str, db: str, kind: str, state: str, *, json: bool, quiet: bool) -> None:
    from perdure.cli.screen import Column, ago, count, note, one_line, say, table
    from perdure.cli.store_locator import find_session, opened

    async with opened(db) as rt:
        now = core_of(rt).clock.wall_ms()
        of = (await find_session(rt, session)).id
        found = [
            task for task in await rt.tasks.list(of) if kind in ("", task.kind) and state in ("", task.state)
        ]  # fmt: skip
    if json:
        for task in found:
            _emit(task)
        return
    if quiet:
        for task in found:
            say(task.id)
        return
    if found:
        columns = [Column(title) for title in ("ID", "STATE", "KIND", "SINCE")]
        rows = [
            (
                *(task.id, task.state, one_line(task.kind, 20), ago(task.created_at, now)),
                one_line(f"{task.display_name}: {task.summary or task.state_detail or '-'}", 80),
            )
            for task in found
        ]
        table([*columns, Column("WHAT", gives=True)], rows)
    note(f"{count(len(found), 'task')}.")


@app.command()
def show(session: SessionName, task: TaskName, db: Db = "", json: Json = False) -> None:
    """Show one task and its messages."""
    from perdure.cli.store_locator import run

    run(lambda: _show(session, task, db, json=json))


async def _show(session: str, name: str, db: str, *, json: bool) -> None:
    from perdure.cli.screen import in_line, one_line, say, utc
    from perdure.cli.store_locator import opened

    async with opened(db) as rt:
        task = await _task(rt, session, name)
        said = await rt.tasks.messages(task.session_id, task.id)
    if json:
        _emit(task)
        return
    for field, value in _fields(task).items():
        if value not in (None, "", [], {}):
            say(f"{field.replace('_', ' '):<19} {one_line(str(value), 200)}")
    for one in said:
        say(f"{utc(one.created_at)}  {one.direction:<8}  {one.id}  {in_line(str(one.content))}")


@app.command()
def message(
    session: SessionName,
    task: TaskName,
    text: Annotated[str, Argument(metavar="TEXT", help="The message.", show_default=False)],
    db: Db = "",
    reply_to: Annotated[str, Option(metavar="ID", help="The message that this one answers.", show_default=False)] = "",
) -> None:
    """Send a message to a running task."""
    from perdure.cli.store_locator import run

    async def say_it() -> None:
        from perdure.cli.screen import note
        from perdure.cli.store_locator import opened
        from perdure.errors import Code, Error
        from perdure.services.tasks import NewTaskMessage

        async with opened(db) as rt:
            found = await _task(rt, session, task)
            if found.is_over:
                raise Error(Code.INVALID_ARGUMENT, f"task {task!r} has ended: {found.state}")
            new = NewTaskMessage("inbound", [{"type": "text", "text": text}], reply_to or None)
            said = await rt.tasks.send_message(found.session_id, task, new)
        note(f"Message {said.id} sent to task {task}.")

    run(say_it)


@app.command()
def cancel(session: SessionName, task: TaskName, db: Db = "") -> None:
    """Request cancellation of a task."""
    from perdure.cli.store_locator import run

    async def ask() -> None:
        from perdure.cli.screen import note
        from perdure.cli.store_locator import opened

        async with opened(db) as rt:
            found = await _task(rt, session, task)
            if not found.is_over:
                await rt.tasks.cancel(found.session_id, task)
        note(f"Task {task} has {found.state}." if found.is_over else f"Cancellation of task {task} requested.")

    run(ask)


@app.command()
def wait(
    session: SessionName,
    task: TaskName,
    db: Db = "",
    timeout: Annotated[float, Option(metavar="SECONDS", min=0.0, help="Wait at most this long.")] = 300.0,
    json: Json = False,
) -> None:
    """Wait until a task ends.

    Exits with 1 if the task did not succeed.
    """
    from perdure.cli.store_locator import run

    async def wait_for_it() -> None:
        from perdure.cli.screen import note
        from perdure.cli.store_locator import opened

        async with opened(db) as rt:
            first = await _task(rt, session, task)
            await rt.get_process(task).wait(timeout)
            found = await _task(rt, session, task) if not first.is_over else first
        if json:
            _emit(found)
        else:
            note(f"Task {task} has {found.state}. {found.summary or ''}".rstrip())
        if found.state != "succeeded":
            raise Exit(1)

    run(wait_for_it)


async def _task(rt: Runtime, session: str, name: str) -> SessionTask:
    from perdure.cli.store_locator import find_session
    from perdure.errors import Code, Error
    from perdure.observe.command_lines import command_line

    of = await find_session(rt, session)
    found = await rt.tasks.get(of.id, name)
    if found is None:
        raise Error(
            Code.TASK_UNKNOWN, f"session {of.id} has no task {name!r}", hint=command_line("tasks list", of.id)
        )  # fmt: skip
    return found


def _fields(task: SessionTask) -> dict[str, object]:
    import msgspec

    from perdure.cli.screen import utc

    moments = {"created_at", "updated_at", "started_at", "finished_at", "cancel_requested_at", "heartbeat_at"}
    plain: dict[str, object] = msgspec.to_builtins(task)
    return {
        name: utc(value) if name in moments and isinstance(value, int) else value for name, value in plain.items()
    }  # fmt: skip


def _emit(task: SessionTask) -> None:
    from perdure.cli.screen import emit

    emit(**_fields(task))
