"""`perdure db status | migrate | check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option, Typer

from perdure.cli.options import Db, Json, Terse
from perdure.runtime.internals import core_of

if TYPE_CHECKING:
    from perdure.store.steps import SchemaState

app = Typer(help="Check and migrate a store.", no_args_is_help=True, rich_markup_mode=None)


async def _state(db: str) -> SchemaState:
    from perdure.cli.store_locator import store_url
    from perdure.runtime.clock import SystemClock
    from perdure.runtime.stores import schema_of

    return await schema_of(store_url(db), SystemClock())


@app.command()
def status(db: Db = "", json: Json = False) -> None:
    """Show the schema version and pending migrations."""
    from perdure.cli.screen import emit, say
    from perdure.cli.store_locator import run, store_file, store_url
    from perdure.store.sqlite import write_lock

    state = run(lambda: _state(db))
    pending = [step.name for step in state.pending]
    engine = write_lock.diagnose() if store_file(store_url(db)) else None
    if json:
        told = {} if engine is None else {"engine": engine.detail}
        emit(type="schema", v=1, store=state.place, version=state.version, known=state.known, pending=pending, **told)
        return
    say(f"store      {state.place}")
    say(f"schema     {state.version} of {state.known}")
    say(f"pending    {', '.join(pending) or 'nothing'}", "warn" if pending else "ok")
    if engine is not None:
        say(f"engine     {engine.detail}", engine.status)


@app.command()
def migrate(
    dry_run: Annotated[bool, Option("--dry-run", help="Print the pending SQL and change nothing.")] = False,
    db: Db = "",
) -> None:
    """Migrate the store to the current schema."""
    from perdure.cli.screen import count, say
    from perdure.cli.store_locator import run

    state = run(lambda: _state(db))
    if dry_run:
        for step in state.pending:
            for line in step.sql.strip().split("\n"):
                say(line)
    elif state.pending:
        run(lambda: _open(db))
    done = (
        f"{count(len(state.pending), 'step')} {'pending' if dry_run else 'applied'}"
        if state.pending
        else "nothing to do"
    )
    say(f"{'-- ' if dry_run else ''}{state.place}: {done}")


async def _open(db: str) -> None:
    from perdure.cli.store_locator import opened

    async with opened(db):
        pass  # opening a store applies its migrations


@app.command()
def check(db: Db = "", json: Json = False, quiet: Terse = False) -> None:
    """Check a store's data, schema and settings.

    Covers logs, references, schema, durability and leases.
    """
    from perdure.cli.store_locator import run

    raise Exit(run(lambda: _check(db, json=json, quiet=quiet)))


async def _check(db: str, *, json: bool, quiet: bool) -> int:
    from perdure.cli.commands.doctor import show
    from perdure.cli.exits import FAILED, OK
    from perdure.cli.store_locator import opened
    from perdure.store.shapes import Diagnosis

    state = await _state(db)
    if state.pending:  # opening the store would migrate it
        detail = f"{state.version} of {state.known}; run `perdure db migrate`"
        found: tuple[Diagnosis, ...] = (Diagnosis("fail", "schema", detail),)
    else:
        async with opened(db) as rt:
            found = await core_of(rt).store.check()
    show(found, json=json, quiet=quiet)
    return FAILED if any(one.status == "fail" for one in found) else OK
