"""Effects in flight, their write access to the stream, and completion keys for external completion."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from perdure.clock import Clock
from perdure.commit.plan import Blob
from perdure.effects.controller import Begun, DispatchPolicy, EffectLog, JournaledController
from perdure.effects.promises import SECRET, TurnScope, signed_key, unsigned_key
from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId
from perdure.inbox.admit import Delivery
from perdure.runtime.calls.clients import CallSite
from perdure.runtime.calls.orphaned_calls import PartialReply
from perdure.runtime.shared import Secrets
from perdure.tools.body import Body
from perdure.tools.context import Cancellation
from perdure.tools.step_outcomes import Parked
from perdure.turn.state import Effect
from perdure.vocab.effects import Envelope
from perdure.vocab.outcomes import Outcome
from perdure.vocab.promises import EventKey, ToolCompletion
from perdure.vocab.records import Record
from perdure.vocab.tools import EffectClass


class WriteGuard:
    """The write access of one call. It closes for good when the turn continues without the call."""

    def __init__(self, ledger: EffectLog) -> None:
        self.worker = ledger.worker
        self.is_shut = False
        self._ledger = ledger

    def submit(self, *records: Record, outbox: tuple[Delivery, ...] = ()) -> tuple[Record, ...]:
        """Append facts, and deliveries to other streams.

        Raises:
            Parked: the access is closed; the call runs detached from its turn.
        """
        if self.is_shut:
            raise Parked
        return self._ledger.submit(*records, outbox=outbox)

    async def durable(self) -> None:
        """Wait until everything submitted so far is durable."""
        if self.is_shut:
            raise Parked
        await self._ledger.durable()
        if self.is_shut:
            raise Parked

    def lease_live(self) -> bool:
        """Return True if new work may begin now."""
        return not self.is_shut and self._ledger.lease_live()

    async def reassert(self) -> None:
        """Renew a lapsed lease."""
        if self.is_shut:
            raise Parked
        await self._ledger.reassert()


@dataclass(slots=True)
class InFlight:
    """An effect in flight.

    `dispatched`: external systems may have noticed it. `unwound`: its body ended with `Parked`.
    """

    owed: Effect
    begun: Begun
    id: EffectId = field(init=False)
    task: asyncio.Task[None] | None = None
    cancellation: Cancellation = field(default_factory=Cancellation)
    dispatched: bool = False
    body: Body | None = None
    valve: WriteGuard | None = None
    unwound: bool = False
    outcome: Outcome | None = None
    blobs: tuple[Blob, ...] = ()
    site: CallSite | None = None
    said: PartialReply | None = None

    def __post_init__(self) -> None:
        self.id = EffectId(self.begun.envelope.id)

    @property
    def effect(self) -> EffectClass:
        """The effect's class."""
        return self.begun.policy.effect

    @property
    def may_act(self) -> bool:
        """True if unrepeatable work of the effect may be running right now."""
        if self.outcome is not None or not self.dispatched:
            return False
        return self.effect == "once" or (self.body is not None and self.body.life.running > 0)

    @property
    def left_running(self) -> bool:
        """True if the effect was asked to stop and still runs after its grace period, as far as is known here."""
        return self.cancellation.ignored or (self.task is not None and not self.task.done())

    def start(self) -> None:
        """Mark the effect as dispatched: external systems may notice it from now on."""
        self.dispatched = True

    def stop(self) -> None:
        """Ask the effect to stop: first by its token, then by cancelling its task."""
        self.cancellation.cancel()
        if self.task and not self.task.done():
            self.task.cancel()

    def put_aside(self) -> None:
        """Unwind the body, which may be re-entered later. Its further results are no outcome."""
        if self.body is not None:
            self.body.life.unwind()

    def shut(self) -> None:
        """Close the write access, because the turn continues without this effect."""
        if self.valve is not None:
            self.valve.is_shut = True


class AttemptCompletion:
    """The completion key of one attempt of one call."""

    def __init__(
        self,
        controller: JournaledController,
        describe: Callable[[EventKey], Envelope],
        secrets: Secrets,
        scope: TurnScope,
        call: CallId,
        attempt: int,
        clock: Clock,
    ) -> None:
        self.key: EventKey | None = None
        self.over = False
        self._controller = controller
        self._describe = describe
        self._secrets = secrets
        self._scope = scope
        self._wait = ToolCompletion(call_id=call, attempt=attempt)
        self._clock = clock

    async def make(self, deadline_ms: int | None) -> EventKey:
        """Return the key, once the start of its wait is durable."""
        if self.over:
            raise Error(
                Code.TOOL_COMPLETION_STATE_POISONED,
                "the call has ended: external completion is no longer possible",
                hint="ask for the completion key before the tool returns",
            )
        key = signed_key(await self._secrets.get(SECRET, self._scope.tenant), self._scope.id, self._wait)
        if self.key is None:
            due_at = None if deadline_ms is None else self._clock.wall_ms() + deadline_ms
            policy = DispatchPolicy(effect="pure", record_start=True, due_at=due_at)
            self._controller.begin(self._describe(unsigned_key(key.scope, key.wait)), policy)
            self.key = key
        await self._controller.ledger.durable()
        return key
