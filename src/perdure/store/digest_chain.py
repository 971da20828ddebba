"""The digest chain of a log: one digest per record, over the digest before it, its place and the hash of its payload.

A record that was damaged, swapped, repeated, inserted or removed does not fit the chain, and the check names the first
one. The stream's row contains the *head*: the digest of the last record. With a payload codec the head is sealed, with
its seq, so a writer without the key can neither continue a log nor cut it. Without a codec the chain finds damage and
no intent, because every writer of the file can compute it.

The digest covers the hash of a payload, so a redaction keeps the chain: the row keeps the old hash, bound to the new
payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

from perdure.commit.plan import Entry
from perdure.errors import Code, Error
from perdure.ids import Seq, StreamId, stream_names
from perdure.store.shapes import Diagnosis

DIGEST_BYTES = 16

PRUNED_KINDS = frozenset({"schedule", "trigger"})
"""Kinds of streams whose old records are removed by their owner, so that gaps are no damage."""


class Seal(Protocol):
    """Seals digests, so that only a holder of the key can make one. The result is bound to its place."""

    def seal(self, digest: bytes, *where: str) -> bytes:
        """Return the sealed digest: the same bytes for the same digest and place."""
        ...

    def unseal(self, sealed: bytes, *where: str) -> bytes:
        """Return the digest.

        Raises:
            Error: `codec_failed` if this key did not seal it, or seal it for another place.
        """
        ...


class ChainedRow(NamedTuple):
    """The columns of a log row that its digest covers. `original` is set for a redacted record."""

    seq: Seq
    at: int
    kind: str
    data: bytes
    key: str | None
    version: int
    digest: bytes
    original: bytes | None


class DigestChain:
    """Computes and checks the chain of each stream. Without a `seal` (without a codec), heads are plain digests."""

    def __init__(self, seal: Seal | None = None) -> None:
        self._seal = seal

    def extend(
        self, stream: StreamId, head: bytes, last_seq: Seq, entries: Sequence[Entry]
    ) -> tuple[list[bytes], bytes]:
        """Return the digests of records after a head, and the new head.

        Raises:
            Error: `codec_failed` if this key did not seal the head.
        """
        before, seq, digests = self.digest_of(stream, head, last_seq), last_seq, list[bytes]()
        for entry in entries:
            seq = Seq(seq + 1)
            before = _digest(before, _hash(entry.data), _place(stream, seq, entry))
            digests.append(before)
        return digests, self._sealed(before, "head", stream, str(seq)) if entries else head

    def empty(self, stream: StreamId) -> bytes:
        """Return the head of a stream without records."""
        return self._sealed(b"", "head", stream, "0")

    def digest_of(self, stream: StreamId, head: bytes, last_seq: Seq) -> bytes:
        """Return the digest in a head.

        Raises:
            Error: `codec_failed` if this key did not seal the head for that seq.
        """
        try:
            return self._unsealed(head, "head", stream, str(last_seq))
        except Error as problem:
            if self._seal is None:
                raise
            raise self.damaged(stream, last_seq, f"the end of the log: {problem.because}") from problem

    def redacted(self, row: ChainedRow, stream: StreamId, data: bytes) -> bytes:
        """Return what the row of a redacted record keeps: the old hash of its payload, bound to the new payload."""
        original = row.original[:DIGEST_BYTES] if row.original else _hash(row.data)
        bound = _digest(original, _hash(data), _place(stream, row.seq, row))
        return original + self._sealed(bound, "redacted", stream, str(row.seq))

    def fits(self, stream: StreamId, row: ChainedRow, before: bytes) -> bool:  # threat: S9, T-SEC-04
        """Return whether a record continues the chain after a digest."""
        if type(row.data) is not bytes or type(row.digest) is not bytes:  # SQLite columns hold values of any type
            return False
        place, payload = _place(stream, row.seq, row), _hash(row.data)
        if row.original is None:
            return row.digest == _digest(before, payload, place)
        original, bound = row.original[:DIGEST_BYTES], row.original[DIGEST_BYTES:]
        try:
            is_bound = self._unsealed(bound, "redacted", stream, str(row.seq)) == _digest(original, payload, place)
        except Error:
            return False
        return is_bound and row.digest == _digest(before, original, place)

    def check(
        self, stream: StreamId, rows: Iterable[ChainedRow], *, head: bytes, last_seq: Seq, first: Seq = Seq(1)
    ) -> bytes:
        """Check that these rows are the end of a log, from seq `first` on; return the digest of the last record.

        For a `first` above 1, the link of the first row is not checked.

        Raises:
            Error: `codec_failed` or `store_corrupt`, with the stream and the first seq that does not fit.
        """
        check = LogCheck(self, stream, first)
        check.add(rows)
        return check.end(head, last_seq)

    def damaged(self, stream: StreamId, seq: Seq, because: str) -> Error:
        """Return the error for a log that was changed (with a codec) or damaged (without one)."""
        return Error(
            Code.CODEC_FAILED if self._seal else Code.STORE_CORRUPT,
            f"record {seq} of {stream!r} is damaged",
            because=because,
            hint="restore the stream from a backup, or delete it; other streams are not affected",
            stream=stream,
            seq=seq,
        )

    def _sealed(self, digest: bytes, *where: str) -> bytes:
        return self._seal.seal(digest, *where) if self._seal else digest

    def _unsealed(self, sealed: bytes, *where: str) -> bytes:
        if self._seal:
            return self._seal.unseal(sealed, *where)
        if len(sealed) > DIGEST_BYTES:
            raise Error(
                Code.CODEC_FAILED,
                "the log is sealed with a key",
                because="the stream was written with a payload codec",
                hint="open the store with Runtime(payload_codec=...)",
            )
        return sealed


class LogCheck:
    """The check of one log, from seq `first` on, part by part."""

    def __init__(self, chain: DigestChain, stream: StreamId, first: Seq = Seq(1)) -> None:
        self._chain = chain
        self._stream = stream
        self._before = b"" if first == 1 else None
        self._seq = Seq(first - 1)
        self._gaps = stream_names(stream)[1] in PRUNED_KINDS

    def add(self, rows: Iterable[ChainedRow]) -> None:
        """Check the next rows. Raises for the first one that does not fit."""
        for row in rows:
            if row.seq != self._seq + 1:
                if not self._gaps or row.seq <= self._seq:
                    raise self._chain.damaged(self._stream, Seq(self._seq + 1), "the record is missing")
                self._before = None
            if self._before is not None and not self._chain.fits(self._stream, row, self._before):
                raise self._chain.damaged(self._stream, row.seq, "the record does not fit the digest chain")
            self._seq, self._before = row.seq, row.digest

    def end(self, head: bytes, last_seq: Seq) -> bytes:
        """Check that the log ends here; return the digest of the last record."""
        digest = self._chain.digest_of(self._stream, head, last_seq)
        if self._seq != last_seq and not (self._gaps and self._seq < last_seq):
            raise self._chain.damaged(self._stream, Seq(self._seq + 1), f"the log ends before its record {last_seq}")
        if self._seq == last_seq and self._before is not None and digest != self._before:
            raise self._chain.damaged(self._stream, self._seq, "the last record does not fit the end of the log")
        return digest


def diagnosis_of(problems: Sequence[Error]) -> Diagnosis:
    """Return the line of `db check` about the errors of all logs."""
    damaged = [problem for problem in problems if not is_sealed(problem)]
    if damaged:
        first, logs = damaged[0], "log is" if len(damaged) == 1 else "logs are"
        detail = f"{len(damaged)} {logs} damaged; the first: {first.message} ({first.because})"
        return Diagnosis("fail", "records", detail)
    if problems:
        return Diagnosis("warn", "records", f"not checked: {len(problems)} logs are sealed with the key of a codec")
    return Diagnosis("ok", "records", "every record fits the digest chain of its log")


def is_sealed(problem: Error) -> bool:
    """Return whether a check failed only because this process has no codec."""
    return problem.code is Code.CODEC_FAILED and "seq" not in problem.details


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def _place(stream: StreamId, seq: Seq, record: Entry | ChainedRow) -> bytes:
    key = "-" if record.key is None else f"={record.key}"
    return f"{stream}\0{seq}\0{record.at}\0{record.version}\0{record.kind}\0{key}".encode(
        errors="surrogatepass"
    )  # a store refuses surrogates itself


def _digest(before: bytes, payload: bytes, place: bytes) -> bytes:
    return blake2b(bytes((len(before),)) + before + payload + place, digest_size=DIGEST_BYTES).digest()
