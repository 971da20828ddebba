"""`perdure db status | migrate | check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option, Typer

from perdure.cli.options import Db, Json, Quiet

if TYPE_CHECKING:
    from perdure.store.steps import SchemaState

app = Typer(help="Look at a store's schema and bring it forward.", no_args_is_help=True, rich_markup_mode=None)


async def _state(db: str) -> SchemaState:
    from perdure.cli.places import store_url
    from perdure.runtime.clock import SystemClock
    from perdure.runtime.stores import schema_of

    return await schema_of(store_url(db), SystemClock())


@app.command()
def status(db: Db = "", json: Json = False) -> None:
    """Say how far the schema is, and what is left to do."""
    from perdure.cli.places import run
    from perdure.cli.screen import emit, say

    state = run(lambda: _state(db))
    pending = [step.name for step in state.pending]
    if json:
        emit(type="schema", v=1, store=state.place, version=state.version, known=state.known, pending=pending)
        return
    say(f"store      {state.place}")
    say(f"schema     {state.version} of {state.known}")
    say(f"pending    {', '.join(pending) or 'nothing'}", "warn" if pending else "ok")


@app.command()
def migrate(
    dry_run: Annotated[bool, Option("--dry-run", help="Print the SQL that is left to run. Change nothing.")] = False,
    db: Db = "",
) -> None:
    """Bring the store forward to the schema of this version."""
    from perdure.cli.places import run
    from perdure.cli.screen import count, say

    state = run(lambda: _state(db))
    if dry_run:
        for step in state.pending:
            for line in step.sql.strip().split("\n"):
                say(line)
    elif state.pending:
        run(lambda: _open(db))
    done = f"{count(len(state.pending), 'step')} {'left' if dry_run else 'made'}" if state.pending else "nothing to do"
    say(f"{'-- ' if dry_run else ''}{state.place}: {done}")


async def _open(db: str) -> None:
    from perdure.cli.places import opened

    async with opened(db):
        pass  # opening a store migrates it


@app.command()
def check(db: Db = "", json: Json = False, quiet: Quiet = False) -> None:
    """Look the store over: logs, references, schema, durability, leases."""
    from perdure.cli.places import run

    raise Exit(run(lambda: _check(db, json=json, quiet=quiet)))


async def _check(db: str, *, json: bool, quiet: bool) -> int:
    from perdure.cli.commands.doctor import show
    from perdure.cli.exits import FAILED, OK
    from perdure.cli.places import opened
    from perdure.store.shapes import Diagnosis

    state = await _state(db)
    if state.pending:  # opening it would change it
        detail = f"{state.version} of {state.known}; run `perdure db migrate`"
        found: tuple[Diagnosis, ...] = (Diagnosis("fail", "schema", detail),)
    else:
        async with opened(db) as rt:
            found = await rt.store.check()
    show(found, json=json, quiet=quiet)
    return FAILED if any(one.status == "fail" for one in found) else OK
