"""The runs of a schedule: the record, the outgoing delivery, and the check whether the last run has ended."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.ids import InputId, SessionId, Tenant, TurnId, join, process_stream, session_stream, trigger_stream
from perdure.inbox.admit import Delivery, delivery
from perdure.inbox.items import Input, Occurrence
from perdure.processes.registration import environment, starting
from perdure.processes.triggers import occurrence_id, occurring
from perdure.runtime.clock import short_id, uuid7
from perdure.runtime.sessions.answers import end_of
from perdure.store.protocol import Store
from perdure.vocab.blobs import Blob
from perdure.vocab.log_keys import PROCESS_END, input_key, occurrence_key
from perdure.vocab.messages import Text
from perdure.vocab.notifications import notification
from perdure.vocab.processes import SessionScope
from perdure.vocab.records import InputAdmitted, TriggerOccurred
from perdure.vocab.registrations import EngineInput, Provenance, Registration
from perdure.vocab.schedules import EmitsOccurrence, Schedule, ScheduleFired, SendInput, StartsProcess


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """One run: its record, and the delivery that commits with it."""

    record: ScheduleFired
    outbox: Delivery


DUE = "A schedule of this session is due."


def process_of(schedule: str, due_at: int, request: str) -> str:
    """Return the id of the process that a run starts: one per due time or request."""
    return join("schedule", schedule, request or str(due_at))


def run_of(
    tenant: Tenant, id: str, schedule: Schedule, *, now: int, due_at: int, request: str = "", missed: int = 0
) -> ScheduledRun:
    """Return the run of a schedule for a due time or a request."""
    key = f"schedule:{id}:{f'run:{request}' if request else due_at}"
    match schedule.target:
        case SendInput(session=session, text=text, agent=agent, by_session=by_session):
            turn, input = TurnId(uuid7(now)), InputId(short_id("in", now))
            said = notification(DUE, {"schedule": id, "text": text}, text="text") if by_session else text
            item = Input(
                input=input, turn=turn, parts=(Text(text=said),), source=f"schedule {id}", by_session=by_session
            )
            sent = delivery(session_stream(tenant, SessionId(session)), key, item, at=now, agent=agent or None)
            record = ScheduleFired(due_at=due_at, turn=turn, input=input, request=request, missed=missed)
        case StartsProcess() as target:
            asked, env = _registration(process_of(id, due_at, request), target, schedule.owner, id)
            sent = starting(tenant, asked, at=now, env=env)
            record = ScheduleFired(due_at=due_at, request=request, missed=missed, process=asked.process_id)
        case EmitsOccurrence(source_type=source_type, payload=payload, source=source):
            stream = trigger_stream(tenant, source_type, source)
            sent = occurring(stream, key, payload, at=now)
            named = occurrence_id(stream, key)
            record = ScheduleFired(due_at=due_at, request=request, missed=missed, occurrence=named)
    return ScheduledRun(record, sent)


def _registration(process_id: str, target: StartsProcess, owner: str, schedule: str) -> tuple[Registration, Blob]:
    env, blob = environment({}, {})
    whose = SessionScope(session_id=owner) if owner else None
    asked = Registration(
        process_id=process_id,
        definition=target.definition,
        input=EngineInput(kind="python", payload=target.input),
        recovery="rerunnable",
        env=env,
        event_types=target.event_types,
        provenance=Provenance(originator=whose),
        wake_target=whose,
        label=f"schedule {schedule}",
    )
    return asked, blob


async def goes_on(store: Store, tenant: Tenant, schedule: Schedule, last: ScheduleFired) -> bool:
    """Return whether the input of a run is not answered yet, or the work that it started has not ended."""
    match schedule.target:
        case SendInput(session=session):
            return await _unanswered(store, tenant, SessionId(session), last)
        case StartsProcess():
            return await _unfinished(store, tenant, last.process)
        case EmitsOccurrence(source_type=source_type, source=source):
            stream = trigger_stream(tenant, source_type, source)
            waiting = (one.item for one in await store.inbox(stream))
            if any(isinstance(one, Occurrence) and one.occurrence == last.occurrence for one in waiting):
                return True
            row = await store.find(stream, occurrence_key(last.occurrence))
            if row is None or not isinstance(row.record, TriggerOccurred):
                return False  # pruned, so all processes that it started have ended
            started = [one.process_id for one in row.record.deliveries if one.failed is None]
            return any([await _unfinished(store, tenant, process) for process in started])


async def _unanswered(store: Store, tenant: Tenant, session: SessionId, last: ScheduleFired) -> bool:
    to, turn = session_stream(tenant, session), last.turn
    if (row := await store.find(to, input_key(last.input))) is not None:
        if not isinstance(row.record, InputAdmitted):
            return False  # the input was withdrawn
        turn = row.record.turn
    if await end_of(store, to, turn) is not None:
        return False
    return await store.stream(to) is not None


async def _unfinished(store: Store, tenant: Tenant, process: str) -> bool:
    stream = process_stream(tenant, process)
    return await store.find(stream, PROCESS_END) is None and await store.stream(stream) is not None
