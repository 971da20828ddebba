"""The edge of the store: a wrapper that hides secrets in everything that a process writes.

Rewritten are log records, inbox items, resolutions of promises, titles, tags and live texts. Ids, keys and digests
stay, so a write that is repeated by a process that has not seen the secret is still the same write. Bytes of blobs are
named by their digest, so they are rewritten before they get that name (attachments, results, files).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from perdure.commit.changes import Amendment, Audit, Intervention, Label, NewStream, Note, Redaction
from perdure.commit.plan import Entry, Plan, Receipt
from perdure.ids import PromiseId, SessionId, StreamId, WorkerId, session_stream, stream_names
from perdure.inbox.admit import Admission, Delivery, Opening
from perdure.services.secrets import LISTED, NOWHERE, REFERENCE, Redactor, SeenSecrets
from perdure.store.live import Piece, SideChannel
from perdure.store.protocol import Store
from perdure.store.shapes import Annotated, Intervened, Resolved
from perdure.vocab import records
from perdure.vocab.promises import PromiseState, Resolution
from perdure.vocab.records import KINDS


def redacted(store: Store, seen: SeenSecrets) -> Store:
    """Wrap a store so that no write contains a value that the runtime has seen."""
    return cast(Store, RedactedStore(store, seen))


class RedactedChannel:
    """The side channel with redacted texts. Each text keeps its length, because offsets count its characters."""

    def __init__(self, channel: SideChannel, seen: SeenSecrets) -> None:
        self._channel = channel
        self._seen = seen

    async def put(self, pieces: Sequence[Piece], *, over: Sequence[tuple[StreamId, int]] = (), now: int) -> None:
        """Redact and add pieces."""
        if self._seen.by_stream:
            pieces = [replace(one, text=Redactor(self._seen, one.stream).masked(one.text)) for one in pieces]
        await self._channel.put(pieces, over=over, now=now)

    async def read(self, stream: StreamId) -> tuple[Piece, ...]:
        """Return the pieces of a stream."""
        return await self._channel.read(stream)

    async def forget(self, stream: StreamId) -> None:
        """Delete all pieces of a stream that was deleted."""
        await self._channel.forget(stream)


class RedactedStore:  # threat: S10, T-SEC-01
    """A store wrapper that redacts what is written (see the module). Reads, and writes without text, pass through."""

    def __init__(self, store: Store, seen: SeenSecrets) -> None:
        self._store = store
        self._seen = seen

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    @property
    def live(self) -> SideChannel:
        """The side channel, with redacted texts."""
        return RedactedChannel(self._store.live, self._seen)

    # --- values

    def _of(self, stream: StreamId) -> Redactor:
        """Return the redactor of a stream. The streams beside a session, such as that of its files, are the session."""
        tenant, kind, name = stream_names(stream)
        return Redactor(self._seen, session_stream(tenant, SessionId(name)) if kind in _BESIDE else stream)

    def _entry(self, stream: StreamId, entry: Entry) -> Entry:
        data = self._record(stream, entry.kind, entry.data)
        return entry if data is entry.data else replace(entry, data=data)

    def _record(self, stream: StreamId, kind: str, data: bytes) -> bytes:
        redactor = self._of(stream)
        if kind not in KINDS or not redactor.hides(data):
            return data
        return records.write(redactor.value(records.read(kind, data)))

    def _delivery(self, new: Delivery) -> Delivery:
        redactor, opening = self._of(new.stream), new.opening
        if opening is not None:
            opening = Opening(opening.kind, self._record(new.stream, opening.kind, opening.data))
        return replace(new, item=redactor.value(new.item), opening=opening)

    def _outside(self, new: Delivery) -> Delivery:
        """Return a delivery that is not part of an append. Its names may come from a tool, so they are checked."""
        self._of(new.stream).check_elsewhere(stream_names(new.stream)[2], new.source_key)
        return self._delivery(new)

    def _label(self, stream: StreamId, label: Label | None) -> Label | None:
        if label is None:
            return None
        redactor = self._of(stream)
        title = label.title and redactor.text(label.title)
        tags = label.tags and tuple(redactor.text(tag) for tag in label.tags)
        return replace(label, title=title, tags=tags)

    def _note(self, note: Note) -> Note:
        return Note(note.stream, self._entry(note.stream, note.entry), self._label(note.stream, note.label))

    def _notes(self, notes: tuple[Note, ...]) -> tuple[Note, ...]:
        return tuple([self._note(one) for one in notes])

    def _promise(self, promise: PromiseState) -> PromiseState:
        if promise.resolution is None or promise.id.startswith((REFERENCE, LISTED)):  # ciphertext, and references
            return promise
        return replace(promise, resolution=self._of(promise.stream).value(promise.resolution))

    # --- writes

    def append(self, plan: Plan) -> Awaitable[Receipt]:
        """Redact and append a plan; the plan is submitted at the call."""
        if self._seen.by_stream:
            entries = tuple([self._entry(plan.stream, entry) for entry in plan.entries])
            plan = replace(plan, entries=entries, outbox=tuple([self._delivery(new) for new in plan.outbox]))
        return self._store.append(plan)

    async def admit(self, delivery: Delivery, *, claim_for: WorkerId | None = None) -> Admission:
        """Redact and admit a delivery."""
        new = self._outside(delivery) if self._seen.by_stream else delivery
        return await self._store.admit(new, claim_for=claim_for)

    async def annotate(self, stream: StreamId, entry: Entry, *, label: Label | None = None) -> Annotated:
        """Redact and append an admitted record."""
        if self._seen.by_stream:
            entry, label = self._entry(stream, entry), self._label(stream, label)
        return await self._store.annotate(stream, entry, label=label)

    async def annotate_all(self, notes: Sequence[Note]) -> tuple[Annotated, ...]:
        """Redact and append admitted records to several streams, all or nothing."""
        return await self._store.annotate_all(self._notes(tuple(notes)) if self._seen.by_stream else notes)

    async def redact(self, redaction: Redaction) -> Annotated:
        """Apply a redaction with a redacted note."""
        if self._seen.by_stream:
            note = self._entry(redaction.stream, redaction.note)
            redaction = replace(redaction, note=note, audit=self._notes(redaction.audit))
        return await self._store.redact(redaction)

    async def intervene(self, intervention: Intervention) -> Intervened:
        """Redact and apply a control write."""
        if self._seen.by_stream:
            stream, new = intervention.stream, intervention.delivery
            intervention = replace(
                intervention,
                delivery=None if new is None else self._outside(new),
                notes=tuple([self._entry(stream, entry) for entry in intervention.notes]),
                outbox=tuple([self._delivery(other) for other in intervention.outbox]),
                audit=self._notes(intervention.audit),
            )
        return await self._store.intervene(intervention)

    async def delete(
        self,
        stream: StreamId,
        *,
        beside: tuple[StreamId, ...] = (),
        edges: tuple[str, ...] = (),
        outbox: tuple[Delivery, ...] = (),
        audit: Audit = (),
    ) -> bool:
        """Delete streams; redact the outbox and audit entries."""
        if self._seen.by_stream:
            outbox, audit = tuple([self._delivery(new) for new in outbox]), self._notes(audit)
        return await self._store.delete(stream, beside=beside, edges=edges, outbox=outbox, audit=audit)

    async def amend(self, amendment: Amendment) -> Annotated:
        """Redact and apply a conditional append."""
        if self._seen.by_stream:
            amendment = replace(amendment, entry=self._entry(amendment.stream, amendment.entry))
        return await self._store.amend(amendment)

    async def create(self, new: NewStream) -> None:
        """Redact and create a stream with its history."""
        if self._seen.by_stream:
            entries = tuple([self._entry(new.stream, entry) for entry in new.entries])
            label = self._label(new.stream, new.label) or new.label
            new = replace(new, entries=entries, label=label, audit=self._notes(new.audit))
        await self._store.create(new)

    async def promise(self, promise: PromiseState) -> PromiseState:
        """Create a promise; redact its resolution if it has one."""
        return await self._store.promise(self._promise(promise) if self._seen.by_stream else promise)

    async def resolve(
        self,
        promise: PromiseId,
        resolution: Resolution,
        *,
        now: int,
        make: PromiseState | None = None,
        audit: Audit = (),
    ) -> Resolved:
        """Redact a resolution and resolve a promise with it."""
        if self._seen.by_stream:
            known = make or await self._store.peek(promise)
            resolution = self._of(known.stream if known is not None else NOWHERE).value(resolution)
            audit = self._notes(audit)
        return await self._store.resolve(promise, resolution, now=now, make=make, audit=audit)

    async def resolve_all(
        self, answers: Sequence[tuple[PromiseState, Resolution]], *, now: int, audit: Audit = ()
    ) -> dict[PromiseId, Resolution]:
        """Redact resolutions and resolve several promises with them, all or none."""
        if self._seen.by_stream:
            answers = [(made, self._of(made.stream).value(resolution)) for made, resolution in answers]
            audit = self._notes(audit)
        return await self._store.resolve_all(answers, now=now, audit=audit)


_BESIDE = frozenset({"files", "tasks"})
