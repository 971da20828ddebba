"""The numbers behind a runtime, with what is right for nearly everybody."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from perdure.clock import Clock
from perdure.errors import Code, Error
from perdure.runtime.clock import SystemClock
from perdure.runtime.processes.limits import ProcessLimits
from perdure.runtime.tasks.commands import MAX_COMMANDS
from perdure.services.os_commands import host_id
from perdure.services.spawns import SpawnLimits

MIN_LEASE_S = 0.2


@dataclass(frozen=True, slots=True)
class Tuning:
    """What hardly anybody needs to change.

    A worker that does not renew its lease for `lease_s` may be taken over. `drain_s` is how long a closing runtime
    lets running turns finish before it hands them over. A turn that only waits stays in memory for `patience_s`, and
    no more than `max_waiting` of them do. `subagents` bounds how deep and how many agents start each other, `processes`
    how deep and how many children processes start. `host` names this machine: commands are spawned and watched only
    where they were registered; `commands_in` is the folder in which they leave what they print, instead of one beside
    the store, and a worker has `max_commands` at once. Tasks of sessions are kept for `task_retention_s` after their
    end, and what happened at a trigger source for `trigger_retention_s`; 0 keeps them.
    """

    clock: Clock = field(default_factory=SystemClock)
    lease_s: float = 10.0
    drain_s: float = 10.0
    patience_s: float = 30.0
    max_waiting: int = 128
    subagents: SpawnLimits = field(default_factory=SpawnLimits)
    host: str = field(default_factory=host_id)
    commands_in: Path | None = None
    max_commands: int = MAX_COMMANDS
    task_retention_s: float = 30 * 86_400.0
    trigger_retention_s: float = 30 * 86_400.0
    processes: ProcessLimits = field(default_factory=ProcessLimits)

    def __post_init__(self) -> None:
        if not self.patience_s >= 0 or self.max_waiting < 0:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"patience_s={self.patience_s} and max_waiting={self.max_waiting} cannot work",
                because="neither can be less than nothing",
            )
        if self.max_commands < 1:
            raise Error(
                Code.INVALID_ARGUMENT, f"max_commands={self.max_commands} cannot work", because="nothing would ever run"
            )
        for name in ("task_retention_s", "trigger_retention_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise Error(
                    Code.INVALID_ARGUMENT,
                    f"{name}={getattr(self, name)} cannot work",
                    because="they are kept for some seconds, or for ever, which is 0",
                )
        if not self.lease_s >= MIN_LEASE_S or not self.drain_s >= 0:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"lease_s={self.lease_s} and drain_s={self.drain_s} cannot work",
                because=f"a lease must last at least {MIN_LEASE_S} s, and draining cannot take less than no time",
            )
