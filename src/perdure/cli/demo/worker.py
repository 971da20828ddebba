"""The worker process of the demo, to be killed.

`python -m perdure.cli.demo.worker STORE LEDGER OUTBOX SESSION` takes over unfinished work and sends the booking under a
key, so that a repeated send is one input. The process exits with 0 when the turn has finished.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from perdure.cli.demo.ledger import DemoLedger, Mailbox
from perdure.cli.demo.travel import AGENT, INPUT, TravelWorld, travel_agent
from perdure.runtime.clock import SystemClock
from perdure.runtime.runtime import Runtime
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.crash import die, tripwire_from_environment

DIE_IN = "PERDURE_DEMO_DIE_IN"
"""A place inside a tool or a model call where the process kills itself."""


def _passing() -> Callable[[str], None]:
    fatal = os.environ.get(DIE_IN)

    def passing(place: str) -> None:
        if place == fatal:
            die()

    return passing


def live(arguments: Sequence[str], environment: Mapping[str, str], errors: str) -> NoReturn:
    """Run a worker in a forked process, with only this environment. The file `errors` receives its stderr."""
    for name in [name for name in os.environ if name.startswith("PERDURE_")]:
        del os.environ[name]
    os.environ.update(environment)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    sys.exit(asyncio.run(work(_arguments(arguments))))


def _arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="perdure demo worker")
    parser.add_argument("store", type=Path)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("outbox", type=Path)
    parser.add_argument("session")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--model", default="")
    return parser.parse_args(given)


async def work(args: argparse.Namespace) -> int:
    """Send the booking and wait for its result."""
    world = TravelWorld(
        DemoLedger(args.ledger), Mailbox(args.outbox), delay_s=args.delay, pace_s=args.pace, passing=_passing()
    )
    agent = travel_agent(world, delta_ms=round(args.pace * 1000 / 6), model=args.model)
    store = tripwire_from_environment(SqliteStore(args.store, SystemClock()))
    async with Runtime(store, agents=[agent], deps=world) as rt:
        session = await rt.session(args.session, agent=AGENT)
        sent = await session.send(INPUT, key=f"demo:{args.session}")
        result = await sent.result()
    return 0 if result.status == "finished" else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(work(_arguments())))
