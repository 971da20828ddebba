"""Admission of deliveries and of outbox entries from other streams."""

from __future__ import annotations

from perdure.commit.plan import OutboxResult, first_entry, sent_as
from perdure.errors import Error
from perdure.ids import WorkerId, stream_names
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
from perdure.store.memory.claims import take
from perdure.store.memory.state import Stream, Tables
from perdure.vocab.records import FORMAT


def admit(on: Tables, delivery: Delivery, claim_for: WorkerId | None) -> Admission:
    """Put a delivery into a stream's inbox once; also claim the stream if it is idle and unowned."""
    admission = take_in(on, delivery)
    if not isinstance(admission, Admitted):
        return admission
    on.committed()
    stream = on.streams[delivery.stream]
    idle = stream.owner is None and not (stream.active or stream.parked or stream.paused)
    if claim_for is None or not idle or stream.format > FORMAT:
        return admission
    return Admitted(admission.inbox_id, take(on, stream, claim_for).fence, admission.opened)


def take_in(on: Tables, new: Delivery) -> Admission:
    """Judge a delivery, and put it into the inbox of its stream; open the stream if needed.

    Raises:
        Error: `session_unknown`, `session_agent_conflict`, `blob_unknown`.
    """
    stream = on.streams.get(new.stream)
    opening = opens(stream.agent if stream else None, new)
    refused = new.once and new.stream in on.tombstones if opening else new.fresh
    if refused:
        return Conflict(new.source_key)
    judged = decide(stream.admissions.get(new.source_key) if stream else None, new)
    if judged is not None:
        return judged
    check_queue(new, stream.waiting if stream else Waiting())
    _check_refers(on, new)
    if opening:
        stream = _open(on, new)
    assert stream is not None  # opens() refuses an unknown stream that the delivery does not open
    on.refer(stream, (*new.blobs, *(on.blobs[hash].blob for hash in new.refers)))
    stream.admissions[new.source_key] = (new.content, *ids_of(new.item))
    return Admitted(on.deliver(stream, new), opened=opening)


def send(on: Tables, new: Delivery) -> OutboxResult:
    """Deliver an outbox entry of another stream; a refusal is a result, not an exception."""
    try:
        return sent_as(take_in(on, new))
    except Error as refusal:
        return OutboxResult("discarded", refusal.code)


def _open(on: Tables, new: Delivery) -> Stream:
    now = on.clock.wall_ms()
    stream = on.begin(new.stream, new.agent or "", now)
    stream.queue, stream.priority, stream.number = new.queue, new.priority, next(on.numbers)
    stream.write(first_entry(new))
    stream.tag(*new.tags)
    on.streams[new.stream] = stream
    return stream


def _check_refers(on: Tables, new: Delivery) -> None:
    """Refuse references to bytes that no stream of the tenant refers to."""
    tenant = stream_names(new.stream)[0]
    for hash in new.refers:
        owners = on.blobs[hash].owners if hash in on.blobs else ()
        if all(stream_names(owner)[0] != tenant for owner in owners):
            raise blob_unknown(hash)
