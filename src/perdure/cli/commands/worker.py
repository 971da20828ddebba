"""`perdure worker`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from perdure.cli.options import Db, Json, Terse
from perdure.runtime.internals import core_of

if TYPE_CHECKING:
    from perdure.cli.signals import OsSignals
    from perdure.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class _WorkerCommand:
    target: str
    db: str
    drain_s: float | None
    health_port: int | None
    queues: list[str]
    concurrency: int | None
    json: bool
    quiet: bool


def worker(  # noqa: PLR0913 - one parameter an option
    target: Annotated[str, Argument(metavar="TARGET", help="module:attribute, e.g. agent:app.", show_default=False)],
    drain_timeout: Annotated[
        float | None,
        Option(metavar="SECONDS", min=0, help="Time for running turns to finish after a signal.", show_default=False),
    ] = None,
    health_port: Annotated[
        int | None,
        Option(metavar="PORT", min=0, max=65535, help="Answer /live and /ready on 127.0.0.1.", show_default=False),
    ] = None,
    queue: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="Serve only this queue; repeatable.", show_default=False),
    ] = None,
    concurrency: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Maximum number of concurrent sessions.", show_default=False),
    ] = None,
    db: Db = "",
    json: Json = False,
    quiet: Terse = False,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C.

    TARGET is a Runtime, an Agent, a list of agents, or a function that returns one. Any number of workers can share a
    store. The first signal drains: the worker claims no more work, lets turns finish and hands over the rest. The
    second signal stops at once. No work is lost either way.
    """
    from perdure.cli.store_locator import run

    order = _WorkerCommand(target, db, drain_timeout, health_port, queue or [], concurrency, json, quiet)
    raise Exit(run(lambda: _work(order)))


async def _work(order: _WorkerCommand) -> int:
    from perdure.cli.health import health
    from perdure.cli.signals import OsSignals
    from perdure.cli.store_locator import url_of
    from perdure.cli.targets import runtime_for
    from perdure.runtime.runtime import alike

    found = runtime_for(order.target, store=url_of(order.db), model=None, worker=True)
    work = replace(
        core_of(found).work,
        queues=order.queues or core_of(found).work.served,
        concurrency=order.concurrency or core_of(found).work.concurrency,
    )
    runtime = alike(
        found, store=core_of(found).store, agents=found.agents.values(), worker=work
    )  # even with Runtime(worker=False)
    _check(runtime, order)
    signals = OsSignals()
    async with runtime as rt, health(rt, order.health_port) as port:
        _tell_start(rt, port, order)
        await signals.first.wait()
        in_order = await _drained(rt, signals, order.drain_s)
    return _tell_end(runtime, order, in_order=in_order)


def _check(runtime: Runtime, order: _WorkerCommand) -> None:
    from perdure.cli.store_locator import store_shown
    from perdure.errors import Code, Error

    if not runtime.agents:
        raise Error(
            Code.TARGET_INVALID,
            f"{order.target} has no agents",
            because="a worker without agents has nothing to do",
            hint="Runtime(..., agents=[agent])",
        )
    if store_shown(core_of(runtime).store) is None:
        raise Error(
            Code.TARGET_INVALID,
            f"the store of {order.target} is in memory",
            because="no other process can send work to a store in memory",
            hint="--db .perdure/dev.db",
        )


async def _drained(rt: Runtime, signals: OsSignals, drain_s: float | None) -> bool:
    """Drain the worker. False if a second signal cut the drain short."""
    import asyncio

    draining = asyncio.create_task(rt.drain(drain_s))
    evict = asyncio.create_task(signals.second.wait())
    await asyncio.wait({draining, evict}, return_when=asyncio.FIRST_COMPLETED)
    in_order = draining.done()
    for task in (draining, evict):
        task.cancel()
    await asyncio.gather(evict, return_exceptions=True)
    if in_order:
        await draining
    else:
        await asyncio.gather(draining, return_exceptions=True)
    return in_order


def _tell_start(rt: Runtime, port: int | None, order: _WorkerCommand) -> None:
    from perdure.cli.screen import emit, note
    from perdure.cli.store_locator import store_shown
    from perdure.ids import VERSION

    agents, where, work = sorted(rt.agents), store_shown(core_of(rt).store), core_of(rt).work
    if order.json:
        fields = {} if port is None else {"health_port": port}
        emit(
            type="worker_started",
            v=1,
            worker=rt.worker_id,
            version=VERSION,
            store=where,
            agents=agents,
            queues=None if work.served is None else list(work.served),
            concurrency=work.concurrency,
            **fields,
        )
    elif not order.quiet:
        probes = "" if port is None else f"; health on http://127.0.0.1:{port}"
        queues = "" if work.served is None else f", queue {', '.join(work.served)}"
        note(f"worker {rt.worker_id} is ready: {', '.join(agents)}{queues} on {where}{probes}")


def _tell_end(rt: Runtime, order: _WorkerCommand, *, in_order: bool) -> int:
    from perdure.cli.exits import INTERRUPTED, OK
    from perdure.cli.screen import emit, note

    if order.json:
        emit(type="worker_stopped", v=1, worker=rt.worker_id, drained=in_order)
    elif not order.quiet:
        note(f"worker {rt.worker_id} has {'drained and stopped' if in_order else 'stopped at once'}")
    return OK if in_order else INTERRUPTED
