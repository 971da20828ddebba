"""`perdure audit list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option, Typer

from perdure.cli.options import Db, Json, Limit, moment

if TYPE_CHECKING:
    from collections.abc import Mapping

app = Typer(help="Read the audit log.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def audit() -> None:
    """Read the audit log."""


@app.command("list")
def list_acts(
    session: Annotated[str, Option(metavar="ID", help="Only acts on this session, also a deleted one.")] = "",
    act: Annotated[str, Option(metavar="NAME", help="Only this act, such as session_deleted.")] = "",
    by: Annotated[str, Option(metavar="NAME", help="Only acts by this name.")] = "",
    since: Annotated[str, Option(metavar="WHEN", help="Start: 7d, 12h, or a day such as 2026-11-01 (UTC).")] = "",
    db: Db = "",
    limit: Limit = 50,
    json: Json = False,
) -> None:
    """List audited acts, newest first."""
    from perdure.cli.store_locator import run

    given = {"session": session, "act": act, "by": by}
    run(lambda: _list({name: text for name, text in given.items() if text}, since, db, limit, json=json))


async def _list(wanted: Mapping[str, str], since: str, db: str, limit: int, *, json: bool) -> None:
    from datetime import UTC, datetime

    from perdure.cli.screen import Column, count, emit, note, one_line, table, utc
    from perdure.cli.store_locator import opened
    from perdure.runtime.internals import core_of

    async with opened(db) as rt:
        from_ms = moment(since, core_of(rt).clock.wall_ms()) if since else None
        start = datetime.fromtimestamp(from_ms / 1000, UTC) if from_ms is not None else None
        found = await rt.audit.list(**wanted, since=start, limit=limit)  # type: ignore[arg-type] - checked there
    if json:
        for one in found:
            fields = {"session": one.session, "target": one.target, "detail": one.detail}
            emit(
                type="act",
                v=1,
                id=one.id,
                at=utc(one.at),
                act=one.act,
                outcome=one.outcome,
                by=one.by,
                via=one.via,
                **fields,
            )
        return
    if found:
        titles = ("AT", "ACT", "OUTCOME", "BY", "VIA", "SESSION")
        columns = [Column(title) for title in titles]
        rows = [
            (
                *(utc(one.at), one.act, one.outcome, one_line(one.by, 40), one_line(one.via, 20)),
                *(one_line(one.session, 40), one_line(f"{one.target} {one.detail}", 80)),
            )
            for one in found
        ]
        table([*columns, Column("TARGET", gives=True)], rows)
    note(f"{count(len(found), 'act')}." if found else "No audited acts.")
