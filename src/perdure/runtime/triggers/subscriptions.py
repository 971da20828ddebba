"""Subscriptions of processes to trigger sources: request, change, lookup."""

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
    from perdure.runtime.core import RuntimeCore


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """A request for a process per occurrence at a source.

    `key` is the owner's name for the subscription. Without `args` the process receives the payload as its only
    argument. The subscription belongs to `owner`, a session (blank: the application), and ends with it. Its processes
    wake `wake_target`, by default the owner.
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
        """The checked name of the subscription: source, key and owner.

        Raises:
            Error: `invalid_id`.
        """
        check_source(self.source_type, self.source)
        check_id(self.key, what="the subscription key")
        if self.owner != "":
            check_id(self.owner, what="the owner of a subscription")
        return SubscriptionName(self.source_type, self.key, self.source, self.owner)

    def definition(self) -> SubscriptionDefinition:
        """Return the stored definition of the subscription.

        Raises:
            Error: `invalid_id`, `invalid_argument`, `invalid_json`, `input_too_large`.
        """
        function = self.process if isinstance(self.process, ProcessFunction) else None
        name = function.name if function else check_id(self.process, what="the process")
        given = None
        if self.args is not None:
            given = function.input_of(self.args, {}) if function else input_of(name, self.args, {})
            check_size(given.payload, "the input of the process")
        elif function is not None:
            function.input_of((None,), {})  # raises unless the function accepts one argument
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
    """One subscription.

    Every change takes the revision on which it is based (`expected_revision`; any by default) and an `operation` id.
    The same operation again returns its receipt, even if the subscription has changed since.
    """

    def __init__(self, runtime: RuntimeCore, tenant: Tenant, name: SubscriptionName) -> None:
        self._runtime = runtime
        self._tenant = tenant
        self.name = name
        self.id = name.id
        self.stream: StreamId = name.stream(tenant)

    def __repr__(self) -> str:
        return f"SubscriptionHandle({self.id!r})"

    async def info(self) -> SubscriptionState:
        """Return the current state.

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
        """Start another process, or the process with other arguments, from now on.

        Raises:
            Error: `trigger_revision_conflict` with the current revision in `details`; the errors of `subscribe`.
        """
        name = self.name
        wanted = SubscriptionRequest(name.source_type, process, name.key, name.source, args, name.owner, wake_target)
        definition = wanted.definition()
        await check_owner(self._runtime.store, self._tenant, definition)
        return await self._change(
            "updated", expected=expected_revision, operation=operation, definition=definition, by=by
        )

    async def enable(
        self, *, expected_revision: int | None = None, operation: str | None = None, by: str = ""
    ) -> SubscriptionState:
        """Start processes again."""
        return await self._change("enabled", expected=expected_revision, operation=operation, by=by)

    async def disable(
        self, *, expected_revision: int | None = None, operation: str | None = None, by: str = ""
    ) -> SubscriptionState:
        """Start no more processes. Running processes go on."""
        return await self._change("disabled", expected=expected_revision, operation=operation, by=by)

    async def delete(
        self, *, expected_revision: int | None = None, operation: str | None = None, by: str = ""
    ) -> SubscriptionState:
        """End the subscription. Its past occurrences stay in the log."""
        return await self._change("deleted", expected=expected_revision, operation=operation, by=by)

    async def restore(
        self, *, expected_revision: int | None = None, operation: str | None = None, by: str = ""
    ) -> SubscriptionState:
        """Restore a deleted subscription, as a new incarnation."""
        return await self._change("revived", expected=expected_revision, operation=operation, by=by)

    async def _change(
        self,
        what: SubscriptionChange,
        *,
        expected: int | None = None,
        operation: str | None = None,
        definition: SubscriptionDefinition | None = None,
        by: str = "",
    ) -> SubscriptionState:
        """Append the change under the log key of the next revision. Of concurrent changes, the first one wins.

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
            change=what, subscription=then, operation=named, by=check_text(by, where="by")[:200]
        )
        noted = await self._write(record, now)
        if not noted.new and noted.row.record != record:
            raise conflict(await self.info(), "a concurrent change has the next revision")
        rt.hub.notify(self.stream)
        return then

    async def _write(self, record: SubscriptionChanged, now: int) -> Annotated:
        """Append the record. A deletion also wakes the owner of the source, which schedules the pruning."""
        entry, store = Entry.of(record, at=now), self._runtime.store
        if record.change != "deleted":
            return await store.annotate(self.stream, entry)
        wake = Wake(reason="deleted")
        told = Delivery(self.stream, deletion_key(record.subscription), record.operation, wake, now)
        done = await store.intervene(Intervention(self.stream, delivery=told, notes=(entry,)))
        if done.notes:
            self._runtime.notify(self.stream)
            return done.notes[0]
        row = await store.find(self.stream, revision_key(self.id, record.subscription.revision))
        assert row is not None  # a known delivery implies the record: both commit together
        return Annotated(row, new=False)

    async def _receipt(
        self,
        operation: str,
        known: SubscriptionState,
        what: SubscriptionChange,
        definition: SubscriptionDefinition | None,
    ) -> SubscriptionState | None:
        """Return the receipt of an operation that was performed before, or None."""
        for revision in range(known.revision, 0, -1):
            row = await self._runtime.store.find(self.stream, revision_key(self.id, revision))
            if row is None:
                return None  # older revisions were pruned
            if not isinstance(row.record, SubscriptionChanged) or row.record.operation != operation:
                continue
            done = row.record
            if done.change != what or (definition is not None and done.subscription.definition != definition):
                raise conflict(known, f"the operation id {operation!r} was used for another change")
            return done.subscription
        return None


async def state_of(store: Store, stream: StreamId) -> SourceState:
    """Return the state of a source: a fold of its log."""
    loaded = await store.load(stream, code=CODE)
    known = decode(loaded.snapshot.data, SourceState) if loaded.snapshot is not None else None
    return fold_all(loaded.rows, known)


async def check_owner(store: Store, tenant: Tenant, definition: SubscriptionDefinition) -> None:
    """Raise if the subscription's owner or wake target is a session that does not exist.

    Raises:
        Error: `session_unknown`.
    """
    target = definition.wake_target.session_id if definition.wake_target else ""
    for session in {definition.owner, target} - {""}:
        if await store.stream(session_stream(tenant, SessionId(session))) is None:
            raise Error(Code.SESSION_UNKNOWN, f"unknown session {session!r}", hint="await session.send(...)")


def check_source(source_type: str, source: str) -> None:
    """Raise if a source has an invalid name."""
    check_id(source_type, what="the source type")
    if source:
        check_id(source, what="the source")


def check_size(plain: Json, what: str) -> None:
    """Raise if a value is too large to be written once per subscription."""
    if (size := len(encode(plain))) > MAX_PAYLOAD_BYTES:
        raise Error(Code.INPUT_TOO_LARGE, f"{what} is {size} bytes", because=f"the limit is {MAX_PAYLOAD_BYTES}")


async def register_subscription(
    handle: SubscriptionHandle, definition: SubscriptionDefinition, *, operation: str | None, by: str
) -> SubscriptionState:
    """Create a subscription; the same definition again is the same subscription."""
    return await handle._change("registered", operation=operation, definition=definition, by=by)  # pyright: ignore[reportPrivateUsage] - users register with the client
