"""Two releases that share a store: this one, and the next as it might be. Workers of both, in processes of their own.

The next release is this code with one more migration and one more record format. It expands the schema in the ways that
migrations do (a column with a default, a table, an index), and the records of its turns are of the newer format.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
from msgspec.structs import replace

from perdure import Agent, Runtime, RuntimeOptions, ToolContext, tool
from perdure.commit.plan import Plan, Receipt
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.store.postgres import PostgresStore
from perdure.store.protocol import Store
from perdure.store.release import THIS, Release
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite.migrate import inspect
from perdure.testing import World
from perdure.vocab.records import FORMAT
from tests.compat.steps import next_release

OLD, NEW = "old", "new"


class _Stamping:
    """A store whose owner writes records of the newer format."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def append(self, plan: Plan) -> Receipt:
        """The same plan, from the next release."""
        entries = tuple(msgspec.structs.replace(entry, version=FORMAT + 1) for entry in plan.entries)
        return await self._store.append(replace(plan, entries=entries))


def store_of(url: str, release: Release = THIS) -> SqliteStore | PostgresStore:
    """The store at an address, opened by a release."""
    clock = SystemClock()
    if url.startswith("postgresql"):
        return PostgresStore(url, clock, lease_ms=2_000, release=release)
    return SqliteStore(Path(url.removeprefix("sqlite:///")), clock, lease_ms=2_000, release=release)


async def version_of(url: str) -> int:
    """How far the schema of a store is."""
    release = next_release(url, contracted=True)
    if url.startswith("postgresql"):
        return (await PostgresStore(url, SystemClock(), release=release).schema()).version
    return inspect(Path(url.removeprefix("sqlite:///")), release).version


def agents(world: World) -> list[Agent]:
    """One that any release knows, and one that came with the next."""

    @tool
    async def charge(ctx: ToolContext) -> str:
        """Charge."""
        world.note("charge", key=ctx.idempotency_key, by=os.environ["RELEASE"])
        await asyncio.sleep(0.02)
        return "charged"

    steps = (call("charge"), say("done"))
    return [Agent("known", model=ScriptedModel(*steps), tools=[charge])]


async def _work(url: str, world: Path, which: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    real = store_of(url, THIS if which == OLD else next_release(url))
    store: Store = real if which == OLD else _Stamping(real)  # pyright: ignore[reportAssignmentType] - by delegation
    async with Runtime(store, agents=agents(World(world)), options=RuntimeOptions(lease_s=2)):
        (world.parent / f"ready-{os.getpid()}").touch()
        await stop.wait()


def work(url: str, world: str, which: str) -> None:
    """A worker of one release, until SIGTERM."""
    os.environ["RELEASE"] = which
    asyncio.run(_work(url, Path(world), which))
