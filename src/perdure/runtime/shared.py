"""State that all sessions of one runtime share."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from perdure.clock import Clock
from perdure.codec import SEALED, Json, decode, undecodable
from perdure.commit.plan import Blob
from perdure.errors import Code, Error
from perdure.ids import BlobHash, StreamId, Tenant, TurnId, WorkerId, join
from perdure.observe.hub import Hub
from perdure.runtime.agent import Agent, composition_blob
from perdure.runtime.calls.orphaned_calls import UnrecordedUsage
from perdure.runtime.files import Files
from perdure.runtime.input_limits import TenantQueues
from perdure.runtime.live_texts import LiveTexts
from perdure.runtime.processes.function import ProcessCode
from perdure.runtime.work import WorkerOptions
from perdure.runtime.worker.lounge import Lounge
from perdure.runtime.worker.permits import Permits
from perdure.services.secrets import SeenSecrets
from perdure.services.spawns import SpawnLimits
from perdure.store.protocol import Store
from perdure.tools.execute import ToolThreads
from perdure.tools.outputs import Output, OutputProblem, plain
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import StopReason, TurnEnded
from perdure.vocab.tools import Composition
from perdure.vocab.usage import Usage

if TYPE_CHECKING:
    from perdure.runtime.models import Models
    from perdure.runtime.sessions.session import Session
    from perdure.services.tasks import SessionTaskRegistry


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The outcome of a turn. `text` is the last reply.

    `reason` and `message` explain a stopped turn, `hint` names a remedy if one is known; `partial` is set if the reply
    broke off.
    """

    turn_id: TurnId
    status: Literal["finished", "stopped"]
    text: str
    reason: StopReason | None = None
    message: str = ""
    usage: Usage = field(default_factory=Usage)
    partial: str = ""
    hint: str = ""
    _has_output: bool = field(default=False, repr=False)
    _output_as: Output | None = field(default=None, repr=False, compare=False)

    @property
    def output(self) -> Json:
        """The reply as a value of the agent's `output_type`, or None if the turn has no valid output.

        Plain JSON if the agent is not registered here, because its type is unknown.

        Raises:
            Error: `output_invalid` if the type has changed since and does not accept the reply.
        """
        if not self._has_output:
            return None
        value = plain(self.text) if self._output_as is None else self._output_as.parse(self.text)
        if isinstance(value, OutputProblem):
            raise Error(
                Code.OUTPUT_INVALID,
                "the stored reply does not match the agent's current output type",
                because=value.message,
                hint="read its text: result.text",
                turn=self.turn_id,
            )
        return value


def turn_result(ended: TurnEnded, answer: LlmCallOutcome | None, output_as: Output | None = None) -> TurnResult:
    """Return the result of an ended turn and its last reply."""
    text = answer.text if answer else ""
    valid = answer is not None and answer.output == "valid" and ended.status == "finished"
    partial = answer.reply.partial if answer and answer.reply else ""
    return TurnResult(
        ended.turn, ended.status, text, ended.reason, ended.message, ended.usage, partial, ended.hint, valid, output_as
    )  # fmt: skip


Waiter: TypeAlias = "asyncio.Future[TurnResult | None]"


class Results:
    """The waiters in this process for turns to end."""

    def __init__(self) -> None:
        self._waiting: dict[TurnId, list[Waiter]] = {}
        self._coming: set[TurnId] = set()

    def expect(self, turn: TurnId) -> None:
        """Announce that a turn is about to run here. Its waiters get its result, or None if it leaves this process."""
        self._coming.add(turn)

    def is_coming(self, turn: TurnId) -> bool:
        """Return whether the turn is announced here, so that its waiters need not poll the store."""
        return turn in self._coming

    def wait_for(self, turn: TurnId) -> Waiter:
        """Return a future of the turn's result, which is None if the turn stops running here."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(turn, []).append(waiter)
        return waiter

    def deliver(self, result: TurnResult) -> None:
        """Resolve the waiters of a turn that has ended durably."""
        self._answer(result.turn_id, result)

    def leave(self, turn: TurnId) -> None:
        """Resolve the waiters of a turn that no longer runs here with None, so that they poll the store."""
        self._answer(turn, None)

    def _answer(self, turn: TurnId, result: TurnResult | None) -> None:
        self._coming.discard(turn)
        for waiter in self._waiting.pop(turn, ()):
            if not waiter.done():
                waiter.set_result(result)

    def forget(self, turn: TurnId, waiter: Waiter) -> None:
        """Remove a waiter."""
        others = [other for other in self._waiting.pop(turn, ()) if other is not waiter]
        if others:
            self._waiting[turn] = others


KEY_BYTES = 32


class Secrets:
    """The random keys that a store keeps for each tenant, each read once. With a codec, the store holds them sealed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, bytes] = {}

    async def get(self, name: str, tenant: Tenant) -> bytes:
        """Return the key of that name. Tenants have keys of their own, because they may have codecs of their own.

        Raises:
            Error: `codec_failed` if the key is sealed and this runtime has no codec.
        """
        place = join(tenant, name)
        if place not in self._known:
            found = await self._store.secret(place, os.urandom(KEY_BYTES))
            if found.startswith(SEALED):  # threat: S8, T-SEC-06
                raise undecodable("key")
            self._known[place] = found
        return self._known[place]


class Compositions:
    """Captured compositions, by hash; each is read from the store once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[BlobHash, Composition] = {}
        self._last: dict[str, tuple[Composition, Blob]] = {}

    def blob(self, composition: Composition) -> Blob:
        """Return the blob of a new turn's composition. The agent's last one is reused if it is equal."""
        known = self._last.get(composition.agent)
        if known is None or known[0] != composition:
            known = self._last[composition.agent] = (composition, composition_blob(composition))
        self.put(known[1].hash, composition)
        return known[1]

    async def get(self, hash: BlobHash) -> Composition:
        """Return a stored composition.

        Raises:
            Error: `blob_unknown`.
        """
        if hash not in self._known:
            self.put(hash, decode((await self._store.blob(hash)).data, Composition))
        return self._known[hash]

    def put(self, hash: BlobHash, composition: Composition) -> None:
        """Cache a composition that is being stored."""
        if len(self._known) > 256:
            self._known.clear()
        self._known[hash] = composition


@dataclass(slots=True)
class AbandonedCalls:
    """Whether this worker ever interrupted a `once` call, which may still take effect."""

    any: bool = False

    def note(self) -> None:
        """Record an interrupted call."""
        self.any = True


@dataclass(slots=True)
class Crowd:
    """Whether new turns must wait: more sessions are ready than slots are free, or a quarantined turn runs or waits."""

    full: bool = False
    quarantine: bool = False

    @property
    def waiting(self) -> bool:
        """True if new turns must wait."""
        return self.full or self.quarantine


class RuntimePort(Protocol):
    """The runtime, as its worker and services use it."""

    def of(self, tenant: Tenant) -> RuntimePort:
        """Return the runtime for a tenant that its worker serves, with services of that tenant."""
        ...

    @property
    def models(self) -> Models:
        """The models of the runtime."""
        ...

    @property
    def tasks(self) -> SessionTaskRegistry:
        """The tasks of the tenant's sessions."""
        ...

    def get_session(self, id: str, *, tenant: str | None = None) -> Session:
        """Return a handle to an existing session without a lookup. The first operation fails if it does not exist."""
        ...

    def notify_all(self) -> None:
        """Notify all observers and the worker of this runtime."""
        ...

    def notify_streams(self, streams: Collection[StreamId]) -> None:
        """Notify the hosts and observers of these streams that their inboxes have new items."""
        ...


@dataclass(frozen=True, slots=True)
class Shared:
    """The store, the clock, the agents: one set per runtime."""

    host: RuntimePort
    store: Store
    clock: Clock
    worker: WorkerId
    tenant: Tenant
    agents: Mapping[str, Agent]
    processes: Mapping[str, ProcessCode]
    deps: object
    hub: Hub
    texts: LiveTexts
    threads: ToolThreads
    results: Results
    compositions: Compositions
    secrets: Secrets
    seen_secrets: SeenSecrets
    lounge: Lounge
    work: WorkerOptions
    permits: Permits
    files: Files
    queues: TenantQueues
    spawn_limits: SpawnLimits = field(default_factory=SpawnLimits)
    task_retention_ms: int = 0
    trigger_retention_ms: int = 0
    crowd: Crowd = field(default_factory=Crowd)
    abandoned_calls: AbandonedCalls = field(default_factory=AbandonedCalls)
    unsaved: UnrecordedUsage = field(default_factory=UnrecordedUsage)
    breakages: Counter[TurnId] = field(default_factory=Counter[TurnId])
    """Unexpected exceptions of each open turn in this worker."""
