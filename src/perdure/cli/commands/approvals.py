"""`perdure approvals list | show | approve | deny | settle | watch`."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from perdure.cli.options import Approver, Db, Json, Limit, Quiet, approver
from perdure.runtime.internals import core_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.codec import Json as Anything
    from perdure.observe.pending import PendingDecision
    from perdure.runtime.runtime import Runtime
    from perdure.runtime.sessions.approvals import Approval
    from perdure.vocab.approvals import Decision

app = Typer(help="List and decide approvals and calls in doubt.", no_args_is_help=True, rich_markup_mode=None)

AskName = Annotated[
    str, Argument(metavar="ID", help="An id (apr_…, dbt_…), or 8 characters of it.", show_default=False)
]
Reason = Annotated[str, Option("--reason", metavar="TEXT", help="Reason, for the record.", show_default=False)]
Denial = Annotated[str, Option("--reason", metavar="TEXT", help="Reason, shown to the model.", show_default=False)]


class DoubtOutcome(enum.StrEnum):
    """The possible outcomes of a call in doubt."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did-not-happen"
    UNKNOWN = "unknown"


@app.command("list")
def list_approvals(
    db: Db = "",
    limit: Limit = 50,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List pending decisions, oldest first."""
    from perdure.cli.store_locator import run

    run(lambda: _list(db, limit, json=json, quiet=quiet))


async def _list(db: str, limit: int, *, json: bool, quiet: bool) -> None:
    from perdure.cli.screen import Column, ago, count, note, one_line, say, table, took
    from perdure.cli.store_locator import opened
    from perdure.codec import encode

    async with opened(db) as rt:
        found = await rt.approvals.list(limit=limit)
        now = core_of(rt).clock.wall_ms()
    if json:
        for one in found:
            _emit(one)
        return
    if quiet:
        for one in found:
            say(one.id)
        return
    if found:
        columns = [Column(title) for title in ("ID", "KIND", "SESSION", "TOOL", "REQUESTED", "EXPIRES IN")]
        rows = [
            (
                *(one.id, one.kind, one.session, one.tool, ago(one.since, now)),
                took(max(0, one.until - now)) if one.until else "-",
                one_line(encode(one.args).decode(), 60),
            )
            for one in found
        ]
        table([*columns, Column("ARGUMENTS", gives=True)], rows)
    note(f"{count(len(found), 'decision')} waiting." if found else "No pending decisions.")


@app.command()
def show(id: AskName, db: Db = "", json: Json = False) -> None:
    """Show one request: its call and its decision."""
    from perdure.cli.store_locator import run

    run(lambda: _show(id, db, json=json))


async def _show(id: str, db: str, *, json: bool) -> None:
    from perdure.cli.screen import say, utc
    from perdure.cli.store_locator import opened, to_paste
    from perdure.codec import encode

    async with opened(db) as rt:
        found = await rt.approvals.get(await _full(rt, id))
    asked = found.question
    if json:
        _emit(asked, found)
        return
    say(f"{asked.id}  {found.status}")
    say(f"  request    {asked.what}")
    say(f"  arguments  {encode(asked.args).decode()}")
    say(f"  session    {asked.session}")
    say(f"  requested  {utc(asked.since)}")
    if asked.until:
        say(f"  expires    {utc(asked.until)}")
    if found.decision:
        say(f"  decided    {found.status} by {found.decision.by} at {utc(found.decision.at)}")
    if found.decision and found.decision.args is not None:
        say(f"  edited     {encode(found.decision.args).decode()}")
    if found.decision and found.decision.reason:
        say(f"  reason     {found.decision.reason}")
    if found.used_at:
        say(f"  started    {utc(found.used_at)}")
    if found.status == "waiting":
        say(f"  next       {to_paste(asked.who.partition('; ')[2], db)}")


@app.command()
def approve(
    id: AskName,
    db: Db = "",
    args: Annotated[
        str | None, Option("--args", metavar="JSON", help="Run the call with these arguments.", show_default=False)
    ] = None,
    for_session: Annotated[
        bool, Option("--for-session", help="Also approve later calls of the tool in this session.")
    ] = False,
    by: Approver = "",
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Approve a call."""
    from perdure.cli.store_locator import run

    changed = _arguments(args) if args is not None else None

    async def decide(rt: Runtime, id: str) -> Decision:
        return await rt.approvals.approve(
            id,
            by=approver(by),
            args=changed,
            for_session=for_session,
            reason=reason,
            via="cli",
        )

    run(lambda: _decide(id, db, decide, json=json))


@app.command()
def deny(id: AskName, db: Db = "", by: Approver = "", reason: Denial = "", json: Json = False) -> None:
    """Deny a call. The model receives the reason."""
    from perdure.cli.store_locator import run

    async def decide(rt: Runtime, id: str) -> Decision:
        return await rt.approvals.deny(id, by=approver(by), reason=reason, via="cli")

    run(lambda: _decide(id, db, decide, json=json))


@app.command()
def settle(
    id: AskName,
    outcome: Annotated[DoubtOutcome, Argument(help="The outcome of the call.", show_default=False)],
    db: Db = "",
    value: Annotated[
        str | None, Option("--value", metavar="JSON", help="The result of the call.", show_default=False)
    ] = None,
    by: Approver = "",
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Record the outcome of a call in doubt.

    A call that did not happen is dispatched again, under the same idempotency key.
    """
    from perdure.cli.store_locator import run

    gave = _parsed(value, "--value") if value is not None else None

    async def decide(rt: Runtime, id: str) -> Decision:
        word = "did_not_happen" if outcome is DoubtOutcome.DID_NOT_HAPPEN else outcome.value
        return await rt.approvals.settle(id, word, by=approver(by), value=gave, reason=reason, via="cli")

    run(lambda: _decide(id, db, decide, json=json))


async def _decide(id: str, db: str, decide: Callable[[Runtime, str], Awaitable[Decision]], *, json: bool) -> None:
    from perdure.cli.screen import say
    from perdure.cli.store_locator import opened

    async with opened(db) as rt:
        whole = await _full(rt, id)
        decision = await decide(rt, whole)
        found = await rt.approvals.get(whole)
    if json:
        _emit(found.question, found)
        return
    said = decision.verdict.replace("_", " ")
    words = {"approve": "approved", "deny": "denied"}.get(decision.verdict, said)
    say(f"{found.question.id}  {words} by {decision.by}")


async def _full(rt: Runtime, id: str) -> str:
    """Return the whole id, and tell which one a prefix stands for."""
    from perdure.cli.screen import note
    from perdure.runtime.sessions.approvals import full_id

    whole = await full_id(core_of(rt), id)
    if whole != id:
        note(f"{id} is {whole}.")
    return whole


@app.command()
def watch(db: Db = "", json: Json = False) -> None:
    """Print pending decisions, then new ones, until Ctrl-C."""
    from perdure.cli.store_locator import run

    run(lambda: _watch(db, json=json))


async def _watch(db: str, *, json: bool) -> None:
    from perdure.cli.screen import clock, one_line, say
    from perdure.cli.store_locator import opened
    from perdure.codec import encode

    async with opened(db) as rt:
        async for one in rt.approvals.watch():
            if json:
                _emit(one)
            else:
                args = one_line(encode(one.args).decode(), 60)
                say(f"{clock(one.since)}  {one.id}  {one.kind}  {one.session}  {one.tool} {args}")


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
        raise Error(Code.INVALID_JSON, f"{option} is not JSON", because="the text is not UTF-8") from None


def _arguments(text: str) -> dict[str, Anything]:
    """Parse all arguments of a call. Anything else is refused, so that a typo cannot approve the original call."""
    from typing import cast

    from perdure.errors import Code, Error

    args = _parsed(text, "--args")
    if not isinstance(args, dict):
        raise Error(
            Code.INVALID_ARGUMENT,
            "--args must be a JSON object",
            because="the object replaces all arguments of the call; nothing was decided",
            hint="""--args '{"cents": 4000}'""",
        )
    return cast("dict[str, Anything]", args)
