"""What stories of processes look at: the marks in a log, and whether one is parked."""

from __future__ import annotations

from perdure import Runtime, Tuning
from perdure.runtime.processes.handle import ProcessHandle
from perdure.vocab.records import EffectSettled, EffectStarted
from tests.scenarios.conftest import until

HURRIED = Tuning(patience_s=0.0)


async def marks(handle: ProcessHandle) -> list[str]:
    """What the log says of effects: `>id` begun, `<id` ended."""
    found = (row.record for row in await handle.rows())
    return [
        f"{'>' if isinstance(record, EffectStarted) else '<'}{record.id}"
        for record in found
        if isinstance(record, EffectStarted | EffectSettled)
    ]


async def parked(rt: Runtime, handle: ProcessHandle) -> None:
    async def is_parked() -> bool:
        info = await rt.store.stream(handle.stream)
        return info is not None and info.parked and info.owner is None and not rt.has_in_hand(handle.stream)

    await until(is_parked)
