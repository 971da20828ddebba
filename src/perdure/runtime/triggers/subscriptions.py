"""Who wants a process for what happens at a source: asked for, changed, and found again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.codec import Json, check_text, decode, encode
from perdure.commit.changes import Intervention
from perdure.commit.plan import Entry
from perdure.errors import Code, Error
from perdure.ids import SessionId, StreamId, Tenant, check_id, session_stream
from perdure.inbox.admit import Delivery
from perdure.inbox.items import Wake
from perdure.processes.triggers import (
    CODE,
    MAX_PAYLOAD_BYTES,
    SourceState,
    SubscriptionName,
    changed,
    conflict,
    deletion_key,
    fold_all,
    unknown,
)
from perdure.runtime.clock import short_id
from perdure.runtime.processes.function import ANY_SIGNAL, ENGINE, ProcessFunction, input_of
from perdure.store.protocol import Store
from perdure.store.shapes import Annotated
from perdure.vocab.log_keys import revision_key
from perdure.vocab.processes import SessionScope
from perdure.vocab.triggers import (
    SubscriptionChange,
    SubscriptionChanged,
    SubscriptionDefinition,
    SubscriptionState,
)

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Subscription:
    """What is asked for: a process for everything that happens at a source.

    `key` is what its owner calls it. Without `args` the process is started with the payload as its only argument. It
    belongs to `owner`, a session (blank: the application), and ends with it; what its processes have to tell, they
    tell `wake_target`, or else the owner.
    """

    source_type: str
    process: ProcessFunction | str
    key: str
    source: str = ""
    args: tuple[object, ...] | None = None
    owner: str = ""
    wake_target: str = ""

    @property
    def name(self) -> SubscriptionName:
        """Where it is, whose, and what it is called; checked.

        Raises:
            Error: `invalid_id`.
        """
        check_source(self.source_type, self.source)
        check_id(self.key, what="the subscription key")
        if self.owner != "":
            check_id(self.owner, what="the owner of a subscription")
        return SubscriptionName(self.source_type, self.key, self.source, self.owner)

    def definition(self) -> SubscriptionDefinition:
        """What is kept of it.

        Raises:
            Error: `invalid_id`, `invalid_argument`, `invalid_json`, `input_too_large`.
        """
        function = self.process if isinstance(self.process, ProcessFunction) else None
        name = function.name if function else check_id(self.process, what="the process")
        given = None
        if self.args is not None:
            given = function.input_of(self.args, {}) if function else input_of(name, self.args, {})
            check_size(given.payload, "what the process is started with")
        elif function is not None:
            function.input_of((None,), {})  # whether it takes one argument
        return SubscriptionDefinition(
            key=self.key,
            definition=f"{ENGINE}:{name}",
            uses_event=given is None,
            fixed=given.payload if given else None,
            owner=self.owner,
            wake_target=SessionScope(session_id=self.wake_target) if self.wake_target else None,
            event_types=(*(function.events if function else ()), ANY_SIGNAL),
        )


class SubscriptionHandle:
    """One subscription. Every change takes the revision that it was decided on (`expected_revision`; if not said, any),
    and an `operation` id: the same one again returns its receipt, whatever became of the subscription since."""

    def __init__(self, runtime: Runtime, tenant: Tenant, name: SubscriptionName) -> None:
        self._runtime = runtime
        self._tenant = tenant
        self.name = name
        self.id = name.id
        self.stream: StreamId = name.stream(tenant)

    def __repr__(self) -> str:
        return f"SubscriptionHandle({self.id!r})"

    async def state(self) -> SubscriptionState:
        """What it is now.

        Raises:
            Error: `trigger_subscription_unknown`.
        """
        known = (await state_of(self._runtime.store, self.stream)).known.get(self.id)
        if known is None:
            raise unknown(self.id)
        return known

    async def update(
        self,
        process: ProcessFunction | str,
        *,
        args: tuple[object, ...] | None = None,
        wake_target: str = "",
        expected_revision: int | None = None,
        operation: str | None = None,
        by: str = "",
    ) -> SubscriptionState:
        """Start something else, or with something else, from now on.

        Raises:
            Error: `trigger_revision_conflict` with the current revision in `details`; what `subscribe` refuses.
        """
        name = self.name
        wanted = Subscription(name.source_type, process, name.key, name.source, args, name.owner, wake_target)
        definition = wanted.definition()
        await check_owner(self._runtime.store, self._tenant, definition)
        return await self.change(
            "updated", expected=expected_revision, operation=operation, definition=definition, by=by
        )

    async def enable(
        self, *, expected_revision: int | None = None, operation: str | None = None, by: str = ""
    ) -> SubscriptionState:
        """Start processes for it again."""
        return await self.change("enabled", expected=expected_revision, operation=operation, by=by)

    async def disable(
        self, *, expected_revision: int | None = None, operation: str | None = None, by: str = ""
    ) -> SubscriptionState:
        """Start no processes for it; those that are started go on."""
        return await self.change("disabled", expected=expected_revision, operation=operation, by=by)

    async def delete(
        self, *, expected_revision: int | None = None, operation: str | None = None, by: str = ""
    ) -> SubscriptionState:
        """It is over; what it has done stays in the log."""
        return await self.change("deleted", expected=expected_revision, operation=operation, by=by)

    async def revive(
        self, *, expected_revision: int | None = None, operation: str | None = None, by: str = ""
    ) -> SubscriptionState:
        """A deleted one goes on, as another incarnation."""
        return await self.change("revived", expected=expected_revision, operation=operation, by=by)

    async def change(
        self,
        what: SubscriptionChange,
        *,
        expected: int | None = None,
        operation: str | None = None,
        definition: SubscriptionDefinition | None = None,
        by: str = "",
    ) -> SubscriptionState:
        """One admitted record under the key of the next revision: the first one has it.

        Raises:
            Error: `trigger_subscription_unknown`, `trigger_revision_conflict`, `invalid_id`.
        """
        rt, now = self._runtime, self._runtime.clock.wall_ms()
        rt.check_usable()
        named = short_id("op", now) if operation is None else check_id(operation, what="the operation id")
        known = (await state_of(self._runtime.store, self.stream)).known.get(self.id)
        receipt = await self._receipt(named, known, what, definition) if operation and known else None
        if receipt is not None:
            return receipt
        then = changed(self.id, known, what, definition=definition, expected=expected)
        record = SubscriptionChanged(
            change=what, subscription=then, operation=named, by=check_text(by, where="who does it")[:200]
        )
        noted = await self._write(record, now)
        if not noted.new and noted.row.record != record:
            raise conflict(await self.state(), "somebody else changed it at the same time")
        rt.hub.stir(self.stream)
        return then

    async def _write(self, record: SubscriptionChanged, now: int) -> Annotated:
        """One that is deleted goes some day: whoever serves its source is woken, and sees to that."""
        entry, store = Entry.of(record, at=now), self._runtime.store
        if record.change != "deleted":
            return await store.annotate(self.stream, entry)
        wake = Wake(reason="deleted")
        told = Delivery(self.stream, deletion_key(record.subscription), record.operation, wake, now)
        done = await store.intervene(Intervention(self.stream, delivery=told, notes=(entry,)))
        if done.notes:
            self._runtime.nudge(self.stream)
            return done.notes[0]
        row = await store.find(self.stream, revision_key(self.id, record.subscription.revision))
        assert row is not None  # the delivery that was known came with it
        return Annotated(row, new=False)

    async def _receipt(
        self,
        operation: str,
        known: SubscriptionState,
        what: SubscriptionChange,
        definition: SubscriptionDefinition | None,
    ) -> SubscriptionState | None:
        """What this operation made of it, if it was done before."""
        for revision in range(known.revision, 0, -1):
            row = await self._runtime.store.find(self.stream, revision_key(self.id, revision))
            if row is None:
                return None  # what is older was pruned
            if not isinstance(row.record, SubscriptionChanged) or row.record.operation != operation:
                continue
            done = row.record
            if done.change != what or (definition is not None and done.subscription.definition != definition):
                raise conflict(known, f"the operation {operation!r} was used before, for something else")
            return done.subscription
        return None


async def state_of(store: Store, stream: StreamId) -> SourceState:
    """What is known of a source: a fold of its log."""
    loaded = await store.load(stream, code=CODE)
    known = decode(loaded.snapshot.data, SourceState) if loaded.snapshot is not None else None
    return fold_all(loaded.rows, known)


async def check_owner(store: Store, tenant: Tenant, definition: SubscriptionDefinition) -> None:
    """Refuse a subscription of a session that is not there, or that would tell one.

    Raises:
        Error: `session_unknown`.
    """
    target = definition.wake_target.session_id if definition.wake_target else ""
    for session in {definition.owner, target} - {""}:
        if await store.stream(session_stream(tenant, SessionId(session))) is None:
            raise Error(Code.SESSION_UNKNOWN, f"there is no session {session!r}", hint="open it first")


def check_source(source_type: str, source: str) -> None:
    """Refuse what cannot be the name of a source."""
    check_id(source_type, what="the source type")
    if source:
        check_id(source, what="the source")


def check_size(plain: Json, what: str) -> None:
    """Refuse what is too large to be written once for each who wants it."""
    if (size := len(encode(plain))) > MAX_PAYLOAD_BYTES:
        raise Error(Code.INPUT_TOO_LARGE, f"{what} is {size} bytes", because=f"the limit is {MAX_PAYLOAD_BYTES}")
