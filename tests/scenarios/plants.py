"""Helpers of the process scenarios: the marks in a log, and whether a process is parked."""

from __future__ import annotations

from perdure import Runtime, RuntimeOptions
from perdure.runtime.internals import core_of
from perdure.runtime.processes.handle import ProcessHandle
from perdure.vocab.records import EffectSettled, EffectStarted
from tests.scenarios.conftest import until

HURRIED = RuntimeOptions(idle_timeout_s=0.0)


async def marks(handle: ProcessHandle) -> list[str]:
    """Return the effects in the log: `>id` begun, `<id` ended."""
    found = (row.record for row in await handle.journal())
    return [
        f"{'>' if isinstance(record, EffectStarted) else '<'}{record.id}"
        for record in found
        if isinstance(record, EffectStarted | EffectSettled)
    ]


async def parked(rt: Runtime, handle: ProcessHandle) -> None:
    async def is_parked() -> bool:
        info = await core_of(rt).store.stream(handle.stream)
        return info is not None and info.parked and info.owner is None and not core_of(rt).has_in_hand(handle.stream)

    await until(is_parked)
