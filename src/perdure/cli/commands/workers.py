"""`perdure workers list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option, Typer

from perdure.cli.options import Db, Json, Quiet
from perdure.runtime.internals import core_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.store.shapes import WorkerInfo

app = Typer(help="List workers.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_workers(
    all: Annotated[bool, Option("--all", "-a", help="Include workers that own nothing, unseen for a day.")] = False,
    db: Db = "",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List workers with their load and last heartbeat.

    A worker that drains removes its entry. After a crash the entry stays until other workers have taken over its
    sessions and a worker starts on its machine. A worker unseen for a day that owns nothing is left out.
    """
    from perdure.cli.store_locator import run

    run(lambda: _list(db, all=all, json=json, quiet=quiet))


async def _list(db: str, *, all: bool, json: bool, quiet: bool) -> None:
    from perdure.cli.screen import count, note, say
    from perdure.cli.store_locator import opened

    async with opened(db) as rt:
        known = await core_of(rt).store.workers()
        now = core_of(rt).clock.wall_ms()
    found = known if all else tuple(worker for worker in known if not worker.is_history)
    if json:
        _emit(found)
        return
    if quiet:
        for worker in found:
            say(worker.id)
        return
    if found:
        _print(found, now)
    alive = sum(worker.alive for worker in found)
    note(f"{count(alive, 'worker')} alive, {len(found) - alive} gone." if known else "No workers.")
    if history := len(known) - len(found):
        note(f"{history} more, unseen for over a day and owning nothing: --all lists them.")


def _emit(found: Sequence[WorkerInfo]) -> None:
    from perdure.cli.screen import emit, utc

    for worker in found:
        emit(
            type="worker",
            v=1,
            id=worker.id,
            alive=worker.alive,
            pid=worker.pid,
            host=worker.host,
            version=worker.version,
            started_at=utc(worker.started_at),
            lease_left_ms=worker.lease_left_ms,
            seen_ms_ago=worker.seen_ms_ago,
            sessions=worker.held,
            unfinished=worker.active,
            concurrency=worker.concurrency,
            queues=None if worker.queues is None else list(worker.queues),
        )


def _print(found: Sequence[WorkerInfo], now: int) -> None:
    from perdure.cli.screen import Cell, Column, ago, table, took

    titles = ("ID", "STATUS", "PID", "HOST", "VERSION", "STARTED", "SEEN", "LEASE", "QUEUES", "HELD", "LOAD")
    right, short = {"PID", "HELD", "LOAD"}, {"VERSION": "VER"}
    rows = [
        (
            worker.id,
            Cell("● alive", "ok") if worker.alive else Cell("‖ gone", "warn"),
            str(worker.pid),
            worker.host or "-",
            worker.version,
            ago(worker.started_at, now),
            f"{took(worker.seen_ms_ago)} ago",
            _lease(worker),
            "all" if worker.queues is None else ", ".join(worker.queues),
            str(worker.held),
            f"{worker.active}/{worker.concurrency}",
        )
        for worker in found
    ]
    table([Column(title, short.get(title, ""), title in right, title in ("HOST", "QUEUES")) for title in titles], rows)


def _lease(worker: WorkerInfo) -> str:
    from perdure.cli.screen import took

    if worker.lease_until == 0:
        return "released"
    left = worker.lease_left_ms
    return f"{took(left)} left" if left > 0 else "lapsed" if left == 0 else f"lapsed {took(-left)} ago"
