"""A short run of `make chaos` on both stores: its seed is fixed, so that a failure can be looked at again."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tests.chaos.run import Order, run
from tests.chaos.schedule import schedule

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize(("store", "seconds"), [("postgres", 16), ("sqlite", 10)])
async def test_a_fleet_under_fire(store: Literal["postgres", "sqlite"], seconds: int, tmp_path: Path) -> None:
    report = await run(Order(7, seconds, 40, 2.0, store, tmp_path), tell=print)
    assert report.problems == []
    assert report.counts["kills"] >= 4
    assert report.counts["inputs answered"] >= 40
    hit = report.counts["in doubt"] + report.counts["probes"]
    assert hit > 0, "the faults hit no working worker: no doubt and no probe"


def test_schedule_is_determined_by_its_seed() -> None:
    both = schedule(3, 60)
    assert both == schedule(3, 60)
    assert both != schedule(4, 60)
    kinds = [fault.kind for fault in both.faults]
    assert (kinds.count("kill"), kinds.count("restart")) == (59, 3)
    assert min(fault.for_s for fault in both.faults if fault.kind == "freeze") > both.lease_s
    of_workers = tuple(fault for fault in both.faults if fault.kind in ("kill", "freeze"))
    assert schedule(3, 60, server=False).faults == of_workers
