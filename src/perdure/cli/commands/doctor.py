"""`perdure doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer import Exit

from perdure.cli.options import Db, Json, Terse
from perdure.runtime.internals import core_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.store.shapes import Diagnosis

LOW_DISK_BYTES = 200 * 1024 * 1024
OLDEST_SQLITE = (3, 35, 0)


def doctor(db: Db = "", json: Json = False, quiet: Terse = False) -> None:
    """Check a store and this machine."""
    from perdure.cli.store_locator import run

    raise Exit(run(lambda: _check(db, json=json, quiet=quiet)))


async def _check(db: str, *, json: bool, quiet: bool) -> int:
    from perdure.cli.exits import FAILED, OK, refuse
    from perdure.cli.screen import note
    from perdure.errors import Error

    found = list(_machine())
    refused = OK
    try:
        found += await _store(db)
    except Error as problem:
        refused = refuse(problem)
    show(found, json=json, quiet=quiet)
    checked = len(found) + (refused != OK)
    failed = sum(one.status == "fail" for one in found) + (refused != OK)
    if not json:
        note(f"{checked} checked, {failed} failed")
    return refused or (FAILED if failed else OK)


def _machine() -> tuple[Diagnosis, ...]:
    import platform
    import sqlite3

    from perdure.ids import VERSION
    from perdure.store.shapes import Diagnosis

    known = sqlite3.sqlite_version_info >= OLDEST_SQLITE
    return (
        Diagnosis("ok", "perdure", VERSION),
        Diagnosis("ok", "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Diagnosis("ok" if known else "fail", "sqlite", sqlite3.sqlite_version),
    )


async def _store(db: str) -> list[Diagnosis]:
    from perdure.cli.store_locator import opened, store_file, store_url
    from perdure.store.shapes import Diagnosis

    path = store_file(store_url(db))
    async with opened(db) as rt:
        place = f"{path}, {_size(path.stat().st_size)}" if path else "a database server"
        found = [Diagnosis("ok", "store", place), *await core_of(rt).store.check()]
        workers = await core_of(rt).store.workers()
        now = core_of(rt).clock.monotonic_ms()
    alive = [worker for worker in workers if worker.alive]
    gone = len(workers) - len(alive)
    pids = ", ".join(f"pid {worker.pid}" for worker in alive)
    dead = f"; {gone} gone without deregistering (after a crash; the next worker removes them)" if gone else ""
    found.append(Diagnosis("ok", "workers", f"{len(alive)} alive{f' ({pids})' if pids else ''}{dead}"))
    if path is None:
        return [*found, Diagnosis("ok", "lease clock", "the server's; worker clocks do not matter")]
    if alive:
        left = min(worker.lease_until for worker in alive) - now
        lease = f"monotonic; the next lease lapses in {left / 1000:.1f} s unless renewed"
        found.append(Diagnosis("ok" if left > 0 else "warn", "lease clock", lease))
    else:
        found.append(Diagnosis("ok", "lease clock", "monotonic; setting the wall clock expires no lease"))
    return [*found, _disk(str(path.absolute().parent))]


def _disk(folder: str) -> Diagnosis:
    import shutil

    from perdure.store.shapes import Diagnosis

    free = shutil.disk_usage(folder).free
    return Diagnosis("ok" if free >= LOW_DISK_BYTES else "warn", "disk", f"{_size(free)} free")


def _size(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def show(found: Iterable[Diagnosis], *, json: bool, quiet: bool) -> None:
    """Print diagnoses, one per line. With `quiet`, print only problems."""
    from perdure.cli.screen import Cell, Column, emit, table

    if json:
        for one in found:
            emit(type="check", v=1, status=one.status, what=one.what, detail=one.detail)
        return
    shown = [one for one in found if not quiet or one.status != "ok"]
    rows = [(Cell(one.status, one.status), one.what, one.detail) for one in shown]
    if rows:
        table((Column(""), Column(""), Column("")), rows)
