"""`perdure sessions list | show | watch | retry | export | import`, and the commands of `session_verbs`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from perdure.cli.commands import session_verbs
from perdure.cli.options import Db, Json, Quiet, SessionName, who
from perdure.runtime.internals import core_of, ref_of

if TYPE_CHECKING:
    from perdure.cli.timeline import TurnPicture
    from perdure.ids import StreamId, Tenant
    from perdure.observe.why import Explanation
    from perdure.runtime.runtime import Runtime
    from perdure.session.fold import SessionState
    from perdure.store.shapes import StreamInfo

app = Typer(help="Inspect and control sessions.", no_args_is_help=True, rich_markup_mode=None)

MARKS = {"idle": "○", "queued": "●", "running": "▶", "waiting": "◷", "paused": "⏸", "failed": "⊘"}
TONES = {"idle": "", "queued": "warn", "running": "ok", "waiting": "", "paused": "warn", "failed": "fail"}


# --- list ---------------------------------------------------------------------------------------------------------


@app.command("list")
def list_sessions(  # noqa: PLR0913 - its options, each one word
    limit: Annotated[int, Option("--limit", "-n", metavar="N", min=1, max=1000, help="List at most this many.")] = 20,
    after: Annotated[str, Option(metavar="CURSOR", help="Continue after the cursor of a previous list.")] = "",
    status: Annotated[
        str,
        Option(
            metavar="STATUS,…",
            help="Only these: idle, queued, running, waiting, paused, failed.",
        ),
    ] = "",
    agent: Annotated[str, Option(metavar="NAME", help="Only sessions of this agent.")] = "",
    tag: Annotated[str, Option(metavar="TAG", help="Only sessions with this tag.")] = "",
    db: Db = "",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List sessions, newest first."""
    from perdure.cli.store_locator import run

    wanted = _statuses(status)
    run(lambda: _list(_Query(limit, after, wanted, agent, tag), db, json=json, quiet=quiet))


def _statuses(text: str) -> frozenset[str]:
    from perdure.errors import Code, Error

    wanted = frozenset(part.strip() for part in text.split(",") if part.strip())
    if unknown := sorted(wanted - MARKS.keys()):
        raise Error(
            Code.INVALID_ARGUMENT,
            f"unknown status {unknown[0]!r}",
            because=f"the statuses are {', '.join(MARKS)}",
        )
    return wanted


class _Query:
    """The filters of a list."""

    def __init__(self, limit: int, after: str, statuses: frozenset[str], agent: str, tag: str) -> None:
        self.limit = limit
        self.after = after
        self.statuses = statuses
        self.agent = agent
        self.tag = tag


async def _list(query: _Query, db: str, *, json: bool, quiet: bool) -> None:
    from perdure.cli.screen import note
    from perdure.cli.store_locator import opened

    async with opened(db) as rt:
        found, more = await _matching(rt, query)
        now = core_of(rt).clock.wall_ms()
    _print_list(found, now, json=json, quiet=quiet)
    if json or quiet:
        return
    if not found:
        asked = query.statuses or query.agent or query.after or query.tag
        note("No matching sessions." if asked else "No sessions.")
    else:
        rest = f"  more: --after {_cursor(found[-1][0])}" if more else ""
        note(f"{len(found)} shown, newest first.{rest}")


_Found = tuple["StreamInfo", "Explanation", "SessionState"]


async def _matching(rt: Runtime, query: _Query) -> tuple[list[_Found], bool]:
    """Return the matching sessions up to the limit, and whether more exist."""
    from perdure.cli.session_summary import look

    found: list[_Found] = []
    before = _place(query.after, rt.tenant)
    while page := await core_of(rt).session_streams(limit=100, before=before, tag=query.tag or None):
        for info in page:
            if query.agent and info.agent != query.agent:
                continue
            why, state = await look(rt, info)
            if query.statuses and why.status not in query.statuses:
                continue
            if len(found) == query.limit:
                return found, True
            found.append((info, why, state))
        before = (page[-1].updated_at, page[-1].stream)
    return found, False


def _cursor(info: StreamInfo) -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(f"{info.updated_at:x} {info.name}".encode()).decode().rstrip("=")


def _place(cursor: str, tenant: Tenant) -> tuple[int, StreamId] | None:
    from base64 import urlsafe_b64decode

    from perdure.errors import Code, Error
    from perdure.ids import SessionId, session_stream

    if not cursor:
        return None
    try:
        at, name = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().split(" ", 1)
        return int(at, 16), session_stream(tenant, SessionId(name))
    except ValueError:
        raise Error(
            Code.INVALID_CURSOR,
            f"invalid cursor {cursor[:40]!r}",
            hint="copy the cursor that the list prints after `more:`",
        ) from None


def _print_list(found: list[_Found], now: int, *, json: bool, quiet: bool) -> None:
    from perdure.cli.screen import Cell, Column, ago, emit, one_line, say, table, utc

    if json:
        for info, why, state in found:
            emit(
                type="session",
                v=1,
                id=info.name,
                agent=info.agent,
                status=why.status,
                turns=state.turns,
                tokens=state.usage.tokens,
                created_at=utc(info.created_at),
                updated_at=utc(info.updated_at),
                queued=why.queued,
                summary=why.summary,
                title=info.title,
                tags=list(info.tags),
                paused_by=info.paused.by if info.paused else None,
                paused_at=utc(info.paused.since) if info.paused and info.paused.since is not None else None,
            )
    elif quiet:
        for info, _, _ in found:
            say(info.name)
    elif found:
        titled = any(info.title for info, _, _ in found)
        columns = ("ID", *(["TITLE"] if titled else []), "AGENT", "STATUS", "TURNS", "LAST", "TOKENS", "WAITING FOR")
        rows = [
            (
                info.name,
                *([one_line(info.title, 32) or "-"] if titled else []),
                info.agent,
                Cell(f"{MARKS[why.status]} {why.status}", TONES[why.status]),
                str(state.turns),
                ago(info.updated_at, now),
                "-" if state.open_turn and not state.usage.tokens else str(state.usage.tokens),
                "; ".join(item.what for item in why.waiting) or "-",
            )
            for info, why, state in found
        ]
        right, short = {"TURNS", "TOKENS"}, {"TOKENS": "TOK", "WAITING FOR": "FOR"}
        table([Column(name, short.get(name, ""), name in right, name == "WAITING FOR") for name in columns], rows)


# --- show ---------------------------------------------------------------------------------------------------------


@app.command()
def show(
    session: SessionName,
    turns: Annotated[int, Option(metavar="N", min=1, help="Draw this many of the last turns.")] = 5,
    db: Db = "",
    json: Json = False,
) -> None:
    """Show one session: its turns and their steps."""
    from perdure.cli.store_locator import run

    run(lambda: _show(session, turns, db, json=json))


async def _show(name: str, turns: int, db: str, *, json: bool) -> None:
    from perdure.cli.session_summary import look
    from perdure.cli.store_locator import db_flag, find_session, opened
    from perdure.cli.timeline import pictures

    async with opened(db) as rt:
        session = await find_session(rt, name)
        info = await core_of(rt).store.stream(ref_of(session).stream)
        assert info is not None
        why, state = await look(rt, info)
        drawn = pictures(await session.journal())
        now = core_of(rt).clock.wall_ms()
    if json:
        _emit_session(info, why, state, drawn)
    else:
        _draw(info, why, drawn, turns, now, db_flag(db))


def _emit_session(info: StreamInfo, why: Explanation, state: SessionState, drawn: list[TurnPicture]) -> None:
    from perdure.cli.screen import emit, utc

    turns = [
        {
            "turn": turn.number,
            "result": turn.result,
            "at": utc(turn.start),
            "ms": turn.took_ms,
            "tokens": turn.tokens,
            "steps": [
                {
                    "kind": step.kind,
                    "name": step.name,
                    "result": step.result,
                    "at": utc(step.start),
                    "ms": None if step.end is None else step.end - step.start,
                    "tokens": step.tokens,
                }
                for step in turn.steps
            ],
        }
        for turn in drawn
    ]
    emit(
        type="session",
        v=1,
        id=info.name,
        agent=info.agent,
        status=why.status,
        summary=why.summary,
        created_at=utc(info.created_at),
        updated_at=utc(info.updated_at),
        records=info.last_seq,
        tokens=state.usage.tokens,
        turns=turns,
    )


def _draw(info: StreamInfo, why: Explanation, drawn: list[TurnPicture], limit: int, now: int, db: str) -> None:
    from perdure.cli.program import own_command
    from perdure.cli.screen import ago, count, note, say, took
    from perdure.cli.timeline import bar, note_of

    active = took(sum((turn.end or now) - turn.start for turn in drawn))
    tokens = sum(step.tokens or 0 for turn in drawn for step in turn.steps)
    turns = count(len(drawn), "turn")
    say(f"{info.name}  {info.agent}  {why.status}  {turns}  {active} active  {tokens} tok")
    say(f"last change {ago(info.updated_at, now)}; {why.summary}", "dim")
    for turn in drawn[-limit:]:
        say()
        say(f"turn {turn.number}  {turn.said}  {turn.result}")
        width = max((len(f"{step.kind} {step.name}") for step in turn.steps), default=0)
        for step in turn.steps:
            named = f"{step.kind} {step.name}"
            say(f"  {named:<{width}}  {bar(step, turn, now)}  {note_of(step)}".rstrip(), step.tone.replace("ok", ""))
    if len(drawn) > limit:
        note(f"{limit} of {len(drawn)} turns shown.  more: --turns {len(drawn)}")
    note(f"next: {own_command('journal show', info.name, flags=db)}")


# --- watch --------------------------------------------------------------------------------------------------------


@app.command()
def watch(
    session: SessionName,
    after: Annotated[str, Option(metavar="CURSOR", help="Start after this cursor.")] = "",
    follow: Annotated[bool, Option("--follow/--no-follow", help="Wait for new events, until Ctrl-C.")] = True,
    db: Db = "",
    json: Json = False,
) -> None:
    """Print a session's events as they become durable."""
    from perdure.cli.store_locator import run

    run(lambda: _watch(session, after, db, json=json, follow=follow))


async def _watch(name: str, after: str, db: str, *, json: bool, follow: bool) -> None:
    from perdure.cli.events import Printer, emit_event
    from perdure.cli.store_locator import find_session, opened
    from perdure.observe.events import Cursor

    start = Cursor.parse(after).seq
    printer = Printer()
    async with opened(db) as rt:
        session = await find_session(rt, name)
        info = await core_of(rt).store.stream(ref_of(session).stream)
        last = info.last_seq if info else 0
        if not follow and last <= start:
            return
        async for event in session.events(after="" if not json else after):
            if json:
                emit_event(session.id, event)
            elif event.cursor.seq <= start:
                printer.on_record(event)
            else:
                printer.show(event)
            if not follow and event.cursor.seq >= last:
                return


# --- retry --------------------------------------------------------------------------------------------------------


@app.command()
def retry(session: SessionName, db: Db = "", json: Json = False) -> None:
    """Retry the input of a failed turn."""
    from perdure.cli.store_locator import run

    run(lambda: _retry(session, db, json=json))


async def _retry(name: str, db: str, *, json: bool) -> None:
    from perdure.cli.program import own_command
    from perdure.cli.screen import emit, note
    from perdure.cli.store_locator import db_flag, find_session, opened
    from perdure.errors import Code, Error

    async with opened(db) as rt:
        session = await find_session(rt, name)
        try:
            sent = await session.retry(by=who(""), via="cli")
        except Error as problem:
            if problem.code is not Code.TURN_NOT_RETRYABLE:
                raise
            problem.hint = f'perdure run TARGET "…" --session {shlex.quote(session.id)}{db_flag(db)}'
            raise
    if json:
        emit(type="sent", v=1, session=session.id, turn=sent.turn_id, input=sent.input_id, duplicate=sent.is_duplicate)
    else:
        note(f"Sent again.  watch: {own_command('sessions watch', session.id, flags=db_flag(db))}")


# --- export and import --------------------------------------------------------------------------------------------


@app.command("export")
def export_session(
    session: SessionName,
    output: Annotated[str, Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")] = "",
    db: Db = "",
) -> None:
    """Export a session as JSON lines."""
    from perdure.cli.store_locator import run

    _write(run(lambda: _export(session, db)), output)


async def _export(name: str, db: str) -> bytes:
    from perdure.cli.store_locator import find_session, opened

    async with opened(db) as rt:
        return await (await find_session(rt, name)).export(by=who(""), via="cli")


def _write(data: bytes, output: str) -> None:
    import sys
    from pathlib import Path

    from perdure.cli.screen import note
    from perdure.errors import Code, Error
    from perdure.store.private import write_file

    if not output:
        sys.stdout.write(data.decode())
        return
    try:
        write_file(Path(output), data)
    except OSError as problem:
        raise Error(Code.INVALID_ARGUMENT, f"cannot write {output}", because=str(problem)) from problem
    note(f"{len(data)} bytes written to {output}")


@app.command("import")
def import_session(
    session: Annotated[str, Argument(metavar="SESSION", help="The id of the new session.", show_default=False)],
    file: Annotated[str, Argument(metavar="FILE", help="An export; - reads stdin.", show_default=False)],
    agent: Annotated[str, Option(metavar="NAME", help="Assign the session to another agent.")] = "",
    db: Db = "",
) -> None:
    """Create a session from an export.

    A turn that was running is recorded as stopped.
    """
    from perdure.cli.store_locator import run

    data = _contents(file)
    run(lambda: _import(session, data, agent, db))


def _contents(file: str) -> bytes:
    import sys
    from pathlib import Path

    from perdure.errors import Code, Error

    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as problem:
        raise Error(Code.INVALID_ARGUMENT, f"cannot read {file}", because=str(problem)) from problem


async def _import(name: str, data: bytes, agent: str, db: str) -> None:
    from perdure.cli.program import own_command
    from perdure.cli.screen import note
    from perdure.cli.store_locator import db_flag, opened

    async with opened(db) as rt:
        await rt.import_session(name, data, agent=agent or None, by=who(""), via="cli")
    note(f"session {name} imported.  next: {own_command('sessions show', name, flags=db_flag(db))}")


session_verbs.add_to(app)
