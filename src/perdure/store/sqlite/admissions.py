"""Admission of deliveries inside one transaction."""

from __future__ import annotations

from perdure.commit.changes import Label
from perdure.commit.plan import OutboxResult, first_entry, sent_as
from perdure.errors import Error
from perdure.ids import BlobHash, WorkerId, stream_names
from perdure.inbox.admit import (
    Admission,
    Admitted,
    Conflict,
    Delivery,
    Waiting,
    blob_unknown,
    check_queue,
    decide,
    ids_of,
    opens,
)
from perdure.store.sqlite.claims import claim_idle
from perdure.store.sqlite.streams import begin_stream, put, refer, relabel
from perdure.store.sqlite.tx import Tx


def admit(tx: Tx, new: Delivery, claim_for: WorkerId | None) -> Admission:
    """Deliver, and claim the stream for the sender if it is idle and unowned."""
    admission = deliver(tx, new)
    if claim_for is None or not isinstance(admission, Admitted):
        return admission
    return Admitted(admission.inbox_id, claim_idle(tx, new.stream, claim_for), admission.opened)


def deliver(tx: Tx, new: Delivery) -> Admission:
    """Put a delivery into a stream's inbox once; open a missing stream if the delivery allows that."""
    target = tx.one("stream_target_waiting" if new.room else "stream_target", (new.stream,))
    opening = opens(target[1] if target else None, new)
    refused = new.once and tx.one("tombstone_find", (new.stream,)) is not None if opening else new.fresh
    if refused:
        return Conflict(new.source_key)
    judged = None if opening else decide(tx.one("admission_find", (target[0], new.source_key)), new)
    if judged is not None:
        return judged
    check_queue(new, Waiting(*target[2:]) if target else Waiting())
    known = [_stored(tx, new, hash) for hash in new.refers]  # refuse before the first write
    stream = _open_stream(tx, new) if opening else target[0]
    refer(tx, stream, new.blobs)
    for blob in known:
        tx.run("blob_refer", (stream, blob))
    tx.run("admission_insert", (stream, new.source_key, new.content, *ids_of(new.item)))
    return Admitted(put(tx, stream, new), opened=opening)


def send(tx: Tx, new: Delivery) -> OutboxResult:
    """Deliver an outbox entry to another stream; return the result."""
    try:
        return sent_as(deliver(tx, new))
    except Error as refusal:
        return OutboxResult("discarded", refusal.code)


def _open_stream(tx: Tx, new: Delivery) -> int:
    stream = begin_stream(tx, new.stream, new.agent or "", (first_entry(new),), (new.queue, new.priority))
    if new.tags:
        relabel(tx, stream, new.stream, Label(tags=new.tags))
    return stream


def _stored(tx: Tx, new: Delivery, hash: BlobHash) -> int:
    """Return the id of stored bytes; refuse bytes that no stream of the tenant refers to."""
    known = tx.one("blob_of_tenant", (hash, stream_names(new.stream)[0]))
    if known is None:
        raise blob_unknown(hash)
    return known[0]
