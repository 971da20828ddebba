"""`perdure triggers list | show | emit | subscriptions | enable | disable | delete | revive`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from perdure.cli.options import Db, Json, Quiet, who

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.runtime.triggers.subscriptions import SubscriptionHandle
    from perdure.runtime.triggers.triggers import Source
    from perdure.vocab.triggers import SubscriptionState, TriggerDelivery

app = Typer(help="What happens, and which processes it starts.", no_args_is_help=True, rich_markup_mode=None)

SourceType = Annotated[str, Argument(metavar="TYPE", help="What happens, such as mail.received.", show_default=False)]
SourceName = Annotated[str, Option("--source", metavar="NAME", help="Where it happens.", show_default=False)]
SubscriptionId = Annotated[str, Argument(metavar="ID", help="The id of a subscription.", show_default=False)]
Revision = Annotated[
    int | None, Option("--revision", metavar="N", help="Only if it is at this revision.", show_default=False)
]
By = Annotated[
    str, Option("--by", metavar="NAME", help="Who does it; your login name if not said.", show_default=False)
]
Limit = Annotated[int, Option("--limit", "-n", min=1, help="How many at most.")]


@app.command("list")
def list_sources(db: Db = "", limit: Limit = 50, json: Json = False) -> None:
    """List what can happen and what has, the last changed first."""
    from perdure.cli.places import run

    run(lambda: _list(db, limit, json=json))


async def _list(db: str, limit: int, *, json: bool) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import Column, ago, count, emit, note, one_line, table

    async with opened(db) as rt:
        now = rt.clock.wall_ms()
        found = await rt.triggers.list(limit=limit)
    if json:
        for one in found:
            emit(**_fields(one))
        return
    if found:
        names = ("TYPE", "SOURCE", "SUBSCRIPTIONS", "OCCURRED", "WAITING", "CHANGED")
        columns = [Column(name, "SUBS" if name == "SUBSCRIPTIONS" else "") for name in names]
        rows = [
            (
                *(one_line(one.source_type, 40), one_line(one.source, 40) or "-", str(len(one.state.living))),
                *(str(one.state.occurrences), str(one.waiting), ago(one.updated_at, now)),
            )
            for one in found
        ]
        table(columns, rows)
    note(f"{count(len(found), 'source')}.")


def _fields(one: Source) -> dict[str, object]:
    from perdure.cli.screen import utc

    return {
        "type": one.source_type,
        "source": one.source or None,
        "subscriptions": len(one.state.living),
        "occurrences": one.state.occurrences,
        "waiting": one.waiting,
        "changed_at": utc(one.updated_at),
    }


@app.command()
def show(source_type: SourceType, source: SourceName = "", db: Db = "", limit: Limit = 10, json: Json = False) -> None:
    """Show what happened at a source. Also its subscriptions, and what was started."""
    from perdure.cli.places import run

    run(lambda: _show(source_type, source, db, limit, json=json))


async def _show(source_type: str, source: str, db: str, limit: int, *, json: bool) -> None:
    from perdure.cli.places import opened
    from perdure.cli.screen import count, emit, in_line, one_line, say, utc
    from perdure.codec import encode

    async with opened(db) as rt:
        one = await rt.triggers.source(source_type, source)
        latest = await rt.triggers.occurrences(one.stream, limit=limit)
    if json:
        happened = [
            {
                "occurrence": record.occurrence,
                "key": record.key,
                "at": utc(at),
                "payload": record.payload,
                "deliveries": [_delivery(each) for each in record.deliveries],
            }
            for at, record in latest
        ]
        subscriptions = [_subscription(each) for each in one.state.known.values()]
        emit(**{**_fields(one), "subscriptions": subscriptions, "latest": happened})
        return
    where = f" at {in_line(one.source)}" if one.source else ""
    waiting = f", {one.waiting} waiting" if one.waiting else ""
    say(f"{in_line(one.source_type)}{where}  {count(one.state.occurrences, 'occurrence')}{waiting}")
    for each in one.state.known.values():
        say(f"  {_condition(each):<9} {one_line(each.id, 60)}  {in_line(each.definition.definition)}")
    for at, record in latest:
        said = one_line(encode(record.payload).decode(), 48)
        say(f"  {utc(at)}  {one_line(record.key, 40)}  {said}")
        for delivery in record.deliveries:
            failed = delivery.failed
            became = f"not started: {failed.code}" if failed else f"started {delivery.process_id}"
            say(f"    {one_line(delivery.subscription, 60)}  {became}")


def _delivery(each: TriggerDelivery) -> dict[str, object]:
    failed = each.failed
    return {
        "subscription": each.subscription,
        "revision": each.revision,
        "process": each.process_id,
        "failed": None if failed is None else {"code": failed.code, "message": failed.message},
    }


def _subscription(each: SubscriptionState) -> dict[str, object]:
    return {
        "id": each.id,
        "key": each.definition.key,
        "starts": each.definition.definition,
        "owner": each.definition.owner or None,
        "revision": each.revision,
        "incarnation": each.incarnation,
        "state": _condition(each),
    }


def _condition(each: SubscriptionState) -> str:
    return "deleted" if each.deleted else "enabled" if each.enabled else "disabled"


@app.command()
def emit(
    source_type: SourceType,
    payload: Annotated[str, Argument(metavar="JSON", help="What the processes are told.")] = "null",
    source: SourceName = "",
    key: Annotated[
        str, Option("--key", metavar="KEY", help="The same key and payload again is one thing.", show_default=False)
    ] = "",
    session: Annotated[
        str, Option("--session", metavar="SESSION", help="Only for subscriptions of this session.", show_default=False)
    ] = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Say that something happened. A worker starts the processes that want to know."""
    from perdure.cli.places import run

    async def say_so() -> None:
        from perdure.cli import screen
        from perdure.cli.places import opened
        from perdure.codec import decode

        value = decode(payload)
        async with opened(db) as rt:
            told = await rt.triggers.emit(source_type, value, key=key or None, source=source, session=session)
        if json:
            screen.emit(occurrence=told.id, key=told.key, duplicate=told.duplicate)
        else:
            screen.note(f"Occurrence {told.id} {'was known' if told.duplicate else 'is recorded'}; key {told.key}.")

    run(say_so)


@app.command()
def subscriptions(
    db: Db = "",
    all: Annotated[bool, Option("--all", "-a", help="Also those that are deleted.")] = False,
    limit: Annotated[int, Option("--limit", "-n", min=1, help="Of how many sources at most.")] = 50,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List who wants a process for what."""
    from perdure.cli.places import run

    run(lambda: _subscriptions(db, limit, all=all, json=json, quiet=quiet))


async def _subscriptions(db: str, limit: int, *, all: bool, json: bool, quiet: bool) -> None:
    from perdure.cli import screen
    from perdure.cli.places import opened

    async with opened(db) as rt:
        sources = await rt.triggers.list(limit=limit)
    found = [each for one in sources for each in one.state.known.values() if all or not each.deleted]
    if json:
        for each in found:
            screen.emit(**_subscription(each))
        return
    if quiet:
        for each in found:
            screen.say(each.id)
        return
    if found:
        columns = [screen.Column("ID"), screen.Column("STATE"), screen.Column("REVISION", "REV")]
        columns += [screen.Column("STARTS", gives=True), screen.Column("OWNER", gives=True)]
        rows = [
            (
                *(screen.one_line(each.id, 60), _condition(each), str(each.revision)),
                *(screen.one_line(each.definition.definition, 40), screen.one_line(each.definition.owner, 40) or "-"),
            )
            for each in found
        ]
        screen.table(columns, rows)
    screen.note(f"{screen.count(len(found), 'subscription')}.")


@app.command()
def enable(id: SubscriptionId, revision: Revision = None, by: By = "", db: Db = "") -> None:
    """Start processes for it again."""
    _do(db, id, lambda it: it.enable(expected_revision=revision, by=who(by)), "Enabled")


@app.command()
def disable(id: SubscriptionId, revision: Revision = None, by: By = "", db: Db = "") -> None:
    """Start none for it. What was started goes on."""
    _do(db, id, lambda it: it.disable(expected_revision=revision, by=who(by)), "Disabled")


@app.command()
def delete(id: SubscriptionId, revision: Revision = None, by: By = "", db: Db = "") -> None:
    """End a subscription. What it has started goes on."""
    _do(db, id, lambda it: it.delete(expected_revision=revision, by=who(by)), "Deleted")


@app.command()
def revive(id: SubscriptionId, revision: Revision = None, by: By = "", db: Db = "") -> None:
    """Let a deleted subscription go on."""
    _do(db, id, lambda it: it.revive(expected_revision=revision, by=who(by)), "It goes on")


def _do(db: str, id: str, what: Callable[[SubscriptionHandle], Awaitable[SubscriptionState]], done: str) -> None:
    from perdure.cli.places import run

    async def do() -> None:
        from perdure.cli.places import opened
        from perdure.cli.screen import note

        async with opened(db) as rt:
            now = await what(rt.triggers.subscription(id))
        note(f"{done}, at revision {now.revision}.")

    run(do)
