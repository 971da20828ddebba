"""Payload encryption: a wrapper that hides all payloads from the store inside it.

Encoded are log records, inbox items, blobs, snapshots, titles and the resolutions of promises. Metadata stays readable:
names of streams and agents, kinds, keys, tags, times, sizes, and the sha256 that identifies equal inputs and bytes.
Records of the store itself (the opening of a session, and wakes) have no payload and are not encoded. Other plain
payloads are refused, unless the codec accepts them. Each tenant has its own names for blobs, so it never depends on
bytes that another tenant encoded or left plain.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol, cast

from msgspec.structs import replace

from perdure.codec import SEALED, decode, encode
from perdure.commit.changes import Amendment, Audit, Intervention, Label, NewStream, Note, Redaction
from perdure.commit.plan import Blob, Entry, Plan, Receipt, Snapshot
from perdure.errors import Code, Error
from perdure.ids import (
    DEFAULT_TENANT,
    BlobHash,
    PromiseId,
    Seq,
    SessionId,
    StreamId,
    Tenant,
    WorkerId,
    join,
    session_stream,
    stream_names,
)
from perdure.inbox.admit import Admission, Delivery
from perdure.inbox.items import Wake
from perdure.offload import offload
from perdure.store.digest_chain import DigestChain
from perdure.store.live import Piece, SideChannel
from perdure.store.protocol import Store
from perdure.store.shapes import START, AlreadyResolved, Annotated, InboxRow, Intervened, Loaded, Resolved, StreamInfo
from perdure.vocab.promises import Failure, Ok, PromiseState, Resolution
from perdure.vocab.records import Row

_TITLE = "sealed:"
_FIELD = "sealed"


class PayloadCodec(Protocol):
    """Reversible encoding of payloads, for example encryption.

    Law: `encode` gives the same bytes for the same data and context, so a write that is repeated after a lost reply is
    recognised. `decode` must refuse bytes that were made for another context.

    With an attribute `accept_plain = True`, payloads stored before the codec was configured are read as they are.
    Without it they are refused, because a writer with access to the store could forge them.
    """

    def encode(self, data: bytes, context: bytes) -> bytes:
        """Encode a payload. `context` names its position; the result is bound to it and does not contain it."""
        ...

    def decode(self, data: bytes, context: bytes) -> bytes:
        """Decode a payload; raise any exception if the bytes or the context do not fit."""
        ...


def encoded(store: Store, codec: PayloadCodec, tenant: Tenant = DEFAULT_TENANT) -> Store:
    """Wrap a store so that every payload is encoded; return a store that is wrapped already unchanged.

    `tenant` is the tenant of blob reads without a stream.
    """
    return store if isinstance(store, EncodedStore) else cast(Store, EncodedStore(store, codec, tenant))


class Hide(Protocol):
    """A function that encodes or decodes a text, bound to its position."""

    def __call__(self, text: str, *where: str) -> str:
        """Return the converted text."""
        ...


class EncodedChannel:
    """The side channel with encoded texts. Offsets still count the characters of the plain text."""

    def __init__(self, channel: SideChannel, hide: Hide, show: Hide) -> None:
        self._channel = channel
        self._hide = hide
        self._show = show

    async def put(self, pieces: Sequence[Piece], *, over: Sequence[tuple[StreamId, int]] = (), now: int) -> None:
        """Encode and add pieces."""
        hidden = [replace(piece, text=self._hide(piece.text, *_place(piece))) for piece in pieces]
        await self._channel.put(hidden, over=over, now=now)

    async def read(self, stream: StreamId) -> tuple[Piece, ...]:
        """Return the decoded pieces of a stream."""
        found = await self._channel.read(stream)
        return tuple(replace(piece, text=self._show(piece.text, *_place(piece))) for piece in found)

    async def forget(self, stream: StreamId) -> None:
        """Delete all pieces of a stream that was deleted."""
        await self._channel.forget(stream)


def _place(piece: Piece) -> tuple[str, ...]:
    return ("live", piece.stream, piece.turn, piece.effect, str(piece.run), str(piece.start))


class EncodedStore:
    """A store wrapper that encodes payloads (see the module). Calls without a payload pass through unchanged."""

    def __init__(self, store: Store, codec: PayloadCodec, tenant: Tenant = DEFAULT_TENANT) -> None:
        self._store = store
        self._codec = codec
        self._tenant = tenant
        self._accept_plain = getattr(codec, "accept_plain", False) is True

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    @property
    def live(self) -> SideChannel:
        """The side channel, with encoded texts."""
        return EncodedChannel(self._store.live, self._hidden, self._shown)

    def _hidden(self, text: str, *where: str) -> str:
        return b64encode(self._encrypt(text.encode(), *where)).decode()

    def _shown(self, text: str, *where: str) -> str:
        encrypted = _unwrapped(text)
        return "" if encrypted is None else self._open(encrypted, *where).decode()

    async def open(self) -> None:
        """Open the store. From now on the ends of its logs are sealed."""
        await self._store.open()
        self._store.use_chain(DigestChain(self))  # threat: S9, T-SEC-04

    def seal(self, digest: bytes, *where: str) -> bytes:
        """Seal the digest of a log."""
        return self._encrypt(digest, *where)

    def unseal(self, sealed: bytes, *where: str) -> bytes:
        """Return the digest of a log."""
        return self._open(sealed, *where)

    # --- bytes

    def _encrypt(self, data: bytes, *where: str) -> bytes:
        try:
            return SEALED + self._codec.encode(data, _context(where))
        except Exception as problem:
            raise _failed("a payload could not be encoded; nothing was written", problem) from problem

    def _open(self, data: bytes, *where: str) -> bytes:
        if not data.startswith(SEALED):
            self._check_plain(where[0])
            return data
        try:
            return self._codec.decode(data[len(SEALED) :], _context(where))
        except Exception as problem:
            raise _failed("a stored payload cannot be decoded", problem) from problem

    def _check_plain(self, what: str) -> None:
        if not self._accept_plain:
            raise _not_encrypted(what)

    def _entry(self, stream: StreamId, entry: Entry) -> Entry:
        data = self._encrypt(entry.data, "log", stream, entry.kind, entry.key or "")
        return replace(entry, data=data)

    def _row(self, row: Row) -> Row:
        if row.seq == 1 and row.kind == "session_opened" and not row.data.startswith(SEALED):
            return row  # written by the store: the agent's name is not secret
        return replace(
            row, data=self._open(row.data, "log", row.stream, row.kind, row.key or "")
        )  # fmt: skip

    def _blob(self, stream: StreamId, blob: Blob) -> Blob:
        return Blob(_name(stream, blob.hash), blob.media_type, self._encrypt(blob.data, "blob", blob.hash))

    async def _blobs(self, stream: StreamId, blobs: tuple[Blob, ...]) -> tuple[Blob, ...]:
        return tuple([await offload(len(blob.data), self._blob, stream, blob) for blob in blobs])

    def _delivery(self, new: Delivery) -> Delivery:
        encrypted, opening = self._encrypt(new.data, "inbox", new.stream, new.source_key), new.opening
        if opening is not None:
            opening = replace(opening, data=self._encrypt(opening.data, "log", new.stream, opening.kind, ""))
        blobs = tuple(self._blob(new.stream, blob) for blob in new.blobs)
        return replace(new, encrypted=encrypted, opening=opening, blobs=blobs)

    def _item(self, row: InboxRow) -> InboxRow:
        if not row.data.startswith(SEALED) and isinstance(row.item, Wake):
            return row  # written by the store: a wake has no payload
        return replace(row, data=self._open(row.data, "inbox", row.stream, row.source_key))

    def _label(self, stream: StreamId, label: Label | None) -> Label | None:
        if label is None or not label.title:
            return label
        return replace(label, title=self._written(label.title, "title", stream))

    def _info(self, info: StreamInfo) -> StreamInfo:
        if info.title:
            info = replace(info, title=self._words(info.title, "title", info.stream))
        if info.paused and info.paused.by:
            by = self._words(info.paused.by, "paused by", info.stream)
            info = replace(info, paused=replace(info.paused, by=by))
        return info

    def _written(self, words: str, what: str, stream: StreamId) -> str:
        """Encode a short text for a column of a stream's row."""
        return _TITLE + b64encode(self._encrypt(words.encode(), what, stream)).decode() if words else words

    def _words(self, text: str, what: str, stream: StreamId) -> str:
        encrypted = _unwrapped(text.removeprefix(_TITLE)) if text.startswith(_TITLE) else None
        if encrypted is None:
            self._check_plain(what)
            return text
        return self._open(encrypted, what, stream).decode()

    def _resolution(self, promise: PromiseId, resolution: Resolution) -> Resolution:
        if not isinstance(resolution, Ok | Failure):
            return resolution
        encrypted = self._encrypt(encode(resolution), "promise", promise)
        return Ok(value={_FIELD: b64encode(encrypted).decode()})

    def _answer(self, promise: PromiseId, resolution: Resolution) -> Resolution:
        match resolution:
            case Ok(value={"sealed": str(text), **rest}) if not rest and (encrypted := _unwrapped(text)) is not None:
                return decode(self._open(encrypted, "promise", promise), Resolution)
            case Ok() | Failure():
                self._check_plain("answer")
                return resolution
            case _:
                return resolution

    def _state(self, state: PromiseState) -> PromiseState:
        if state.resolution is None:
            return state
        return replace(state, resolution=self._answer(state.id, state.resolution))

    # --- writing

    def append(self, plan: Plan) -> Awaitable[Receipt]:
        """Encode and append a plan; the plan is submitted at the call."""
        outer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        try:
            inner = asyncio.ensure_future(self._store.append(self._plan(plan)))
        except Error as refusal:
            outer.set_exception(refusal)
            outer.exception()  # mark as retrieved: callers need not await an append
            return outer
        if inner.done():
            self._settle(outer, inner)
        else:
            inner.add_done_callback(lambda done: self._settle(outer, done))
        return outer

    def _settle(self, outer: asyncio.Future[Receipt], inner: asyncio.Future[Receipt]) -> None:
        if outer.done():
            return
        if inner.cancelled():
            outer.cancel()
            return
        try:
            outer.set_result(self._receipt(inner.result()))
        except Exception as problem:  # noqa: BLE001 - raised for the caller that awaits the future
            outer.set_exception(problem)
            outer.exception()

    def _plan(self, plan: Plan) -> Plan:
        return replace(
            plan,
            entries=tuple(self._entry(plan.stream, entry) for entry in plan.entries),
            outbox=tuple(self._send(new) for new in plan.outbox),
            blobs=tuple(self._blob(plan.stream, blob) for blob in plan.blobs),
            drops=self._drops(plan.stream, plan.drops),
            snapshot=self._snapshot(plan.stream, plan.snapshot),
        )

    def _drops(self, stream: StreamId, hashes: tuple[BlobHash, ...]) -> tuple[BlobHash, ...]:
        names = tuple(_name(stream, hash) for hash in hashes)
        return (*names, *hashes) if self._accept_plain else names

    def _send(self, new: Delivery) -> Delivery:
        """Encode an outbox entry. Blobs get their encoded names: an append cannot first query for plain ones."""
        return replace(self._delivery(new), refers=tuple(_name(new.stream, hash) for hash in new.refers))

    def _snapshot(self, stream: StreamId, snapshot: Snapshot | None) -> Snapshot | None:
        if snapshot is None:
            return None
        encrypted = self._encrypt(snapshot.data, *_place_of(snapshot, stream))
        return Snapshot(snapshot.seq, snapshot.code, encrypted)

    def _receipt(self, receipt: Receipt) -> Receipt:
        if not receipt.missed and not receipt.resolved:
            return receipt
        missed = tuple(self._row(row) for row in receipt.missed)
        resolved = tuple((promise, self._answer(promise, told)) for promise, told in receipt.resolved)
        return replace(receipt, missed=missed, resolved=resolved)

    async def admit(self, delivery: Delivery, *, claim_for: WorkerId | None = None) -> Admission:
        """Encode and admit a delivery."""
        return await self._store.admit(await self._encrypted(delivery), claim_for=claim_for)

    async def _encrypted(self, new: Delivery) -> Delivery:
        refers = tuple([await self._stored(new.stream, hash) for hash in new.refers])
        encrypted = await offload(_size(new.blobs), self._delivery, new)
        return replace(encrypted, refers=refers)

    async def _stored(self, stream: StreamId, hash: BlobHash) -> BlobHash:
        """Return the name of a blob in the store: its plain hash, if it was stored before the codec was configured."""
        name = _name(stream, hash)
        if not self._accept_plain:
            return name
        try:
            await self._store.blob(name)
        except Error as problem:
            if problem.code is not Code.BLOB_UNKNOWN:
                raise
            return hash
        return name

    async def annotate(self, stream: StreamId, entry: Entry, *, label: Label | None = None) -> Annotated:
        """Encode and append an admitted record."""
        noted = await self._store.annotate(
            stream, self._entry(stream, entry), label=self._label(stream, label)
        )  # fmt: skip
        return replace(noted, row=self._row(noted.row))

    async def annotate_all(self, notes: Sequence[Note]) -> tuple[Annotated, ...]:
        """Encode and append admitted records to several streams, all or nothing."""
        noted = await self._store.annotate_all(self._notes(notes))
        return tuple(replace(one, row=self._row(one.row)) for one in noted)

    def _notes(self, notes: Sequence[Note]) -> tuple[Note, ...]:
        return tuple(Note(n.stream, self._entry(n.stream, n.entry), self._label(n.stream, n.label)) for n in notes)

    async def intervene(self, intervention: Intervention) -> Intervened:
        """Encode and apply a control write."""
        stream, pause = intervention.stream, intervention.pause
        new = await self._encrypted(intervention.delivery) if intervention.delivery is not None else None
        notes = tuple(self._entry(stream, entry) for entry in intervention.notes)
        if pause is not None:
            pause = replace(pause, by=self._written(pause.by, "paused by", stream))
        outbox = tuple(self._send(other) for other in intervention.outbox)
        audit = self._notes(intervention.audit)
        encrypted = replace(intervention, delivery=new, notes=notes, pause=pause, outbox=outbox, audit=audit)
        done = await self._store.intervene(encrypted)
        return replace(done, notes=tuple(replace(noted, row=self._row(noted.row)) for noted in done.notes))

    async def delete(
        self,
        stream: StreamId,
        *,
        beside: tuple[StreamId, ...] = (),
        edges: tuple[str, ...] = (),
        outbox: tuple[Delivery, ...] = (),
        audit: Audit = (),
    ) -> bool:
        """Delete streams; encode the outbox entries."""
        encrypted = tuple(self._send(new) for new in outbox)
        return await self._store.delete(stream, beside=beside, edges=edges, outbox=encrypted, audit=self._notes(audit))

    async def redact(self, redaction: Redaction) -> Annotated:
        """Redact a record; encode its replacement."""
        stream, seq = redaction.stream, redaction.seq
        found = await self._store.read(stream, after=Seq(seq - 1), until=seq)
        where = (found[0].kind, found[0].key or "") if found else ("", "")
        data = self._encrypt(redaction.data, "log", stream, *where)
        answers = tuple((promise, self._resolution(promise, told)) for promise, told in redaction.answers)
        drops = self._drops(stream, redaction.drops)
        note = self._entry(stream, redaction.note)
        audit = self._notes(redaction.audit)
        encrypted = replace(redaction, data=data, note=note, drops=drops, answers=answers, audit=audit)
        noted = await self._store.redact(encrypted)
        return replace(noted, row=self._row(noted.row))

    async def amend(self, amendment: Amendment) -> Annotated:
        """Encode and apply a conditional append."""
        stream = amendment.stream
        encrypted = replace(
            amendment,
            entry=self._entry(stream, amendment.entry),
            blobs=await self._blobs(stream, amendment.blobs),
            drops=self._drops(stream, amendment.drops),
            snapshot=self._snapshot(stream, amendment.snapshot),
        )
        noted = await self._store.amend(encrypted)
        return replace(noted, row=self._row(noted.row))

    async def create(self, new: NewStream) -> None:
        """Encode and create a stream with its history."""
        encrypted = replace(
            new,
            entries=tuple(self._entry(new.stream, entry) for entry in new.entries),
            blobs=await self._blobs(new.stream, new.blobs),
            label=self._label(new.stream, new.label) or new.label,
            audit=self._notes(new.audit),
        )
        await self._store.create(encrypted)

    async def promise(self, promise: PromiseState) -> PromiseState:
        """Create a promise; encode its resolution if it has one."""
        if promise.resolution is not None:
            told = self._resolution(promise.id, promise.resolution)
            promise = replace(promise, resolution=told)
        return self._state(await self._store.promise(promise))

    async def resolve(
        self,
        promise: PromiseId,
        resolution: Resolution,
        *,
        now: int,
        make: PromiseState | None = None,
        audit: Audit = (),
    ) -> Resolved:
        """Encode a resolution and resolve a promise with it."""
        answered = await self._store.resolve(
            promise, self._resolution(promise, resolution), now=now, make=make, audit=self._notes(audit)
        )
        if isinstance(answered, AlreadyResolved):
            return AlreadyResolved(self._answer(promise, answered.resolution))
        return answered

    async def resolve_all(
        self, answers: Sequence[tuple[PromiseState, Resolution]], *, now: int, audit: Audit = ()
    ) -> dict[PromiseId, Resolution]:
        """Encode resolutions and resolve several promises with them, all or none."""
        encrypted = [(made, self._resolution(made.id, resolution)) for made, resolution in answers]
        closed = await self._store.resolve_all(encrypted, now=now, audit=self._notes(audit))
        return {promise: self._answer(promise, told) for promise, told in closed.items()}

    async def secret(self, name: str, new: bytes) -> bytes:
        """Return a secret. The store holds only its encoded form, so a reader of the store cannot sign keys."""
        return self._open(await self._store.secret(name, self._encrypt(new, "secret", name)), "secret", name)

    # --- reading

    async def load(self, stream: StreamId, *, code: str) -> Loaded:
        """Return the decoded data that a new owner folds."""
        loaded = await self._store.load(stream, code=code)
        snapshot = loaded.snapshot
        if snapshot is not None:
            snapshot = replace(snapshot, data=self._open(snapshot.data, *_place_of(snapshot, stream)))
        rows = tuple(self._row(row) for row in loaded.rows)
        return Loaded(snapshot, rows, tuple(self._item(row) for row in loaded.inbox))

    async def inbox(self, stream: StreamId) -> tuple[InboxRow, ...]:
        """Return a stream's decoded inbox rows."""
        return tuple(self._item(row) for row in await self._store.inbox(stream))

    async def read(
        self, stream: StreamId, *, after: Seq = START, until: Seq | None = None, limit: int | None = None
    ) -> tuple[Row, ...]:
        """Return decoded log rows."""
        found = await self._store.read(stream, after=after, until=until, limit=limit)
        return tuple(self._row(row) for row in found)

    async def find(self, stream: StreamId, key: str) -> Row | None:
        """Return the decoded row with this log key, or None."""
        found = await self._store.find(stream, key)
        return self._row(found) if found is not None else None

    async def count(self, stream: StreamId, begins: str, *, until: Seq) -> int:
        """Return the number of rows up to `until` whose log key begins with `begins`; keys are not encoded."""
        return await self._store.count(stream, begins, until=until)

    async def stream(self, stream: StreamId) -> StreamInfo | None:
        """Return one stream's row with a decoded title, or None."""
        found = await self._store.stream(stream)
        return self._info(found) if found is not None else None

    async def streams(
        self,
        *,
        tenant: Tenant,
        kind: str,
        limit: int,
        before: tuple[int, StreamId] | None = None,
        tag: str | None = None,
    ) -> tuple[StreamInfo, ...]:
        """Return streams with decoded titles."""
        found = await self._store.streams(tenant=tenant, kind=kind, limit=limit, before=before, tag=tag)
        return tuple(self._info(info) for info in found)

    async def newest(
        self,
        *,
        tenant: Tenant,
        kind: str,
        tag: str,
        limit: int,
        before: int | None = None,
        agent: str | None = None,
    ) -> tuple[StreamInfo, ...]:
        """Return streams with decoded titles."""
        found = await self._store.newest(tenant=tenant, kind=kind, limit=limit, before=before, tag=tag, agent=agent)
        return tuple(self._info(info) for info in found)

    async def marks(self, streams: Sequence[StreamId], key: str) -> tuple[Row, ...]:
        """Return decoded records."""
        return tuple(self._row(row) for row in await self._store.marks(streams, key))

    async def peek(self, promise: PromiseId) -> PromiseState | None:
        """Return a promise's current, decoded state, or None."""
        found = await self._store.peek(promise)
        return self._state(found) if found is not None else None

    async def asked(
        self, *, tenant: Tenant, limit: int, after: tuple[int, PromiseId] | None = None
    ) -> tuple[PromiseState, ...]:
        """Return unresolved requests to people; only resolutions are encoded."""
        return await self._store.asked(tenant=tenant, limit=limit, after=after)

    async def asked_as(self, *, tenant: Tenant, prefix: str, limit: int) -> tuple[PromiseState, ...]:
        """Return requests to people with decoded resolutions."""
        found = await self._store.asked_as(tenant=tenant, prefix=prefix, limit=limit)
        return tuple(self._state(state) for state in found)

    async def blob(self, hash: BlobHash, *, stream: StreamId | None = None) -> Blob:
        """Return decoded bytes."""
        whose = stream if stream is not None else session_stream(self._tenant, SessionId("any"))
        try:
            found = await self._store.blob(await self._stored(whose, hash), stream=stream)
        except Error as problem:
            if problem.code is not Code.BLOB_UNKNOWN:
                raise
            raise Error(Code.BLOB_UNKNOWN, problem.message, blob=hash) from None
        data = await offload(len(found.data), self._open, found.data, "blob", hash)
        return Blob(hash, found.media_type, data)


def _place_of(snapshot: Snapshot, stream: StreamId) -> tuple[str, ...]:
    return "snapshot", stream, snapshot.code, str(snapshot.seq)


def _size(blobs: Iterable[Blob]) -> int:
    return sum(len(blob.data) for blob in blobs)


def _name(stream: StreamId, hash: BlobHash) -> BlobHash:
    """Return the name of encoded bytes: different for each tenant, and never the hash of the plain bytes."""
    return BlobHash(sha256(join("sealed", stream_names(stream)[0], hash).encode()).hexdigest())


def _unwrapped(text: str) -> bytes | None:
    """Return the encoded payload in a text; None for a plain text."""
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        return None
    return data if data.startswith(SEALED) else None


def _not_encrypted(what: str) -> Error:
    return Error(
        Code.CODEC_FAILED,
        f"a stored payload ({what}) is not encrypted",
        because="the payload was written without a codec",
        hint="AesGcmCodec(..., accept_plain=True) accepts payloads stored before encryption was turned on",
    )


def _context(where: tuple[str, ...]) -> bytes:
    return join(*where).encode()


def _failed(what: str, problem: Exception) -> Error:
    because = problem.because if isinstance(problem, Error) else type(problem).__name__
    return Error(
        Code.CODEC_FAILED,
        what,
        because=because,
        hint="pass every key that payloads were written with to Runtime(payload_codec=...)",
    )
