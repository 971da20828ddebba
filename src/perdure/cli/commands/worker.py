"""`perdure worker`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from perdure.cli.options import Db, Json, Quiet

if TYPE_CHECKING:
    from perdure.cli.signals import Signals
    from perdure.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class _Order:
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
    drain: Annotated[
        float | None,
        Option(metavar="SECONDS", min=0, help="How long turns may finish after a signal.", show_default=False),
    ] = None,
    health_port: Annotated[
        int | None,
        Option(metavar="PORT", min=0, max=65535, help="Answer /live and /ready on 127.0.0.1.", show_default=False),
    ] = None,
    queue: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="Serve only this queue; may be repeated.", show_default=False),
    ] = None,
    concurrency: Annotated[
        int | None,
        Option(metavar="N", min=1, help="How many sessions to drive at once.", show_default=False),
    ] = None,
    db: Db = "",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Do the work of a store, until SIGTERM or Ctrl-C. Start as many as you like.

    TARGET is a Runtime, an Agent, a list of agents, or a function that makes one. After the first signal it takes no
    more work, lets turns finish and hands over the rest; after the second it stops at once. Nothing is lost either way.
    """
    from perdure.cli.places import run

    order = _Order(target, db, drain, health_port, queue or [], concurrency, json, quiet)
    raise Exit(run(lambda: _work(order)))


async def _work(order: _Order) -> int:
    from perdure.cli.health import health
    from perdure.cli.places import url_of
    from perdure.cli.signals import Signals
    from perdure.cli.targets import runtime_for

    found = runtime_for(order.target, store=url_of(order.db), model=None, worker=True)
    work = replace(
        found.work,
        queues=order.queues or found.work.served,
        concurrency=order.concurrency or found.work.concurrency,
    )
    runtime = found.like(store=found.store, agents=found.agents.values(), worker=work)  # even if it was to have none
    _check(runtime, order)
    signals = Signals()
    async with runtime as rt, health(rt, order.health_port) as port:
        _tell_start(rt, port, order)
        await signals.first.wait()
        in_order = await _drained(rt, signals, order.drain_s)
    return _tell_end(runtime, order, in_order=in_order)


def _check(runtime: Runtime, order: _Order) -> None:
    from perdure.cli.places import store_shown
    from perdure.errors import Code, Error

    if not runtime.agents:
        raise Error(
            Code.TARGET_INVALID,
            f"{order.target} has no agents",
            because="a worker without agents has nothing to do",
            hint="Runtime(..., agents=[agent])",
        )
    if store_shown(runtime.store) is None:
        raise Error(
            Code.TARGET_INVALID,
            f"the store of {order.target} is in memory",
            because="nobody else could give this worker anything to do",
            hint="--db .perdure/dev.db",
        )


async def _drained(rt: Runtime, signals: Signals, drain_s: float | None) -> bool:
    """Drain until done (True), or until somebody is in a hurry."""
    import asyncio

    draining = asyncio.create_task(rt.drain(drain_s))
    hurry = asyncio.create_task(signals.second.wait())
    await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
    in_order = draining.done()
    for task in (draining, hurry):
        task.cancel()
    await asyncio.gather(hurry, return_exceptions=True)
    if in_order:
        await draining
    else:
        await asyncio.gather(draining, return_exceptions=True)
    return in_order


def _tell_start(rt: Runtime, port: int | None, order: _Order) -> None:
    from perdure.cli.places import store_shown
    from perdure.cli.screen import emit, note
    from perdure.ids import VERSION

    agents, where = sorted(rt.agents), store_shown(rt.store)
    if order.json:
        fields = {} if port is None else {"health_port": port}
        emit(
            type="worker_started",
            v=1,
            worker=rt.worker_id,
            version=VERSION,
            store=where,
            agents=agents,
            queues=None if rt.work.served is None else list(rt.work.served),
            concurrency=rt.work.concurrency,
            **fields,
        )
    elif not order.quiet:
        probes = "" if port is None else f"; health on http://127.0.0.1:{port}"
        queues = "" if rt.work.served is None else f", queue {', '.join(rt.work.served)}"
        note(f"worker {rt.worker_id} is ready: {', '.join(agents)}{queues} on {where}{probes}")


def _tell_end(rt: Runtime, order: _Order, *, in_order: bool) -> int:
    from perdure.cli.exits import INTERRUPTED, OK
    from perdure.cli.screen import emit, note

    if order.json:
        emit(type="worker_stopped", v=1, worker=rt.worker_id, drained=in_order)
    elif not order.quiet:
        note(f"worker {rt.worker_id} has {'drained and stopped' if in_order else 'stopped at once'}")
    return OK if in_order else INTERRUPTED
