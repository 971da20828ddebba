"""`perdure triggers list | show | emit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from perdure.cli.commands.subscriptions import condition, subscription_fields
from perdure.cli.options import Db, Json, Limit
from perdure.runtime.internals import core_of

if TYPE_CHECKING:
    from perdure.runtime.triggers.sources import Source
    from perdure.vocab.triggers import TriggerDelivery

app = Typer(help="List event sources and emit events.", no_args_is_help=True, rich_markup_mode=None)

SourceType = Annotated[str, Argument(metavar="TYPE", help="An event type, e.g. mail.received.", show_default=False)]
SourceName = Annotated[
    str, Option("--source", metavar="NAME", help="The event source, if a type has several.", show_default=False)
]


@app.command("list")
def list_sources(db: Db = "", limit: Limit = 50, json: Json = False) -> None:
    """List event sources, last changed first."""
    from perdure.cli.store_locator import run

    run(lambda: _list(db, limit, json=json))


async def _list(db: str, limit: int, *, json: bool) -> None:
    from perdure.cli.screen import Column, ago, count, emit, note, one_line, table
    from perdure.cli.store_locator import opened

    async with opened(db) as rt:
        now = core_of(rt).clock.wall_ms()
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
    """Show a source: subscriptions and latest occurrences."""
    from perdure.cli.store_locator import run

    run(lambda: _show(source_type, source, db, limit, json=json))


async def _show(source_type: str, source: str, db: str, limit: int, *, json: bool) -> None:
    from perdure.cli.screen import count, emit, in_line, one_line, say, utc
    from perdure.cli.store_locator import opened
    from perdure.codec import encode

    async with opened(db) as rt:
        sources = core_of(rt).trigger_sources
        one = await sources.source(source_type, source)
        latest = await sources.occurrences(one.stream, limit=limit)
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
        subscriptions = [subscription_fields(each) for each in one.state.known.values()]
        emit(**{**_fields(one), "subscriptions": subscriptions, "latest": happened})
        return
    where = f" at {in_line(one.source)}" if one.source else ""
    waiting = f", {one.waiting} waiting" if one.waiting else ""
    say(f"{in_line(one.source_type)}{where}  {count(one.state.occurrences, 'occurrence')}{waiting}")
    for each in one.state.known.values():
        say(f"  {condition(each):<9} {one_line(each.id, 60)}  {in_line(each.definition.definition)}")
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


@app.command()
def emit(
    source_type: SourceType,
    payload: Annotated[str, Argument(metavar="JSON", help="The payload for the processes.")] = "null",
    source: SourceName = "",
    key: Annotated[
        str,
        Option(
            "--key", metavar="KEY", help="Idempotency key: the same key and payload is one event.", show_default=False
        ),
    ] = "",
    session: Annotated[
        str, Option("--session", metavar="SESSION", help="Only for subscriptions of this session.", show_default=False)
    ] = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Emit an event. Workers start the subscribed processes."""
    from perdure.cli.store_locator import run

    async def say_so() -> None:
        from perdure.cli import screen
        from perdure.cli.store_locator import opened
        from perdure.codec import decode

        value = decode(payload)
        async with opened(db) as rt:
            told = await rt.triggers.emit(source_type, value, key=key or None, source=source, session=session)
        if json:
            screen.emit(occurrence=told.id, key=told.key, duplicate=told.is_duplicate)
        else:
            screen.note(
                f"Occurrence {told.id} {'already existed' if told.is_duplicate else 'is recorded'}; key {told.key}."
            )

    run(say_so)
