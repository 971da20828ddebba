"""`perdure usage show`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from perdure.cli.options import Db, Json, Quiet

if TYPE_CHECKING:
    from perdure.cli.screen import Cell, Column
    from perdure.runtime.sessions.accounts import Account, Accounts, By
    from perdure.vocab.usage import Usage

app = Typer(help="What models have cost.", no_args_is_help=True, rich_markup_mode=None)

WAYS = ("session", "agent", "model", "source", "day")


@dataclass(frozen=True, slots=True)
class _Asked:
    session: str
    by: str
    since: str
    agent: str
    limit: int
    db: str


@app.command()
def show(  # noqa: PLR0913 - a command's options are its parameters
    session: Annotated[
        str,
        Argument(
            metavar="[SESSION]",
            help="Only this session and its sub-agents: an id, or its beginning.",
            show_default=False,
        ),
    ] = "",
    by: Annotated[str, Option(metavar="|".join(WAYS), help="What to add up by.")] = "session",
    since: Annotated[
        str, Option(metavar="WHEN", help="Only since then: 7d, 12h, or a day such as 2026-11-01 (UTC).")
    ] = "",
    agent: Annotated[str, Option(metavar="NAME", help="Only sessions of this agent.", show_default=False)] = "",
    limit: Annotated[int, Option(metavar="N", min=1, help="How many lines; the total is of all.")] = 50,
    db: Db = "",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Add up tokens and money: what sessions have bought from models.

    By session, sub-agents stand below whoever started them. By session and agent, the end of each log is read; by
    anything else, or with --since, the logs of all sessions that have changed since then.
    """
    from perdure.cli.places import run

    run(lambda: _show(_Asked(session, by, since, agent, limit, db), json=json, quiet=quiet))


async def _show(asked: _Asked, *, json: bool, quiet: bool) -> None:
    from perdure.cli.places import find_session, opened
    from perdure.runtime.sessions.accounts import Question, accounts

    by = _way(asked.by)
    async with opened(asked.db) as rt:
        since = _moment(asked.since, rt.clock.wall_ms()) if asked.since else None
        session = (await find_session(rt, asked.session)).id if asked.session else None
        found = await accounts(rt, Question(by, session, since, asked.agent))
    if json:
        _emit(found, by, asked.limit)
    else:
        _print(found, by, asked.limit, quiet=quiet)


def _way(by: str) -> By:
    from perdure.errors import Code, Error

    if by not in WAYS:
        raise Error(Code.INVALID_ARGUMENT, f"{by!r:.40} is nothing to add up by", hint=f"--by {'|'.join(WAYS)}")
    return by


def _moment(when: str, now_ms: int) -> int:
    from datetime import UTC, datetime

    from perdure.errors import Code, Error
    from perdure.tools.durations import to_ms

    if (ago := to_ms(when)) is not None:
        return now_ms - ago
    try:
        moment = datetime.fromisoformat(when)
    except ValueError:
        raise Error(
            Code.INVALID_ARGUMENT,
            f"{when!r:.40} is no moment",
            because="it must be how long ago, or a day",
            hint="--since 7d, --since 2026-11-01",
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _emit(found: Accounts, by: By, limit: int) -> None:
    from perdure.cli.screen import emit

    for one in found.sums[:limit]:
        told: dict[str, object] = {"type": "usage", "v": 1, "by": by, "name": one.name, **_fields(one.usage)}
        if by == "session":
            told |= {"agent": one.agent, "parent": one.parent or None, "with_subagents": _fields(one.together)}
        emit(**told)
    emit(
        type="usage_total",
        v=1,
        **_fields(found.total),
        lines=len(found.sums),
        sessions=found.sessions,
        records_read=found.records,
    )


def _fields(usage: Usage) -> dict[str, object]:
    """The buckets, which do not overlap. `cost_usd` is null while the price of any call is unknown; what is known of it
    is `known_cost_usd`."""
    from decimal import Decimal

    from perdure.vocab.usage import NANO

    return {
        "calls": usage.calls,
        "input_tokens": usage.input,
        "cache_read_tokens": usage.cache_read,
        "cache_write_tokens": usage.cache_write,
        "output_tokens": usage.output,
        "reasoning_tokens": usage.reasoning,
        "tokens": usage.tokens,
        "cost_usd": None if usage.cost is None else f"{usage.cost:f}",
        "known_cost_usd": f"{Decimal(usage.cost_nano) / NANO:f}",
        "priced_calls": usage.priced,
        "estimated_calls": usage.estimated,
    }


def _print(found: Accounts, by: By, limit: int, *, quiet: bool) -> None:
    from perdure.cli.screen import Cell, count, note, say, table

    shown = found.sums[:limit]
    if quiet:
        for one in shown:
            say(one.name)
        return
    if not shown:
        note("Nothing was bought.")
        return
    rows = [_row(one, by) for one in shown]
    if len(found.sums) > 1:
        rows.append((Cell("total", "dim"), *([""] if by == "session" else []), *_cells(found.total)))
    table(_columns(by), rows)
    total = found.total
    if len(shown) < len(found.sums):
        note(f"{len(shown)} of {len(found.sums)} shown; more: --limit {len(found.sums)}")
    if missing := total.calls - total.priced:
        note(f"The price of {count(missing, 'call')} is unknown{', so the cost is more' if total.priced else ''}.")
    if total.estimated:
        note(f"{count(total.estimated, 'call')} broke off, and {'is' if total.estimated == 1 else 'are'} estimated.")
    note(f"{count(found.sessions, 'session')}, {count(found.records, 'record')} read.")


def _columns(by: By) -> list[Column]:
    from perdure.cli.screen import Column

    numbers = (
        ("CALLS", ""),
        ("INPUT", "IN"),
        ("CACHE READ", "READ"),
        ("CACHE WRITE", "WRITE"),
        ("OUTPUT", "OUT"),
        ("REASONING", "THINK"),
        ("COST", ""),
    )
    first = [Column(by.upper(), gives=by in ("model", "source"))]
    if by == "session":
        first.append(Column("AGENT", gives=True))
    return [*first, *(Column(name, short, right=True) for name, short in numbers)]


def _row(one: Account, by: By) -> tuple[str | Cell, ...]:
    name = f"{'  ' * (one.depth - 1)}└ {one.name}" if one.depth else one.name
    return (name, *([one.agent] if by == "session" else []), *_cells(one.usage))


def _cells(usage: Usage) -> tuple[str, ...]:
    from perdure.cli.money import cost, tokens

    buckets = (usage.input, usage.cache_read, usage.cache_write, usage.output, usage.reasoning)
    return (tokens(usage.calls), *(tokens(bucket) for bucket in buckets), cost(usage))
