"""Advanced settings of a runtime, with defaults for most deployments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perdure.clock import Clock
from perdure.errors import Code, Error
from perdure.runtime.clock import SystemClock
from perdure.runtime.input_limits import InputLimits
from perdure.runtime.processes.limits import ProcessLimits
from perdure.runtime.tasks.commands import MAX_COMMANDS
from perdure.services.os_commands import host_id
from perdure.services.spawns import SpawnLimits

MIN_LEASE_S = 0.2


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Advanced settings. The defaults suit most deployments.

    - `lease_s`: a worker that does not renew its lease for so long may be taken over.
    - `loop_stall_limit_s`: a worker whose event loop has not answered for so long no longer renews its lease.
    - `drain_s`: how long a closing runtime lets running turns finish before it hands them over.
    - `idle_timeout_s`, `max_waiting`: how long, and how many, waiting turns stay in memory.
    - `subagents`, `processes`: limits of the depth and number of child agents and child processes.
    - `host`: the name of this machine. Commands are spawned and watched only on the machine where they were registered.
    - `commands_in`: the folder for the output of commands, instead of one beside the store.
    - `max_commands`: concurrent commands per worker.
    - `inputs`, `tenant_inputs`: limits of waiting inputs and of turns that a session causes itself, in general and for
      single tenants.
    - `task_retention_s`, `trigger_retention_s`: how long ended tasks and trigger occurrences are kept; 0 means forever.
    - `audit_retention_s`: how long audit entries are kept, in whole months; 0 means forever.
    """

    clock: Clock = field(default_factory=SystemClock)
    lease_s: float = 10.0
    loop_stall_limit_s: float = 60.0
    drain_s: float = 10.0
    idle_timeout_s: float = 30.0
    max_waiting: int = 128
    subagents: SpawnLimits = field(default_factory=SpawnLimits)
    host: str = field(default_factory=host_id)
    commands_in: Path | None = None
    max_commands: int = MAX_COMMANDS
    task_retention_s: float = 30 * 86_400.0
    trigger_retention_s: float = 30 * 86_400.0
    audit_retention_s: float = 365 * 86_400.0
    processes: ProcessLimits = field(default_factory=ProcessLimits)
    inputs: InputLimits = field(default_factory=InputLimits)
    tenant_inputs: Mapping[str, InputLimits] = field(default_factory=dict[str, InputLimits])

    def __post_init__(self) -> None:
        if not self.idle_timeout_s >= 0 or self.max_waiting < 0:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"idle_timeout_s={self.idle_timeout_s} or max_waiting={self.max_waiting}",
                because="both must be >= 0",
            )
        if self.max_commands < 1:
            raise Error(Code.INVALID_ARGUMENT, f"invalid max_commands={self.max_commands}", because="must be >= 1")
        if not self.loop_stall_limit_s > 0:
            raise Error(
                Code.INVALID_ARGUMENT, f"invalid loop_stall_limit_s={self.loop_stall_limit_s}", because="must be > 0"
            )
        for name in ("task_retention_s", "trigger_retention_s", "audit_retention_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise Error(
                    Code.INVALID_ARGUMENT,
                    f"invalid {name}={getattr(self, name)}",
                    because="must be >= 0 and finite; 0 means forever",
                )
        if not self.lease_s >= MIN_LEASE_S or not self.drain_s >= 0:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"invalid lease_s={self.lease_s} or drain_s={self.drain_s}",
                because=f"lease_s must be >= {MIN_LEASE_S}, and drain_s >= 0",
            )
