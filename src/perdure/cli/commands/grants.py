"""`perdure grants list | revoke`."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Typer

from perdure.cli.options import Approver, Db, Json, Quiet, SessionName, approver

app = Typer(help="List and revoke session-wide approvals.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_grants(session: SessionName, db: Db = "", json: Json = False, quiet: Quiet = False) -> None:
    """List session-wide approvals."""
    from perdure.cli.store_locator import run

    run(lambda: _list(session, db, json=json, quiet=quiet))


async def _list(name: str, db: str, *, json: bool, quiet: bool) -> None:
    from perdure.cli.screen import Column, count, emit, note, say, table, utc
    from perdure.cli.store_locator import find_session, opened

    async with opened(db) as rt:
        session = await find_session(rt, name)
        found = await session.grants()
    for one in found if json or quiet else ():
        if json:
            told = {"grant": one.grant, "agent": one.agent, "tool": one.tool, "by": one.by, "at": utc(one.at)}
            emit(type="grant", v=1, session=session.id, **told)
        else:
            say(one.grant)
    if json or quiet:
        return
    if found:
        columns = [Column(title) for title in ("GRANT", "AGENT", "TOOL", "BY", "SINCE", "VIA")]
        table(columns, [(one.grant[:16], one.agent, one.tool, one.by, utc(one.at), one.via) for one in found])
    note(f"{count(len(found), 'grant')}." if found else "No session-wide approvals.")


@app.command()
def revoke(
    session: SessionName,
    grant: Annotated[str, Argument(metavar="GRANT", help="A grant, or a unique prefix.", show_default=False)],
    db: Db = "",
    by: Approver = "",
    json: Json = False,
) -> None:
    """Revoke a session-wide approval.

    Later calls ask again. A running call continues.
    """
    from perdure.cli.store_locator import run

    run(lambda: _revoke(session, grant, db, by, json=json))


async def _revoke(name: str, grant: str, db: str, by: str, *, json: bool) -> None:
    from perdure.cli.screen import emit, say
    from perdure.cli.store_locator import find_session, opened

    async with opened(db) as rt:
        session = await find_session(rt, name)
        who = approver(by)
        await session.revoke_grant(grant, by=who, via="cli")
    if json:
        emit(type="revoked", v=1, session=session.id, grant=grant, by=who)
    else:
        say(f"{grant}  revoked by {who}")
