"""`rt.processes`: the processes of a tenant, looked at and spoken to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import StreamId
from perdure.processes.record import Status, fold_all
from perdure.processes.registration import check_process_id, owner_of
from perdure.processes.visibility import listed_by
from perdure.runtime.process_handle import ProcessHandle
from perdure.store.protocol import StreamInfo
from perdure.vocab.processes import ProcessListMode, SessionScope
from perdure.vocab.records import PROCESS_END, Row
from perdure.vocab.registrations import ProcessOutput, Registration

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime

PAGE = 100


@dataclass(frozen=True, slots=True)
class Listed:
    """A process in a list, as far as that is told without reading its log: what it is, and how it ended; `place`
    continues a list after it.

    One that has not ended is `waiting` if it is parked: while it waits in memory, for half a minute at most, it is
    `running`. `await one.handle.record()` knows it exactly, and what it waits for.
    """

    handle: ProcessHandle
    registration: Registration
    status: Status
    registered_at: int
    output: ProcessOutput | None
    ended_at: int | None
    place: int


class Processes:
    """The processes of this tenant."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def list(
        self,
        mode: ProcessListMode = "live",
        *,
        session: str | None = None,
        frame: str = "",
        definition: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> tuple[Listed, ...]:
        """Processes, the latest first: those that have not ended, or all of them. With `session`, those that are seen
        from there (or from a `frame` of it); with `definition`, those of that code. `before` continues after the
        `place` of the last one.

        A page costs what it holds, however many processes there are. (With a session *and* a definition, what the
        session sees is looked through.)
        """
        rt = self._runtime
        rt.check_usable()
        scope = None if session is None else SessionScope(session_id=session, frame_id=frame)
        page = await rt.store.newest(
            tenant=rt.tenant,
            kind="process",
            limit=limit,
            before=before,
            tag=listed_by(mode, scope, definition),
            agent=None if definition is None else owner_of(definition),
        )
        marks = await rt.store.marks([info.stream for info in page], PROCESS_END) if page else ()
        told: dict[StreamId, list[Row]] = {}
        for row in sorted(marks, key=lambda row: row.seq):
            told.setdefault(row.stream, []).append(row)
        return tuple(self._listed(info, told[info.stream]) for info in page if info.stream in told)

    def _listed(self, info: StreamInfo, marks: list[Row]) -> Listed:
        record = fold_all(marks)
        status = record.status
        if record.output is None and info.last_seq > 1:
            status = "waiting" if info.parked else "running"
        return Listed(
            handle=ProcessHandle(self._runtime, info.name),
            registration=record.known,
            status=status,
            registered_at=record.registered_at,
            output=record.output,
            ended_at=record.ended_at if record.output is not None else None,
            place=info.number,
        )

    def handle(self, value: Json) -> ProcessHandle:
        """The process that a handle stands for: its id, a handle, or the JSON of one.

        Raises:
            Error: `process_handle_invalid`.
        """
        match value:
            case ProcessHandle():
                return value
            case {"__handle__": "process", "id": str(id), **rest} if not rest:
                name = id
            case str():
                name = value
            case _:
                raise _invalid("a handle is an id, or what handle.json gives")
        try:
            return ProcessHandle(self._runtime, check_process_id(name))
        except Error as problem:
            raise _invalid(problem.message) from None

    async def validate(self, *handles: Json) -> tuple[ProcessHandle, ...]:
        """The processes that these handles stand for, if there are all of them.

        Raises:
            Error: `process_handle_invalid`, `process_unknown`.
        """
        found = tuple(self.handle(value) for value in handles)
        for one in found:
            await one.record()
        return found

    async def cancel_all(self, *, session: str | None = None, reason: str = "") -> int:
        """Ask all that have not ended to end, or those that came from a session: how many were asked."""
        asked, before = 0, None
        while page := await self.list("live", session=session, limit=PAGE, before=before):
            for one in page:
                asked += await one.handle.cancel(reason)
            before = page[-1].place
        return asked


def _invalid(because: str) -> Error:
    return Error(Code.PROCESS_HANDLE_INVALID, "this is not the handle of a process", because=because)
