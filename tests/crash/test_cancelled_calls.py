"""A worker is killed around the cancelling of a turn whose model writes: what was bought is in the ledger once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure import Agent, Runtime, RuntimeOptions
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest, TextPiece
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.stores import store_for
from perdure.testing.crash import Boundary, Gate, fatal, gated
from perdure.vocab.messages import Text
from perdure.vocab.usage import Usage
from tests.crash.harness import processes
from tests.crash.scenarios import store_url
from tests.scenarios.conftest import until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(60)]

TEN = Usage(input=6, output=4, calls=1)
THIRTY = "thirty characters are written."
TUNING = RuntimeOptions(lease_s=1.0)


class Writer:
    """Writes thirty characters, and waits for ever; in its second life it says them at once."""

    name = "writer"

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        yield TextPiece(THIRTY)
        await asyncio.sleep(3600 if self._waits else 0)
        yield ModelReply(parts=(Text(text=THIRTY),), finish="stop", usage=TEN, model="writer")


def cancelling(url: str, kill_at: str) -> None:
    """The child: sends an input, and cancels its turn once others can see what the model has written."""
    asyncio.run(_cancelling(url, Boundary.parse(kill_at)))


async def _cancelling(url: str, kill_at: Boundary) -> None:
    store = gated(store_for(url, SystemClock(), lease_ms=1000), Gate.at(kill_at, fatal(kill_at, None)))
    async with Runtime(store, agents=[Agent("a", model=Writer(waits=True))], options=TUNING) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go", key="k")

        async def written() -> bool:
            return bool(await core_of(rt).store.live.read(ref_of(session).stream))

        await until(written, seconds=30)
        await session.cancel()
        await sent.result(30)


CANCEL, END = "cancel_requested", "turn_ended"


@pytest.mark.parametrize(("side", "what"), [("before", CANCEL), ("after", CANCEL), ("before", END), ("after", END)])
async def test_usage_of_a_cancelled_call_is_counted_once(folder: Path, side: str, what: str) -> None:
    url = store_url(folder)
    child = processes.Process(target=cancelling, args=(url, f"0:{side}:{what}"))
    child.start()
    await asyncio.to_thread(child.join, 40)
    if child.is_alive():
        child.kill()
    assert child.exitcode == -signal.SIGKILL
    async with Runtime(url, agents=[Agent("a", model=Writer(waits=False))], options=TUNING) as rt:
        sent = await (await rt.session("s", agent="a")).send("go", key="k")
        result = await sent.result(30)
        ledger = [(one.effect, one.usage) for one in await sent.session.usage_entries()]
        used = await sent.session.usage()
    (first, bought), *rest = ledger
    assert (first, bought.output, bought.calls, bought.estimated) == ("m1.1", 10, 1, 1)
    if (side, what) == ("before", CANCEL):
        assert (result.status, rest) == ("finished", [("m1.2", TEN)]), "the turn was not cancelled"
    else:
        assert (result.reason, rest) == ("cancelled", [])
    assert used == result.usage == sum((one for _, one in ledger), Usage())
