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
    grant: Annotated[str, Argument(metavar="GRANT", help="A grant, or 8 characters of it.", show_default=False)],
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
        grant = _full(grant, [one.grant for one in await session.grants()])
        await session.revoke_grant(grant, by=who, via="cli")
    if json:
        emit(type="revoked", v=1, session=session.id, grant=grant, by=who)
    else:
        say(f"{grant}  revoked by {who}")


def _full(text: str, grants: list[str]) -> str:
    """Return the only grant that begins with this text, or the text."""
    from perdure.errors import Code, Error
    from perdure.runtime.sessions.approvals import MIN_PREFIX_CHARS

    found = [one for one in grants if one.startswith(text)] if len(text) >= MIN_PREFIX_CHARS else []
    if len(found) > 1:
        raise Error(Code.INVALID_ID, f"ambiguous grant id {text!r}", hint="type more of the id")
    return found[0] if found else text
