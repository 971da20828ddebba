"""What a process function is given: steps, waits, signals, and who it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import CallId, Tenant
from perdure.processes.events import signal_type
from perdure.processes.record import ProcessRecord
from perdure.tools.body import Body
from perdure.tools.context import NOT_GIVEN, CancelToken
from perdure.tools.durable import DurableOps, Duration
from perdure.tools.durations import duration_ms


@dataclass(frozen=True, kw_only=True, repr=False)
class ProcessContext(DurableOps):
    """One entry of a process's function.

    `idempotency_key` is the same on every entry, after every restart; `ctx.step_key(name)` is one for a step.
    """

    process_id: str
    tenant: Tenant
    idempotency_key: str
    tool_name: str
    body: Body | None
    look: Callable[[], ProcessRecord]
    given: object = NOT_GIVEN
    cancellation: CancelToken = field(default_factory=CancelToken)
    call_id: CallId = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "call_id", CallId(self.process_id))

    @property
    def deps(self) -> object:
        """What the runtime was given as `deps=`.

        Raises:
            Error: `invalid_argument` if it was given nothing.
        """
        if self.given is NOT_GIVEN:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"the process {self.process_id} asks for ctx.deps, and there are none",
                because="the runtime was opened without deps",
                hint="pass them: Runtime(..., deps=...)",
            )
        return self.given

    @property
    def record(self) -> ProcessRecord:
        """What is known of this process, as far as it is durable."""
        return self.look()

    async def signal(self, name: str, *, timeout: Duration | None = None) -> Json:
        """Wait for the next signal of this name: `handle.signal(name, payload)`. Each is received once, in order.

        Raises:
            EventTimedOut: none came within `timeout` (`process_signal_wait_timeout`).
            Error: `process_signal_invalid`.
        """
        signal_type(name)
        limit = None if timeout is None else duration_ms(timeout, what=f"the timeout of the signal {name!r}")
        return await self.durable_effects().signal(self.process_id, name, limit)
