"""Effects under way, and what a tool's call may do besides returning: wait, and leave its end to somebody outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from perdure.clock import Clock
from perdure.commit.plan import Blob
from perdure.effects.controller import Begun, Care, JournaledController, Ledger
from perdure.effects.promises import SECRET, TurnScope, signed_key, unsigned_key
from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId
from perdure.inbox.admit import Delivery
from perdure.runtime.calls.clients import CallSite
from perdure.runtime.calls.lost import Saying
from perdure.runtime.shared import Secrets
from perdure.tools.body import Body
from perdure.tools.context import CancelToken
from perdure.tools.endings import Parked
from perdure.turn.state import Effect
from perdure.vocab.effects import Envelope
from perdure.vocab.outcomes import Outcome
from perdure.vocab.promises import AwaitEventKey, ToolCompletion
from perdure.vocab.records import Record
from perdure.vocab.tools import EffectClass


class Valve:
    """What one call may write through: shut for good once its turn goes on without it."""

    def __init__(self, ledger: Ledger) -> None:
        self.worker = ledger.worker
        self.is_shut = False
        self._ledger = ledger

    def submit(self, *records: Record, sends: tuple[Delivery, ...] = ()) -> None:
        """Put facts into the stream, and what they send to others.

        Raises:
            Parked: too late; whoever still runs is on its own.
        """
        if self.is_shut:
            raise Parked
        self._ledger.submit(*records, sends=sends)

    async def durable(self) -> None:
        """Wait until everything submitted so far is durable."""
        if self.is_shut:
            raise Parked
        await self._ledger.durable()
        if self.is_shut:
            raise Parked

    def lease_live(self) -> bool:
        """Whether what is begun now may begin."""
        return not self.is_shut and self._ledger.lease_live()

    async def reassert(self) -> None:
        """Renew a lapsed lease."""
        if self.is_shut:
            raise Parked
        await self._ledger.reassert()


@dataclass(slots=True)
class Flight:
    """An effect under way. `dispatched` tells whether the world may have noticed, `unwound` that it was put aside."""

    owed: Effect
    begun: Begun
    id: EffectId = field(init=False)
    task: asyncio.Task[None] | None = None
    cancellation: CancelToken = field(default_factory=CancelToken)
    dispatched: bool = False
    body: Body | None = None
    valve: Valve | None = None
    unwound: bool = False
    outcome: Outcome | None = None
    blobs: tuple[Blob, ...] = ()
    site: CallSite | None = None
    said: Saying | None = None

    def __post_init__(self) -> None:
        self.id = EffectId(self.begun.envelope.id)

    @property
    def effect(self) -> EffectClass:
        """The effect's class."""
        return self.begun.care.effect

    @property
    def may_act(self) -> bool:
        """Whether something of it that must not happen twice may be happening right now."""
        if self.outcome is not None or not self.dispatched:
            return False
        return self.effect == "once" or (self.body is not None and self.body.life.running > 0)

    @property
    def left_running(self) -> bool:
        """Whether it goes on although it was told to stop and given a moment, as far as can be seen from here."""
        return self.cancellation.ignored or (self.task is not None and not self.task.done())

    def start(self) -> None:
        """The world is about to notice."""
        self.dispatched = True

    def stop(self) -> None:
        """Ask it to stop: by its token first, then by cancelling its task."""
        self.cancellation.cancel()
        if self.task and not self.task.done():
            self.task.cancel()

    def put_aside(self) -> None:
        """Its body may be entered again later; whatever it still does is no outcome."""
        if self.body is not None:
            self.body.life.unwind()

    def shut(self) -> None:
        """The turn goes on without it: nothing that it still does is recorded."""
        if self.valve is not None:
            self.valve.is_shut = True


class AttemptCompletion:
    """The completion key of one attempt of one call."""

    def __init__(
        self,
        controller: JournaledController,
        describe: Callable[[AwaitEventKey], Envelope],
        secrets: Secrets,
        scope: TurnScope,
        call: CallId,
        attempt: int,
        clock: Clock,
    ) -> None:
        self.key: AwaitEventKey | None = None
        self.over = False
        self._controller = controller
        self._describe = describe
        self._secrets = secrets
        self._scope = scope
        self._wait = ToolCompletion(call_id=call, attempt=attempt)
        self._clock = clock

    async def make(self, deadline_ms: int | None) -> AwaitEventKey:
        """The key, once it is durable that this call may be completed under it."""
        if self.over:
            raise Error(
                Code.TOOL_COMPLETION_STATE_POISONED,
                "the call is over: it cannot be left to somebody outside any more",
                hint="ask for the completion key before the tool returns",
            )
        key = signed_key(await self._secrets.get(SECRET), self._scope.id, self._wait)
        if self.key is None:
            due_at = None if deadline_ms is None else self._clock.wall_ms() + deadline_ms
            care = Care(effect="pure", record_start=True, due_at=due_at)
            self._controller.begin(self._describe(unsigned_key(key.scope, key.wait)), care)
            self.key = key
        await self._controller.ledger.durable()
        return key
