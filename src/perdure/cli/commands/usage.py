"""`perdure usage`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from perdure.cli.options import Db, Json, Quiet, moment
from perdure.runtime.internals import core_of

if TYPE_CHECKING:
    from perdure.cli.screen import Cell, Column
    from perdure.runtime.sessions.accounts import Account, Accounts, By
    from perdure.vocab.usage import Usage

WAYS = ("session", "agent", "model", "source", "day")


@dataclass(frozen=True, slots=True)
class _UsageOptions:
    session: str
    by: str
    since: str
    agent: str
    limit: int
    db: str


def usage(  # noqa: PLR0913 - a command's options are its parameters
    session: Annotated[
        str,
        Argument(
            metavar="[SESSION]",
            help="Only this session and its sub-agents.",
            show_default=False,
        ),
    ] = "",
    by: Annotated[str, Option(metavar="|".join(WAYS), help="Grouping of the sums.")] = "session",
    since: Annotated[str, Option(metavar="WHEN", help="Start: 7d, 12h, or a day such as 2026-11-01 (UTC).")] = "",
    agent: Annotated[str, Option(metavar="NAME", help="Only sessions of this agent.", show_default=False)] = "",
    limit: Annotated[int, Option("--limit", "-n", metavar="N", min=1, help="Print at most this many lines.")] = 50,
    db: Db = "",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Sum the tokens and cost of model calls.

    By session, sub-agents follow the session that started them. By session and by agent, the command reads the end of
    each log. Other groupings, and --since, read the whole log of each session changed since then. The total covers all
    lines.
    """
    from perdure.cli.store_locator import run

    run(lambda: _report(_UsageOptions(session, by, since, agent, limit, db), json=json, quiet=quiet))


async def _report(asked: _UsageOptions, *, json: bool, quiet: bool) -> None:
    from perdure.cli.store_locator import find_session, opened
    from perdure.runtime.sessions.accounts import UsageQuery, accounts

    by = _way(asked.by)
    async with opened(asked.db) as rt:
        since = moment(asked.since, core_of(rt).clock.wall_ms()) if asked.since else None
        session = (await find_session(rt, asked.session)).id if asked.session else None
        found = await accounts(core_of(rt), UsageQuery(by, session, since, asked.agent))
    if json:
        _emit(found, by, asked.limit)
    else:
        _print(found, by, asked.limit, quiet=quiet)


def _way(by: str) -> By:
    from perdure.errors import Code, Error

    if by not in WAYS:
        raise Error(Code.INVALID_ARGUMENT, f"unknown grouping {by!r:.40}", hint=f"--by {'|'.join(WAYS)}")
    return by


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
    """Return the token buckets, which do not overlap.

    `cost_usd` is None while the price of any call is unknown; `known_cost_usd` is the known part.
    """
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
        note("No usage.")
        return
    rows = [_row(one, by) for one in shown]
    if len(found.sums) > 1:
        rows.append((Cell("total", "dim"), *([""] if by == "session" else []), *_cells(found.total)))
    table(_columns(by), rows)
    total = found.total
    if len(shown) < len(found.sums):
        note(f"{len(shown)} of {len(found.sums)} shown; more: --limit {len(found.sums)}")
    if missing := total.calls - total.priced:
        note(
            f"The price of {count(missing, 'call')} is unknown{', so the true cost is higher' if total.priced else ''}."
        )
    if total.estimated:
        note(f"{count(total.estimated, 'call')} broke off, usage estimated.")
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
