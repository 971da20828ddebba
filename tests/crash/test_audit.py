"""The audit log under SIGKILL: a process that dies right after the answer of an act has left its entry."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import cast

import pytest

from perdure import Runtime
from perdure.runtime.audit import AuditedAct
from perdure.runtime.clock import SystemClock
from perdure.runtime.stores import store_for
from perdure.vocab.audit import Act
from tests.crash.harness import processes
from tests.scenarios.audited import DEEDS, opened

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


def do_and_die(url: str, deed: str) -> None:
    """Carry out one act in this process, and kill it as soon as the API has answered."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def main() -> None:
        async with opened(store_for(url, SystemClock(), lease_ms=10_000)) as rt:
            await DEEDS[deed](rt, die)

    asyncio.run(main())


async def left(url: str, act: str) -> tuple[AuditedAct, ...]:
    """Return the entries of an act, as the next process finds them."""
    async with Runtime(url, worker=False) as rt:
        return await rt.audit.list(act=cast("Act", act))


@pytest.mark.parametrize("on", ["sqlite", "postgres"])
@pytest.mark.parametrize("deed", DEEDS)
def test_t_aud_01_act_is_in_the_log_of_a_killed_process(
    on: str, deed: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 's.db'}" if on == "sqlite" else str(request.getfixturevalue("postgres_url"))
    child = processes.Process(target=do_and_die, args=(url, deed))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    found = asyncio.run(left(url, deed))
    assert [one.outcome for one in found] == ["done"], json.dumps([one.act for one in found])
