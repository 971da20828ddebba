"""`perdure approvals list | show | approve | deny | settle | watch | grants | revoke`."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from perdure.cli.options import Db, Json, Quiet, SessionName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.codec import Json as Anything
    from perdure.observe.pending import PendingDecision
    from perdure.runtime.runtime import Runtime
    from perdure.runtime.sessions.approvals import Approval
    from perdure.vocab.approvals import Decision

app = Typer(help="Look at what waits for a person, and decide it.", no_args_is_help=True, rich_markup_mode=None)

AskName = Annotated[str, Argument(metavar="ID", help="An id (apr_…, dbt_…), or its beginning.", show_default=False)]
By = Annotated[str, Option("--by", metavar="NAME", help="Who decides. Default: who is logged in.", show_default=False)]
Reason = Annotated[str, Option("--reason", metavar="TEXT", help="Why; it is recorded.", show_default=False)]
Denial = Annotated[str, Option("--reason", metavar="TEXT", help="Why; the model is told.", show_default=False)]


class Outcome(enum.StrEnum):
    """What can have become of a call in doubt."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did-not-happen"
    UNKNOWN = "unknown"


@app.command("list")
def list_approvals(
    db: Db = "",
    limit: Annotated[int, Option("--limit", "-n", min=1, help="How many at most.")] = 50,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List what waits for a person, the longest waiting first."""
    from perdure.cli.places import run

    run(lambda: _list(db, limit, json=json, quiet=quiet))


async def _list(db: str, limit: int, *, json: bool, quiet: bool) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import Column, ago, count, note, one_line, say, table, took
    from perdure.codec import encode

    async with opened(db) as rt:
        found = await rt.approvals.list(limit=limit)
        now = rt.clock.wall_ms()
    if json:
        for one in found:
            _emit(one)
        return
    if quiet:
        for one in found:
            say(one.id)
        return
    if found:
        columns = [Column(title) for title in ("ID", "KIND", "SESSION", "TOOL", "ASKED", "EXPIRES IN")]
        rows = [
            (
                *(one.id, one.kind, one.session, one.tool, ago(one.since, now)),
                took(max(0, one.until - now)) if one.until else "-",
                one_line(encode(one.args).decode(), 60),
            )
            for one in found
        ]
        table([*columns, Column("ARGUMENTS", gives=True)], rows)
    note(f"{count(len(found), 'decision')} waiting." if found else "Nothing waits for you.")


@app.command()
def show(id: AskName, db: Db = "", json: Json = False) -> None:
    """Show one question: what would run, and what was decided."""
    from perdure.cli.places import run

    run(lambda: _show(id, db, json=json))


async def _show(id: str, db: str, *, json: bool) -> None:
    from perdure.cli.places import opened, to_paste
    from perdure.cli.screen import say, utc
    from perdure.codec import encode

    async with opened(db) as rt:
        found = await rt.approvals.get(id)
    asked = found.question
    if json:
        _emit(asked, found)
        return
    say(f"{asked.id}  {found.status}")
    say(f"  waits for  {asked.what}")
    say(f"  arguments  {encode(asked.args).decode()}")
    say(f"  session    {asked.session}")
    say(f"  asked      {utc(asked.since)}")
    if asked.until:
        say(f"  expires    {utc(asked.until)}")
    if found.decision:
        say(f"  decided    {found.status} by {found.decision.by} at {utc(found.decision.at)}")
    if found.decision and found.decision.args is not None:
        say(f"  edited     {encode(found.decision.args).decode()}")
    if found.decision and found.decision.reason:
        say(f"  reason     {found.decision.reason}")
    if found.used_at:
        say(f"  begun      {utc(found.used_at)}")
    if found.status == "waiting":
        say(f"  next       {to_paste(asked.who.partition('; ')[2], db)}")


@app.command()
def approve(
    id: AskName,
    db: Db = "",
    edit: Annotated[
        str | None, Option("--edit", metavar="JSON", help="Run it with these arguments instead.", show_default=False)
    ] = None,
    for_session: Annotated[
        bool, Option("--for-session", help="Also allow later calls of the tool in this session.")
    ] = False,
    by: By = "",
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Allow a call to run."""
    from perdure.cli.places import run

    changed = _arguments(edit) if edit is not None else None

    async def decide(rt: Runtime) -> Decision:
        return await rt.approvals.approve(
            id,
            by=by or _me(),
            edit=changed,
            for_session=for_session,
            reason=reason,
            via="cli",
        )

    run(lambda: _decide(id, db, decide, json=json))


@app.command()
def deny(id: AskName, db: Db = "", by: By = "", reason: Denial = "", json: Json = False) -> None:
    """Do not allow a call. The model is told, with the reason."""
    from perdure.cli.places import run

    run(lambda: _decide(id, db, lambda rt: rt.approvals.deny(id, by=by or _me(), reason=reason, via="cli"), json=json))


@app.command()
def settle(
    id: AskName,
    outcome: Annotated[Outcome, Argument(help="What became of the call.", show_default=False)],
    db: Db = "",
    value: Annotated[str | None, Option("--value", metavar="JSON", help="What it gave.", show_default=False)] = None,
    by: By = "",
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Say what became of a call in doubt. One that did not happen goes out again, under the same idempotency key."""
    from perdure.cli.places import run

    gave = _parsed(value, "--value") if value is not None else None

    async def decide(rt: Runtime) -> Decision:
        word = "did_not_happen" if outcome is Outcome.DID_NOT_HAPPEN else outcome.value
        return await rt.approvals.settle(id, word, by=by or _me(), value=gave, reason=reason, via="cli")

    run(lambda: _decide(id, db, decide, json=json))


async def _decide(id: str, db: str, decide: Callable[[Runtime], Awaitable[Decision]], *, json: bool) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import say

    async with opened(db) as rt:
        decision = await decide(rt)
        found = await rt.approvals.get(id)
    if json:
        _emit(found.question, found)
        return
    said = decision.verdict.replace("_", " ")
    words = {"approve": "approved", "deny": "denied"}.get(decision.verdict, said)
    say(f"{found.question.id}  {words} by {decision.by}")


@app.command()
def watch(db: Db = "", json: Json = False) -> None:
    """Print what waits for a person, and then every new question, until interrupted."""
    from perdure.cli.places import run

    run(lambda: _watch(db, json=json))


async def _watch(db: str, *, json: bool) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import clock, one_line, say
    from perdure.codec import encode

    async with opened(db) as rt:
        async for one in rt.approvals.watch():
            if json:
                _emit(one)
            else:
                args = one_line(encode(one.args).decode(), 60)
                say(f"{clock(one.since)}  {one.id}  {one.kind}  {one.session}  {one.tool} {args}")


@app.command()
def grants(session: SessionName, db: Db = "", json: Json = False, quiet: Quiet = False) -> None:
    """List the tools that somebody approved for a whole session."""
    from perdure.cli.places import run

    run(lambda: _grants(session, db, json=json, quiet=quiet))


async def _grants(name: str, db: str, *, json: bool, quiet: bool) -> None:
    from perdure.cli.places import find_session, opened
    from perdure.cli.screen import Column, count, emit, note, say, table, utc

    async with opened(db) as rt:
        session = await find_session(rt, name)
        found = await session.grants()
    for one in found if json or quiet else ():
        if json:
            emit(type="grant", v=1, session=session.id, grant=one.grant, tool=one.tool, by=one.by, at=utc(one.at))
        else:
            say(one.grant)
    if json or quiet:
        return
    if found:
        columns = [Column(title) for title in ("GRANT", "TOOL", "BY", "SINCE", "VIA")]
        table(columns, [(one.grant[:16], one.tool, one.by, utc(one.at), one.via) for one in found])
    note(f"{count(len(found), 'grant')}." if found else "Nothing is approved for this whole session.")


@app.command()
def revoke(
    session: SessionName,
    grant: Annotated[str, Argument(metavar="GRANT", help="Which one, or its beginning.", show_default=False)],
    db: Db = "",
    by: By = "",
    json: Json = False,
) -> None:
    """Take a grant back: from now on somebody is asked again. A call that has begun is not stopped."""
    from perdure.cli.places import run

    run(lambda: _revoke(session, grant, db, by, json=json))


async def _revoke(name: str, grant: str, db: str, by: str, *, json: bool) -> None:
    from perdure.cli.places import find_session, opened
    from perdure.cli.screen import emit, say

    async with opened(db) as rt:
        session = await find_session(rt, name)
        who = by or _me()
        await session.revoke(grant, by=who, via="cli")
    if json:
        emit(type="revoked", v=1, session=session.id, grant=grant, by=who)
    else:
        say(f"{grant}  revoked by {who}")


def _emit(asked: PendingDecision, found: Approval | None = None) -> None:
    from perdure.cli.screen import emit, utc

    decision = found.decision if found else None
    emit(
        type="approval",
        v=1,
        id=asked.id,
        kind=asked.kind,
        session=asked.session,
        turn=asked.turn,
        call=asked.call,
        tool=asked.tool,
        arguments=asked.args,
        asked_at=utc(asked.since),
        expires_at=utc(asked.until) if asked.until else None,
        status=found.status if found else "waiting",
        decided_by=decision.by if decision else None,
        decided_at=utc(decision.at) if decision else None,
        via=decision.via if decision else None,
        reason=decision.reason if decision else None,
        edited=decision.args if decision else None,
        used_at=utc(found.used_at) if found and found.used_at else None,
    )


def _parsed(text: str, option: str) -> Anything:
    from perdure.codec import decode
    from perdure.errors import Code, Error

    try:
        return decode(text.encode())
    except Error as problem:
        raise Error(Code.INVALID_JSON, f"{option} is not JSON", because=problem.because) from None
    except UnicodeError:
        raise Error(Code.INVALID_JSON, f"{option} is not JSON", because="it is not UTF-8") from None


def _arguments(text: str) -> dict[str, Anything]:
    """All arguments of a call. Anything else is a slip, which must not approve the call as it was."""
    from typing import cast

    from perdure.errors import Code, Error

    edit = _parsed(text, "--edit")
    if not isinstance(edit, dict):
        raise Error(
            Code.INVALID_ARGUMENT,
            "--edit is no object",
            because="it says all arguments of the call; nothing was decided",
            hint="""--edit '{"cents": 4000}'""",
        )
    return cast("dict[str, Anything]", edit)


def _me() -> str:
    """Who is logged in, as the operating system says."""
    import getpass

    from perdure.errors import Code, Error

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        raise Error(
            Code.INVALID_ARGUMENT,
            "a decision needs a name",
            because="the operating system has none for this user",
            hint="--by NAME",
        ) from None
