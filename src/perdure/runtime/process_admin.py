"""`rt.processes`: the processes of a tenant, looked at and spoken to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import StreamId
from perdure.processes.registration import check_process_id
from perdure.runtime.process_handle import ProcessHandle
from perdure.vocab.processes import ProcessListMode
from perdure.vocab.records import PROCESS_END

if TYPE_CHECKING:
    from perdure.processes.record import ProcessRecord
    from perdure.runtime.runtime import Runtime

PAGE = 100


@dataclass(frozen=True, slots=True)
class Listed:
    """A process in a list; `place` continues a list after it."""

    handle: ProcessHandle
    record: ProcessRecord
    place: tuple[int, StreamId]


class Processes:
    """The processes of this tenant."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def list(
        self,
        mode: ProcessListMode = "live",
        *,
        session: str | None = None,
        definition: str | None = None,
        limit: int = 50,
        before: tuple[int, StreamId] | None = None,
    ) -> tuple[Listed, ...]:
        """Processes, the last changed first: those that have not ended, or all of them. With `session`, those that came
        from there; with `definition`, those of that code. `before` continues after the `place` of the last one.
        """
        rt, found = self._runtime, list[Listed]()
        rt.check_usable()
        while len(found) < limit:
            page = await rt.store.streams(tenant=rt.tenant, kind="process", limit=PAGE, before=before)
            for info in page:
                before = (info.updated_at, info.stream)
                if mode == "live" and await rt.store.find(info.stream, PROCESS_END) is not None:
                    continue
                handle = ProcessHandle(rt, info.name)
                record = await handle.record()
                origin = record.known.provenance.originator
                if session is not None and (origin is None or origin.session_id != session):
                    continue
                if definition is not None and record.known.definition != definition:
                    continue
                found.append(Listed(handle, record, before))
                if len(found) == limit:
                    break
            if len(page) < PAGE:
                break
        return tuple(found)

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
