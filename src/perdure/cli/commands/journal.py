"""`perdure journal show | verify`."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Exit, Option, Typer

from perdure.cli.options import Db, Json, Limit, SessionName
from perdure.runtime.internals import core_of, ref_of

app = Typer(help="Read a session's log, record by record.", no_args_is_help=True, rich_markup_mode=None)

COLUMNS = ("SEQ", "AT", "KIND", "NAME", "ATTEMPT", "RESULT", "MS", "TOKENS")


@app.command()
def show(
    session: SessionName,
    seq: Annotated[
        int | None, Argument(metavar="[SEQ]", min=1, help="Show this record in full.", show_default=False)
    ] = None,
    limit: Limit = 100,
    after: Annotated[int, Option(metavar="SEQ", min=0, help="Start after this record.")] = 0,
    db: Db = "",
    json: Json = False,
) -> None:
    """Show a session's records, oldest first, or one in full."""
    from perdure.cli.store_locator import run

    if seq is None:
        run(lambda: _list(session, limit, after, db, json=json))
    else:
        run(lambda: _record(session, seq, db, json=json))


async def _list(name: str, limit: int, after: int, db: str, *, json: bool) -> None:
    from perdure.cli.lines import Reader
    from perdure.cli.screen import Cell, Column, emit, note, table
    from perdure.cli.store_locator import find_session, opened

    async with opened(db) as rt:
        session = await find_session(rt, name)
        lines = Reader().lines(await session.journal())
    shown = [line for line in lines if line.seq > after][:limit]
    if json:
        for line in shown:
            emit(type="record", v=1, session=session.id, **line.fields())
        return
    right, short = {"SEQ", "ATTEMPT", "MS", "TOKENS"}, {"ATTEMPT": "TRY", "TOKENS": "TOK"}
    rows = [tuple(Cell(text, line.tone.replace("ok", "")) for text in line.cells()) for line in shown]
    if rows:
        columns = [Column(name, short.get(name, ""), name in right, name == "RESULT") for name in COLUMNS]
        table(columns, rows)
    left = len(lines) - (shown[-1].seq if shown else after)
    rest = f"  more: --after {shown[-1].seq}" if shown and left > 0 else ""
    note(f"{len(shown)} of {len(lines)} records.{rest}")


async def _record(name: str, seq: int, db: str, *, json: bool) -> None:
    import json as text

    from perdure.cli.events import as_json
    from perdure.cli.lines import Reader
    from perdure.cli.screen import emit, say, utc
    from perdure.cli.store_locator import find_session, opened
    from perdure.errors import Code, Error
    from perdure.observe.command_lines import command_line

    async with opened(db) as rt:
        session = await find_session(rt, name)
        rows = await session.journal()
    if seq > len(rows):
        raise Error(
            Code.RECORD_UNKNOWN,
            f"{session.id} has no record {seq}",
            because=f"the last record is {len(rows)}",
            hint=command_line("journal show", session.id),
        )
    row, line = rows[seq - 1], Reader().lines(rows[:seq])[-1]
    record = as_json(row.record)
    if json:
        emit(type="record", v=1, session=session.id, **line.fields(), key=row.key, record=record)
        return
    say(f"#{row.seq}  {line.kind} {line.name}  {line.result}")
    say(f"  at       {utc(row.at)}")
    say(f"  kind     {row.kind}, format {row.version}")
    if row.key:
        say(f"  key      {row.key}")
    for shown in text.dumps(record, indent=2, ensure_ascii=False).split("\n"):
        say(shown)


@app.command()
def verify(
    session: SessionName,
    db: Db = "",
    json: Json = False,
    expect_head: Annotated[
        str, Option("--expect-head", metavar="DIGEST", help="Fail unless the log ends with this digest.")
    ] = "",
) -> None:
    """Verify a session's log.

    Checks that each record fits the digest chain, that record numbers have no gaps, and that every effect started once
    and settled once. The snapshot with the records after it must give the same state as the whole log.

    A log that was replaced by an older copy of itself fits its own chain. To find that, keep the printed digest
    elsewhere and pass it with --expect-head.
    """
    from perdure.cli.store_locator import run

    if not run(lambda: _verify(session, db, expect_head, json=json)):
        raise Exit(1)


async def _verify(name: str, db: str, expected: str, *, json: bool) -> bool:
    from perdure.cli.screen import count, emit, say
    from perdure.cli.store_locator import find_session, opened
    from perdure.errors import Error
    from perdure.observe.verify import VerifyReport
    from perdure.observe.verify import verify as check
    from perdure.session.fold import CODE

    async with opened(db) as rt:
        session = await find_session(rt, name)
        info = await core_of(rt).store.stream(ref_of(session).stream)
        assert info is not None
        store, stream = core_of(rt).store, ref_of(session).stream
        try:
            head = await store.check_log(stream)
            verdict = check(info, await session.journal(), await store.load(stream, code=CODE))
        except Error as problem:
            if "seq" not in problem.details:
                raise
            head, damage = "", f"{problem.message}: {problem.because}"
            verdict = VerifyReport(info.last_seq, 0, 0, None, (damage,))
    other = (f"the log ends with digest {head}",) if expected and expected != head else ()
    problems = (*verdict.problems, *other)
    ok = not problems
    if json:
        emit(
            type="verdict",
            v=1,
            session=session.id,
            ok=ok,
            records=verdict.records,
            turns=verdict.turns,
            effects=verdict.effects,
            snapshot_seq=verdict.snapshot_seq,
            problems=problems,
            head=head,
        )
        return ok
    snapshot = f"snapshot at #{verdict.snapshot_seq}" if verdict.snapshot_seq else "no snapshot yet"
    counts = ((verdict.records, "record"), (verdict.turns, "turn"), (verdict.effects, "effect"))
    end = (f"digest {head}",) if head else ()
    counted = ", ".join([*(count(number, noun) for number, noun in counts), snapshot, *end])
    for problem in problems:
        say(problem, "fail")
    say(f"{'OK' if ok else 'FAIL'}  {session.id}  {counted}", "ok" if ok else "fail")
    return ok
