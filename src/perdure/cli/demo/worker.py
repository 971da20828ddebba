"""The worker of the demo, a process of its own so that there is something to kill.

`python -m perdure.cli.demo.worker STORE LEDGER OUTBOX SESSION`: takes up what is unfinished, sends the booking under a
key (the same again is the same input), works until it is answered, and ends with 0.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from perdure.cli.demo.ledger import Ledger, Outbox
from perdure.cli.demo.travel import AGENT, INPUT, World, travel_agent
from perdure.runtime.clock import SystemClock
from perdure.runtime.runtime import Runtime
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.crash import die, tripwire_from_environment

DIE_IN = "PERDURE_DEMO_DIE_IN"
"""A place inside a tool or a model call at which the process kills itself."""


def _passing() -> Callable[[str], None]:
    fatal = os.environ.get(DIE_IN)

    def passing(place: str) -> None:
        if place == fatal:
            die()

    return passing


def live(arguments: Sequence[str], environment: Mapping[str, str], errors: str) -> NoReturn:
    """Be a worker in a process that was forked for it, with this environment and nothing else of ours in it; what it
    complains about goes into a file."""
    for name in [name for name in os.environ if name.startswith("PERDURE_")]:
        del os.environ[name]
    os.environ.update(environment)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
    sys.exit(asyncio.run(work(_arguments(arguments))))


def _arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="perdure demo worker")
    parser.add_argument("store", type=Path)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("outbox", type=Path)
    parser.add_argument("session")
    parser.add_argument("--dawdle", type=float, default=0.0)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--model", default="")
    return parser.parse_args(given)


async def work(args: argparse.Namespace) -> int:
    """Work the booking to its end."""
    world = World(Ledger(args.ledger), Outbox(args.outbox), dawdle_s=args.dawdle, pace_s=args.pace, passing=_passing())
    agent = travel_agent(world, delta_ms=round(args.pace * 1000 / 6), model=args.model)
    store = tripwire_from_environment(SqliteStore(args.store, SystemClock()))
    async with Runtime(store, agents=[agent], deps=world) as rt:
        session = await rt.session(args.session, agent=AGENT)
        sent = await session.send(INPUT, key=f"demo:{args.session}")
        result = await sent.result()
    return 0 if result.status == "finished" else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(work(_arguments())))
