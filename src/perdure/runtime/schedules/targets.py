"""The target of a schedule: an input to a session, a process to start, or an occurrence to emit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import check_id
from perdure.inbox.items import Occurrence
from perdure.processes.registration import check_process_id
from perdure.runtime.processes.function import ProcessFunction
from perdure.runtime.processes.starting import python_process
from perdure.vocab.registrations import EngineInput
from perdure.vocab.schedules import EmitsOccurrence, SendInput, StartsProcess, Target

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore


@dataclass(frozen=True, slots=True)
class ScheduleTarget:
    """The target that a caller requests: exactly one of `send`, `start` and `emit`."""

    send: str | None
    session: str
    agent: str | None
    start: ProcessFunction | str | None
    args: tuple[object, ...]
    emit: str | None
    payload: Json
    source: str


async def target_of(rt: RuntimeCore, id: str, wanted: ScheduleTarget) -> Target:
    """Return the target of each run of a schedule.

    Raises:
        Error: `schedule_invalid` unless exactly one target is given; the errors of `rt.start` and `rt.triggers.emit`.
    """
    match (wanted.send, wanted.start, wanted.emit):
        case (str(text), None, None):
            session = check_id(wanted.session, what="the session id")
            return SendInput(session=session, text=text, agent=wanted.agent or "")
        case (None, process, None) if process is not None:
            return _to_start(rt, id, process, wanted.args)
        case (None, None, str(source_type)):
            return await _to_emit(rt, source_type, wanted.payload, wanted.source)
        case _:
            raise Error(
                Code.SCHEDULE_INVALID,
                "a schedule needs exactly one target",
                hint="pass one of send=, start= and emit=",
            )


def _to_start(rt: RuntimeCore, id: str, process: ProcessFunction | str, args: tuple[object, ...]) -> StartsProcess:
    asked, _ = python_process(rt, process, args, {}, id=check_process_id(id))
    assert isinstance(asked.input, EngineInput)
    return StartsProcess(definition=asked.definition, input=asked.input.payload, event_types=asked.event_types)


async def _to_emit(rt: RuntimeCore, source_type: str, payload: Json, source: str) -> EmitsOccurrence:
    item = (await rt.trigger_sources.occurrence(source_type, payload, source=source)).item
    assert isinstance(item, Occurrence)
    return EmitsOccurrence(source_type=source_type, payload=item.payload, source=source)
