"""What all sessions of one runtime share."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from perdure.clock import Clock
from perdure.codec import Json, decode
from perdure.commit.plan import Blob
from perdure.errors import Code, Error
from perdure.ids import BlobHash, StreamId, Tenant, TurnId, WorkerId
from perdure.observe.hub import Hub
from perdure.runtime.agent import Agent, composition_blob
from perdure.runtime.calls.lost import Unsaved
from perdure.runtime.files import Files
from perdure.runtime.live_texts import LiveTexts
from perdure.runtime.processes.function import ProcessCode
from perdure.runtime.work import Work
from perdure.runtime.worker.lounge import Lounge
from perdure.runtime.worker.permits import Permits
from perdure.services.commands import Commands
from perdure.services.schedules import SessionScheduleStore
from perdure.services.spawns import SpawnLimits
from perdure.services.tasks import SessionTaskRegistry
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
    from perdure.runtime.triggers.triggers import Triggers


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How a turn ended. `text` is the last reply; a stopped turn says why, and so does a reply that is `partial`."""

    turn: TurnId
    status: str
    text: str
    reason: StopReason | None = None
    message: str = ""
    usage: Usage = field(default_factory=Usage)
    has_output: bool = False
    partial: str = ""
    output_as: Output | None = field(default=None, repr=False, compare=False)

    @property
    def output(self) -> Json:
        """The reply as a value of the agent's `output=` type; None if the turn gave none.

        Where the type is not known (the agent is not registered here), it is plain JSON.

        Raises:
            Error: `output_invalid` if the type has changed since, and refuses it now.
        """
        if not self.has_output:
            return None
        value = plain(self.text) if self.output_as is None else self.output_as.parse(self.text)
        if isinstance(value, OutputProblem):
            raise Error(
                Code.OUTPUT_INVALID,
                "the stored reply is not of the agent's output type any more",
                because=value.message,
                hint="its text is in result.text",
                turn=self.turn,
            )
        return value

    @staticmethod
    def of(ended: TurnEnded, answer: LlmCallOutcome | None, output_as: Output | None = None) -> TurnResult:
        """The end of a turn and the reply it ended with."""
        text = answer.text if answer else ""
        valid = answer is not None and answer.output == "valid" and ended.status == "finished"
        partial = answer.reply.partial if answer and answer.reply else ""
        return TurnResult(
            ended.turn, ended.status, text, ended.reason, ended.message, ended.usage, valid, partial, output_as
        )  # fmt: skip


Waiter: TypeAlias = "asyncio.Future[TurnResult | None]"


class Results:
    """Those who wait in this process for a turn to end."""

    def __init__(self) -> None:
        self._waiting: dict[TurnId, list[Waiter]] = {}
        self._coming: set[TurnId] = set()

    def expect(self, turn: TurnId) -> None:
        """A turn is about to run here: its end will be told, or that it is not to be expected here any more."""
        self._coming.add(turn)

    def is_coming(self, turn: TurnId) -> bool:
        """Whether there is no need to look for the turn elsewhere."""
        return turn in self._coming

    def wait_for(self, turn: TurnId) -> Waiter:
        """A future that ends with the turn if it ends in this process, or with None when it stops running here."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(turn, []).append(waiter)
        return waiter

    def tell(self, result: TurnResult) -> None:
        """A turn has ended, durably."""
        self._answer(result.turn, result)

    def leave(self, turn: TurnId) -> None:
        """A turn does not run here any more; whoever still waits must look elsewhere."""
        self._answer(turn, None)

    def _answer(self, turn: TurnId, result: TurnResult | None) -> None:
        self._coming.discard(turn)
        for waiter in self._waiting.pop(turn, ()):
            if not waiter.done():
                waiter.set_result(result)

    def forget(self, turn: TurnId, waiter: Waiter) -> None:
        """This one does not wait any more."""
        others = [other for other in self._waiting.pop(turn, ()) if other is not waiter]
        if others:
            self._waiting[turn] = others


class Secrets:
    """The store's secrets, read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, bytes] = {}

    async def get(self, name: str) -> bytes:
        """The secret of that name."""
        if name not in self._known:
            self._known[name] = await self._store.secret(name)
        return self._known[name]


class Compositions:
    """Captured compositions, by content: read from the store once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[BlobHash, Composition] = {}
        self._last: dict[str, tuple[Composition, Blob]] = {}

    def blob(self, composition: Composition) -> Blob:
        """The bytes of a composition that a turn begins with; an agent's last one is not written anew."""
        known = self._last.get(composition.agent)
        if known is None or known[0] != composition:
            known = self._last[composition.agent] = (composition, composition_blob(composition))
        self.put(known[1].hash, composition)
        return known[1]

    async def get(self, hash: BlobHash) -> Composition:
        """A stored composition.

        Raises:
            Error: `blob_unknown`.
        """
        if hash not in self._known:
            self.put(hash, decode((await self._store.blob(hash)).data, Composition))
        return self._known[hash]

    def put(self, hash: BlobHash, composition: Composition) -> None:
        """Remember one that is being stored."""
        if len(self._known) > 256:
            self._known.clear()
        self._known[hash] = composition


@dataclass(slots=True)
class LooseEnds:
    """Whether this worker ever stopped a `once` call in the middle: such a call may go on without it."""

    any: bool = False

    def note(self) -> None:
        """One more."""
        self.any = True


@dataclass(slots=True)
class Crowd:
    """Whether whoever could begin a turn here must wait: more sessions are ready than there are seats, or one of them
    is on trial."""

    full: bool = False
    trial: bool = False

    @property
    def waiting(self) -> bool:
        """Whether everybody waits for its turn."""
        return self.full or self.trial


class Host(Protocol):
    """Whoever opens sessions: the runtime itself."""

    @property
    def tasks(self) -> SessionTaskRegistry:
        """The tasks of its sessions."""
        ...

    @property
    def commands(self) -> Commands:
        """Where its tools register commands of the operating system."""
        ...

    @property
    def models(self) -> Models:
        """Which model answers."""
        ...

    @property
    def triggers(self) -> Triggers:
        """What happens, and who wants a process for it."""
        ...

    def existing(self, id: str, *, tenant: str | None = None) -> Session:
        """A session that is expected to exist; the first use finds out."""
        ...

    def session_schedules(self) -> SessionScheduleStore:
        """The schedules of its sessions, for tools."""
        ...

    def news(self) -> None:
        """Something has happened that anybody here may wait for."""
        ...

    def stir(self, streams: Collection[StreamId]) -> None:
        """Something was put into the inboxes of these streams: whoever drives or watches them here looks at once."""
        ...


@dataclass(frozen=True, slots=True)
class Shared:
    """The store, the clock, the agents: one set per runtime."""

    host: Host
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
    revealed: dict[StreamId, tuple[str, ...]]
    lounge: Lounge
    work: Work
    permits: Permits
    files: Files
    spawn_limits: SpawnLimits = field(default_factory=SpawnLimits)
    task_retention_ms: int = 0
    trigger_retention_ms: int = 0
    crowd: Crowd = field(default_factory=Crowd)
    loose_ends: LooseEnds = field(default_factory=LooseEnds)
    unsaved: Unsaved = field(default_factory=Unsaved)
