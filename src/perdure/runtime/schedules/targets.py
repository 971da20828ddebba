"""What a schedule does when it is due: say something to a session, start a process, or emit that something happened."""

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
from perdure.vocab.schedules import EmitsOccurrence, SayToSession, StartsProcess, Target

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller asked for; exactly one of `say`, `start` and `emit`."""

    say: str | None
    session: str
    agent: str | None
    start: ProcessFunction | str | None
    args: tuple[object, ...]
    emit: str | None
    payload: Json
    source: str


def target_of(rt: Runtime, id: str, wanted: Wanted) -> Target:
    """What each run of a schedule does.

    Raises:
        Error: `schedule_invalid` if that is nothing, or more than one thing; what `rt.start` and `rt.triggers.emit`
            refuse.
    """
    match (wanted.say, wanted.start, wanted.emit):
        case (str(text), None, None):
            session = check_id(wanted.session, what="the session id")
            return SayToSession(session=session, text=text, agent=wanted.agent or "")
        case (None, process, None) if process is not None:
            return _to_start(rt, id, process, wanted.args)
        case (None, None, str(source_type)):
            return _to_emit(rt, source_type, wanted.payload, wanted.source)
        case _:
            raise Error(
                Code.SCHEDULE_INVALID,
                "a schedule does one thing",
                hint="give exactly one of say=, start= and emit=",
            )


def _to_start(rt: Runtime, id: str, process: ProcessFunction | str, args: tuple[object, ...]) -> StartsProcess:
    asked, _ = python_process(rt, process, args, {}, id=check_process_id(id))
    assert isinstance(asked.input, EngineInput)
    return StartsProcess(definition=asked.definition, input=asked.input.payload, event_types=asked.event_types)


def _to_emit(rt: Runtime, source_type: str, payload: Json, source: str) -> EmitsOccurrence:
    item = rt.triggers.occurrence(source_type, payload, source=source).item
    assert isinstance(item, Occurrence)
    return EmitsOccurrence(source_type=source_type, payload=item.payload, source=source)
