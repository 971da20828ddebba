"""`perdure subscriptions list | enable | disable | delete | restore`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from perdure.cli.options import By, Db, Json, Quiet, who

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.runtime.triggers.subscriptions import SubscriptionHandle
    from perdure.vocab.triggers import SubscriptionState

app = Typer(help="Manage subscriptions to event sources.", no_args_is_help=True, rich_markup_mode=None)

SubscriptionId = Annotated[str, Argument(metavar="ID", help="The id of a subscription.", show_default=False)]
Revision = Annotated[
    int | None, Option("--expected-revision", metavar="N", help="Only at this revision.", show_default=False)
]


@app.command("list")
def list_subscriptions(
    db: Db = "",
    all: Annotated[bool, Option("--all", "-a", help="Include deleted subscriptions.")] = False,
    limit: Annotated[int, Option("--limit", "-n", metavar="N", min=1, help="Read at most this many sources.")] = 50,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List subscriptions."""
    from perdure.cli.store_locator import run

    run(lambda: _list(db, limit, all=all, json=json, quiet=quiet))


async def _list(db: str, limit: int, *, all: bool, json: bool, quiet: bool) -> None:
    from perdure.cli import screen
    from perdure.cli.store_locator import opened

    async with opened(db) as rt:
        sources = await rt.triggers.list(limit=limit)
    found = [each for one in sources for each in one.state.known.values() if all or not each.deleted]
    if json:
        for each in found:
            screen.emit(**subscription_fields(each))
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
                *(screen.one_line(each.id, 60), condition(each), str(each.revision)),
                *(screen.one_line(each.definition.definition, 40), screen.one_line(each.definition.owner, 40) or "-"),
            )
            for each in found
        ]
        screen.table(columns, rows)
    screen.note(f"{screen.count(len(found), 'subscription')}.")


def subscription_fields(each: SubscriptionState) -> dict[str, object]:
    """Return the printed fields of a subscription."""
    return {
        "id": each.id,
        "key": each.definition.key,
        "starts": each.definition.definition,
        "owner": each.definition.owner or None,
        "revision": each.revision,
        "incarnation": each.incarnation,
        "state": condition(each),
    }


def condition(each: SubscriptionState) -> str:
    """Return the printed state of a subscription."""
    return "deleted" if each.deleted else "enabled" if each.enabled else "disabled"


@app.command()
def enable(id: SubscriptionId, expected_revision: Revision = None, by: By = "", db: Db = "") -> None:
    """Enable a subscription: events start processes again."""
    _do(db, id, lambda it: it.enable(expected_revision=expected_revision, by=who(by)), "Enabled")


@app.command()
def disable(id: SubscriptionId, expected_revision: Revision = None, by: By = "", db: Db = "") -> None:
    """Disable a subscription: events start no processes.

    Running processes continue.
    """
    _do(db, id, lambda it: it.disable(expected_revision=expected_revision, by=who(by)), "Disabled")


@app.command()
def delete(id: SubscriptionId, expected_revision: Revision = None, by: By = "", db: Db = "") -> None:
    """Delete a subscription. Running processes continue."""
    _do(db, id, lambda it: it.delete(expected_revision=expected_revision, by=who(by)), "Deleted")


@app.command()
def restore(id: SubscriptionId, expected_revision: Revision = None, by: By = "", db: Db = "") -> None:
    """Restore a deleted subscription."""
    _do(db, id, lambda it: it.restore(expected_revision=expected_revision, by=who(by)), "Restored")


def _do(db: str, id: str, what: Callable[[SubscriptionHandle], Awaitable[SubscriptionState]], done: str) -> None:
    from perdure.cli.store_locator import run

    async def do() -> None:
        from perdure.cli.screen import note
        from perdure.cli.store_locator import opened

        async with opened(db) as rt:
            now = await what(rt.triggers.subscription(id))
        note(f"{done}, at revision {now.revision}.")

    run(do)
