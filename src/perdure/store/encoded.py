"""Payload encryption: a store around a store, which sees no payload in the clear.

Encoded are log records, inbox items, blobs, snapshots, titles and the answers of promises. Readable stay the names of
things: streams, agents, kinds, keys, tags, moments, sizes, and the sha256 by which equal inputs and equal bytes are
recognised. What a store itself writes has no payload and is not encoded: the opening of a session, and wakes. Anything
else that is not encoded is refused, unless the codec says that it accepts it. Blobs are kept under a name of their own
per tenant, so that nobody depends on bytes that another tenant encoded, or that nobody did.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol, cast

from msgspec.structs import replace

from perdure.codec import SEALED, decode, encode
from perdure.commit.changes import Amendment, Intervention, Label, NewStream, Note, Redaction
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
from perdure.store.live import Piece, SideChannel
from perdure.store.protocol import Store
from perdure.store.shapes import START, AlreadyResolved, Annotated, InboxRow, Intervened, Loaded, Resolved, StreamInfo
from perdure.vocab.promises import Err, Ok, PromiseState, Resolution
from perdure.vocab.records import Row

_TITLE = "sealed:"
_FIELD = "sealed"


class Codec(Protocol):
    """Turns payloads into bytes that only it can read.

    Law: `encode` gives the same bytes for the same data and context, so that a write whose answer got lost is
    recognised when it is made again. `decode` must refuse bytes that were made for another context.

    With an attribute `accept_plain = True`, payloads that were stored before there was a codec are read as they are.
    Without it they are refused: who can write to the store could otherwise put anything there.
    """

    def encode(self, data: bytes, context: bytes) -> bytes:
        """Hide a payload. `context` says where it will stand; it is bound to the bytes and not part of them."""
        ...

    def decode(self, data: bytes, context: bytes) -> bytes:
        """The payload again. Raises whatever it likes if that cannot be done."""
        ...


def encoded(store: Store, codec: Codec, tenant: Tenant = DEFAULT_TENANT) -> Store:
    """The same store, with every payload encoded. One that is encoded already stays as it is.

    `tenant` is whose bytes are meant where no stream is named.
    """
    return store if isinstance(store, EncodedStore) else cast(Store, EncodedStore(store, codec, tenant))


class Hide(Protocol):
    """From a text to another, bound to where it stands."""

    def __call__(self, text: str, *where: str) -> str:
        """The other text."""
        ...


class EncodedChannel:
    """The side channel, with every text encoded. Places stay where they are, in characters of what was said."""

    def __init__(self, channel: SideChannel, hide: Hide, show: Hide) -> None:
        self._channel = channel
        self._hide = hide
        self._show = show

    async def put(self, pieces: Sequence[Piece], *, over: Sequence[tuple[StreamId, int]] = (), now: int) -> None:
        """Add pieces, encoded."""
        hidden = [replace(piece, text=self._hide(piece.text, *_place(piece))) for piece in pieces]
        await self._channel.put(hidden, over=over, now=now)

    async def read(self, stream: StreamId) -> tuple[Piece, ...]:
        """Pieces, decoded."""
        found = await self._channel.read(stream)
        return tuple(replace(piece, text=self._show(piece.text, *_place(piece))) for piece in found)

    async def forget(self, stream: StreamId) -> None:
        """The stream is gone."""
        await self._channel.forget(stream)


def _place(piece: Piece) -> tuple[str, ...]:
    return ("live", piece.stream, piece.turn, piece.effect, str(piece.run), str(piece.start))


class EncodedStore:
    """See the module. What has no payload goes straight through."""

    def __init__(self, store: Store, codec: Codec, tenant: Tenant = DEFAULT_TENANT) -> None:
        self._store = store
        self._codec = codec
        self._tenant = tenant
        self._accept_plain = getattr(codec, "accept_plain", False) is True

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    @property
    def live(self) -> SideChannel:
        """What models write, encoded."""
        return EncodedChannel(self._store.live, self._hidden, self._shown)

    def _hidden(self, text: str, *where: str) -> str:
        return b64encode(self._seal(text.encode(), *where)).decode()

    def _shown(self, text: str, *where: str) -> str:
        sealed = _unwrapped(text)
        return "" if sealed is None else self._open(sealed, *where).decode()

    # --- bytes

    def _seal(self, data: bytes, *where: str) -> bytes:
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
        data = self._seal(entry.data, "log", stream, entry.kind, entry.key or "")
        return replace(entry, data=data)

    def _row(self, row: Row) -> Row:
        if row.seq == 1 and row.kind == "session_opened" and not row.data.startswith(SEALED):
            return row  # the store's own: it names the agent, which is no secret
        return replace(
            row, data=self._open(row.data, "log", row.stream, row.kind, row.key or "")
        )  # fmt: skip

    def _blob(self, stream: StreamId, blob: Blob) -> Blob:
        return Blob(_name(stream, blob.hash), blob.media_type, self._seal(blob.data, "blob", blob.hash))

    def _delivery(self, new: Delivery) -> Delivery:
        sealed, opening = self._seal(new.data, "inbox", new.stream, new.source_key), new.opening
        if opening is not None:
            opening = replace(opening, data=self._seal(opening.data, "log", new.stream, opening.kind, ""))
        blobs = tuple(self._blob(new.stream, blob) for blob in new.blobs)
        return replace(new, sealed=sealed, opening=opening, blobs=blobs)

    def _item(self, row: InboxRow) -> InboxRow:
        if not row.data.startswith(SEALED) and isinstance(row.item, Wake):
            return row  # the store's own: it only says to look
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
        """A few words that stand in the row of a stream."""
        return _TITLE + b64encode(self._seal(words.encode(), what, stream)).decode() if words else words

    def _words(self, text: str, what: str, stream: StreamId) -> str:
        sealed = _unwrapped(text.removeprefix(_TITLE)) if text.startswith(_TITLE) else None
        if sealed is None:
            self._check_plain(what)
            return text
        return self._open(sealed, what, stream).decode()

    def _resolution(self, promise: PromiseId, resolution: Resolution) -> Resolution:
        if not isinstance(resolution, Ok | Err):
            return resolution
        sealed = self._seal(encode(resolution), "promise", promise)
        return Ok(value={_FIELD: b64encode(sealed).decode()})

    def _answer(self, promise: PromiseId, resolution: Resolution) -> Resolution:
        match resolution:
            case Ok(value={"sealed": str(text), **rest}) if not rest and (sealed := _unwrapped(text)) is not None:
                return decode(self._open(sealed, "promise", promise), Resolution)
            case Ok() | Err():
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
        """Append, encoded; submitted at the call."""
        outer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        try:
            inner = asyncio.ensure_future(self._store.append(self._plan(plan)))
        except Error as refusal:
            outer.set_exception(refusal)
            outer.exception()  # nobody has to await it
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
        except Exception as problem:  # noqa: BLE001 - handed on to who awaits it
            outer.set_exception(problem)
            outer.exception()

    def _plan(self, plan: Plan) -> Plan:
        return replace(
            plan,
            entries=tuple(self._entry(plan.stream, entry) for entry in plan.entries),
            sends=tuple(self._send(new) for new in plan.sends),
            blobs=tuple(self._blob(plan.stream, blob) for blob in plan.blobs),
            drops=self._drops(plan.stream, plan.drops),
            snapshot=self._snapshot(plan.stream, plan.snapshot),
        )

    def _drops(self, stream: StreamId, hashes: tuple[BlobHash, ...]) -> tuple[BlobHash, ...]:
        names = tuple(_name(stream, hash) for hash in hashes)
        return (*names, *hashes) if self._accept_plain else names

    def _send(self, new: Delivery) -> Delivery:
        """What it refers to is looked for under its name here: an append cannot ask first if it has an old one."""
        return replace(self._delivery(new), refers=tuple(_name(new.stream, hash) for hash in new.refers))

    def _snapshot(self, stream: StreamId, snapshot: Snapshot | None) -> Snapshot | None:
        if snapshot is None:
            return None
        sealed = self._seal(snapshot.data, "snapshot", stream, snapshot.code)
        return Snapshot(snapshot.seq, snapshot.code, sealed)

    def _receipt(self, receipt: Receipt) -> Receipt:
        if not receipt.missed and not receipt.resolved:
            return receipt
        missed = tuple(self._row(row) for row in receipt.missed)
        resolved = tuple((promise, self._answer(promise, told)) for promise, told in receipt.resolved)
        return replace(receipt, missed=missed, resolved=resolved)

    async def admit(self, delivery: Delivery, *, claim_for: WorkerId | None = None) -> Admission:
        """Admit, encoded."""
        return await self._store.admit(await self._sealed(delivery), claim_for=claim_for)

    async def _sealed(self, new: Delivery) -> Delivery:
        refers = tuple([await self._stored(new.stream, hash) for hash in new.refers])
        return replace(self._delivery(new), refers=refers)

    async def _stored(self, stream: StreamId, hash: BlobHash) -> BlobHash:
        """The name that bytes have in the store: what was stored before there was a codec has its old one."""
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
        """Annotate, encoded."""
        noted = await self._store.annotate(
            stream, self._entry(stream, entry), label=self._label(stream, label)
        )  # fmt: skip
        return replace(noted, row=self._row(noted.row))

    async def annotate_all(self, notes: Sequence[Note]) -> tuple[Annotated, ...]:
        """Records encoded, each for its stream."""
        sealed = [Note(n.stream, self._entry(n.stream, n.entry), self._label(n.stream, n.label)) for n in notes]
        noted = await self._store.annotate_all(sealed)
        return tuple(replace(one, row=self._row(one.row)) for one in noted)

    async def intervene(self, intervention: Intervention) -> Intervened:
        """Intervene, encoded."""
        stream, pause = intervention.stream, intervention.pause
        new = await self._sealed(intervention.delivery) if intervention.delivery is not None else None
        notes = tuple(self._entry(stream, entry) for entry in intervention.notes)
        if pause is not None:
            pause = replace(pause, by=self._written(pause.by, "paused by", stream))
        sends = tuple(self._send(other) for other in intervention.sends)
        sealed = replace(intervention, delivery=new, notes=notes, pause=pause, sends=sends)
        done = await self._store.intervene(sealed)
        return replace(done, notes=tuple(replace(noted, row=self._row(noted.row)) for noted in done.notes))

    async def delete(
        self,
        stream: StreamId,
        *,
        beside: tuple[StreamId, ...] = (),
        edges: tuple[str, ...] = (),
        sends: tuple[Delivery, ...] = (),
    ) -> bool:
        """Delete; what others are told is encoded."""
        sealed = tuple(self._send(new) for new in sends)
        return await self._store.delete(stream, beside=beside, edges=edges, sends=sealed)

    async def redact(self, redaction: Redaction) -> Annotated:
        """Redact; what is left is encoded too."""
        stream, seq = redaction.stream, redaction.seq
        found = await self._store.read(stream, after=Seq(seq - 1), until=seq)
        where = (found[0].kind, found[0].key or "") if found else ("", "")
        data = self._seal(redaction.data, "log", stream, *where)
        answers = tuple((promise, self._resolution(promise, told)) for promise, told in redaction.answers)
        drops = self._drops(stream, redaction.drops)
        note = self._entry(stream, redaction.note)
        sealed = replace(redaction, data=data, note=note, drops=drops, answers=answers)
        noted = await self._store.redact(sealed)
        return replace(noted, row=self._row(noted.row))

    async def amend(self, amendment: Amendment) -> Annotated:
        """Amend, encoded."""
        stream = amendment.stream
        sealed = replace(
            amendment,
            entry=self._entry(stream, amendment.entry),
            blobs=tuple(self._blob(stream, blob) for blob in amendment.blobs),
            drops=self._drops(stream, amendment.drops),
            snapshot=self._snapshot(stream, amendment.snapshot),
        )
        noted = await self._store.amend(sealed)
        return replace(noted, row=self._row(noted.row))

    async def create(self, new: NewStream) -> None:
        """Create, encoded."""
        sealed = replace(
            new,
            entries=tuple(self._entry(new.stream, entry) for entry in new.entries),
            blobs=tuple(self._blob(new.stream, blob) for blob in new.blobs),
            label=self._label(new.stream, new.label) or new.label,
        )
        await self._store.create(sealed)

    async def promise(self, promise: PromiseState) -> PromiseState:
        """Create a promise, its answer encoded if it has one."""
        if promise.resolution is not None:
            told = self._resolution(promise.id, promise.resolution)
            promise = replace(promise, resolution=told)
        return self._state(await self._store.promise(promise))

    async def resolve(
        self, promise: PromiseId, resolution: Resolution, *, now: int, make: PromiseState | None = None
    ) -> Resolved:
        """Answer a promise, encoded."""
        answered = await self._store.resolve(promise, self._resolution(promise, resolution), now=now, make=make)
        if isinstance(answered, AlreadyResolved):
            return AlreadyResolved(self._answer(promise, answered.resolution))
        return answered

    async def resolve_all(
        self, answers: Sequence[tuple[PromiseState, Resolution]], *, now: int
    ) -> dict[PromiseId, Resolution]:
        """Answer several promises, encoded."""
        sealed = [(made, self._resolution(made.id, resolution)) for made, resolution in answers]
        closed = await self._store.resolve_all(sealed, now=now)
        return {promise: self._answer(promise, told) for promise, told in closed.items()}

    # --- reading

    async def load(self, stream: StreamId, *, code: str) -> Loaded:
        """Load, decoded."""
        loaded = await self._store.load(stream, code=code)
        snapshot = loaded.snapshot
        if snapshot is not None:
            snapshot = replace(snapshot, data=self._open(snapshot.data, "snapshot", stream, snapshot.code))
        rows = tuple(self._row(row) for row in loaded.rows)
        return Loaded(snapshot, rows, tuple(self._item(row) for row in loaded.inbox))

    async def inbox(self, stream: StreamId) -> tuple[InboxRow, ...]:
        """The inbox, decoded."""
        return tuple(self._item(row) for row in await self._store.inbox(stream))

    async def read(
        self, stream: StreamId, *, after: Seq = START, until: Seq | None = None, limit: int | None = None
    ) -> tuple[Row, ...]:
        """Log rows, decoded."""
        found = await self._store.read(stream, after=after, until=until, limit=limit)
        return tuple(self._row(row) for row in found)

    async def find(self, stream: StreamId, key: str) -> Row | None:
        """The row with this log key, decoded."""
        found = await self._store.find(stream, key)
        return self._row(found) if found is not None else None

    async def count(self, stream: StreamId, begins: str, *, until: Seq) -> int:
        """How many rows up to `until` have a log key that begins like this: keys are not encoded."""
        return await self._store.count(stream, begins, until=until)

    async def stream(self, stream: StreamId) -> StreamInfo | None:
        """One stream's row, its title decoded."""
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
        """Streams, their titles decoded."""
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
        """Streams, their titles decoded."""
        found = await self._store.newest(tenant=tenant, kind=kind, limit=limit, before=before, tag=tag, agent=agent)
        return tuple(self._info(info) for info in found)

    async def marks(self, streams: Sequence[StreamId], key: str) -> tuple[Row, ...]:
        """Records, decoded."""
        return tuple(self._row(row) for row in await self._store.marks(streams, key))

    async def peek(self, promise: PromiseId) -> PromiseState | None:
        """A promise as it is now, decoded."""
        found = await self._store.peek(promise)
        return self._state(found) if found is not None else None

    async def asked(
        self, *, tenant: Tenant, limit: int, after: tuple[int, PromiseId] | None = None
    ) -> tuple[PromiseState, ...]:
        """What people are asked; nothing of it is encoded before it is answered."""
        return await self._store.asked(tenant=tenant, limit=limit, after=after)

    async def asked_as(self, *, tenant: Tenant, prefix: str, limit: int) -> tuple[PromiseState, ...]:
        """What people were asked, their answers decoded."""
        found = await self._store.asked_as(tenant=tenant, prefix=prefix, limit=limit)
        return tuple(self._state(state) for state in found)

    async def blob(self, hash: BlobHash, *, stream: StreamId | None = None) -> Blob:
        """Stored bytes, decoded."""
        whose = stream if stream is not None else session_stream(self._tenant, SessionId("any"))
        try:
            found = await self._store.blob(await self._stored(whose, hash), stream=stream)
        except Error as problem:
            if problem.code is not Code.BLOB_UNKNOWN:
                raise
            raise Error(Code.BLOB_UNKNOWN, problem.message, blob=hash) from None
        return Blob(hash, found.media_type, self._open(found.data, "blob", hash))


def _name(stream: StreamId, hash: BlobHash) -> BlobHash:
    """Under which name encoded bytes are stored: each tenant has its own, and never that of the bytes themselves."""
    return BlobHash(sha256(join("sealed", stream_names(stream)[0], hash).encode()).hexdigest())


def _unwrapped(text: str) -> bytes | None:
    """An encoded payload that was written as text; None if it is just some text."""
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        return None
    return data if data.startswith(SEALED) else None


def _not_encrypted(what: str) -> Error:
    return Error(
        Code.CODEC_FAILED,
        f"a stored payload ({what}) is not encrypted",
        because="it was written without a codec",
        hint="AesGcm(..., accept_plain=True) accepts what was stored before encryption was turned on",
    )


def _context(where: tuple[str, ...]) -> bytes:
    return join(*where).encode()


def _failed(what: str, problem: Exception) -> Error:
    because = problem.because if isinstance(problem, Error) else type(problem).__name__
    return Error(
        Code.CODEC_FAILED,
        what,
        because=because,
        hint="give Runtime(codec=...) every key that payloads were written with",
    )
