"""Limits of the inputs that wait and of the turns that a session causes itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from perdure.errors import Code, Error
from perdure.ids import Tenant
from perdure.inbox.admit import Room, Waiting, queue_full
from perdure.store.protocol import Store

log = logging.getLogger("perdure.runtime")

SHARE = 64
"""The share of a tenant's limit, as a divisor, that a process admits before it counts the tenant's queue again."""


@dataclass(frozen=True, slots=True)
class InputLimits:
    """Limits of waiting inputs, per session and per tenant, and of the turns in a row that a session causes itself.

    The limits of a session are exact. Each process may exceed those of a tenant by a sixty-fourth.
    """

    session_inputs: int = 1_000
    session_bytes: int = 64 * 1024 * 1024
    tenant_inputs: int = 100_000
    tenant_bytes: int = 4 * 1024 * 1024 * 1024
    own_turns: int = 20

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if type(value) is not int or value < 1:
                raise Error(
                    Code.INVALID_ARGUMENT,
                    f"invalid InputLimits({one.name}={value!r:.40})",
                    because="a limit must be an integer >= 1",
                )

    @property
    def room(self) -> Room:
        """The limits of one session's queue."""
        return Room(self.session_inputs, self.session_bytes)


@dataclass(slots=True)
class _Queue:
    """The queue of a tenant: its inputs when it was counted, those that this process has admitted since, and the count
    that is under way."""

    counted: Waiting = field(default_factory=Waiting)
    inputs: int = 0
    bytes: int = 0
    counting: asyncio.Task[None] | None = None


class TenantQueues:
    """The queues of all tenants, as far as this process knows them.

    An exact count would cost each send a read of the whole queue and a lock that all senders of the tenant share.
    Therefore a process counts in the background, after each sixty-fourth of the limit that it admitted itself. A send
    to a queue that seems full waits for a new count.
    """

    def __init__(self, store: Store, limits: InputLimits, of_tenants: Mapping[str, InputLimits]) -> None:
        self._store = store
        self._limits = limits
        self._of_tenants = dict(of_tenants)
        self._queues: dict[Tenant, _Queue] = {}

    def limits(self, tenant: Tenant) -> InputLimits:
        """Return the limits of a tenant."""
        return self._of_tenants.get(tenant, self._limits)

    async def check(self, tenant: Tenant, size: int) -> None:
        """Refuse an input for which the queue of the tenant has no room.

        Raises:
            Error: `queue_full`. Nothing was written.
        """
        queue = self._queues.setdefault(tenant, _Queue())
        if self._is_full(tenant, queue, size):
            await asyncio.shield(self._count(tenant, queue))
            if self._is_full(tenant, queue, size):  # threat: S16
                limits = self.limits(tenant)
                raise queue_full(
                    "tenant", Room(limits.tenant_inputs, limits.tenant_bytes), queue.counted, tenant=tenant
                )

    def admitted(self, tenant: Tenant, size: int) -> None:
        """Note an input that this process has put into a queue of the tenant."""
        queue, limits = self._queues.setdefault(tenant, _Queue()), self.limits(tenant)
        queue.inputs += 1
        queue.bytes += size
        if queue.inputs * SHARE >= limits.tenant_inputs or queue.bytes * SHARE >= limits.tenant_bytes:
            self._count(tenant, queue)

    async def close(self) -> None:
        """End the counts that are under way."""
        tasks = [queue.counting for queue in self._queues.values() if queue.counting is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_full(self, tenant: Tenant, queue: _Queue, size: int) -> bool:
        limits, counted = self.limits(tenant), queue.counted
        inputs, size = counted.inputs + queue.inputs + 1, counted.bytes + queue.bytes + size
        return inputs > limits.tenant_inputs or size > limits.tenant_bytes

    def _count(self, tenant: Tenant, queue: _Queue) -> asyncio.Task[None]:
        """Count the queue in the background, once at a time."""
        if queue.counting is None or queue.counting.done():
            queue.counting = asyncio.create_task(self._counted(tenant, queue), name=f"perdure:waiting:{tenant}")
        return queue.counting

    async def _counted(self, tenant: Tenant, queue: _Queue) -> None:
        before = queue.inputs, queue.bytes
        try:
            queue.counted = await self._store.waiting(tenant)
        except Error as problem:
            log.warning("count of a tenant's queue failed: %s", problem, extra={"tenant": tenant})
            return
        queue.inputs, queue.bytes = queue.inputs - before[0], queue.bytes - before[1]
