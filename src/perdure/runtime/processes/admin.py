"""`rt.processes`: list, cancel and share the processes of a tenant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import StreamId, check_id
from perdure.processes.record import Status, fold_all
from perdure.processes.registration import check_process_id, owner_of, unknown
from perdure.processes.visibility import listed_by
from perdure.runtime.clock import short_id
from perdure.runtime.pages import check_limit
from perdure.runtime.processes import edges
from perdure.runtime.processes.handle import ProcessHandle
from perdure.store.shapes import StreamInfo
from perdure.vocab.log_keys import PROCESS_END
from perdure.vocab.processes import ProcessListMode, SessionScope
from perdure.vocab.records import Row
from perdure.vocab.registrations import ProcessOutput, Registration

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

PAGE = 100


@dataclass(frozen=True, slots=True)
class Listed:
    """A process in a list, without a read of its log. `place` continues a list after it.

    A live process is `waiting` if it is parked. While it waits in memory, for at most half a minute, it is `running`.
    `await one.handle.record()` returns the exact status and the waits.
    """

    handle: ProcessHandle
    registration: Registration
    status: Status
    registered_at: int
    output: ProcessOutput | None
    ended_at: int | None
    place: int


CancelSource = Literal["host", "tool", "process"]


class CancelAbility(Protocol):
    """The policy for cancel requests: from a tool of a session, from a process, or from the application."""

    async def cancel(self, handle: ProcessHandle, reason: str, source: CancelSource) -> bool:
        """Request the end of a process. Return whether it was requested; raise `Error` or `ToolError` to refuse."""
        ...


class AskToEnd:
    """The default policy: every caller that sees a process may cancel it."""

    async def cancel(self, handle: ProcessHandle, reason: str, source: CancelSource) -> bool:
        """Request the end of the process."""
        return await handle.cancel(reason, via="api" if source == "host" else source)


class Processes:
    """The processes of this tenant."""

    def __init__(self, runtime: RuntimeCore) -> None:
        self._runtime = runtime
        self.cancel_ability: CancelAbility = AskToEnd()
        """The policy for all cancel requests. Replace it to refuse or to report them."""

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
        """Return processes, latest first: live ones, or all of them.

        `session` (and `frame`) selects those visible there, `definition` those of one process code. `before` continues
        after the `place` of the last one. The cost of a page does not depend on the number of processes. With a session
        *and* a definition, all processes visible in the session are scanned.

        Raises:
            Error: `invalid_argument`.
        """
        rt = self._runtime
        rt.check_usable()
        if mode not in get_args(ProcessListMode):
            raise Error(Code.INVALID_ARGUMENT, f"invalid list mode {mode!r}", hint='"live" or "all"')
        scope = None if session is None else SessionScope(session_id=session, frame_id=frame)
        page = await rt.store.newest(
            tenant=rt.tenant,
            kind="process",
            limit=check_limit(limit),
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
        """Return the process of a value: its id, a handle, or the JSON of a handle.

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
                raise _invalid("expected a process id, or the value of handle.to_json()")
        try:
            return ProcessHandle(self._runtime, check_process_id(name))
        except Error as problem:
            raise _invalid(problem.message) from None

    async def validate(self, *handles: Json, session: str | None = None, frame: str = "") -> tuple[ProcessHandle, ...]:
        """Return the processes of these handles, if all exist and, with `session`, all are visible there.

        Raises:
            Error: `process_handle_invalid`, `process_unknown`, `process_not_visible`.
        """
        found = tuple(self.handle(value) for value in handles)
        if session is not None:
            await edges.check_visible(self._runtime, found, SessionScope(session_id=session, frame_id=frame))
        for one in found:
            if await self._runtime.store.stream(one.stream) is None:
                raise unknown(one.id)
        return found

    # --- visibility

    async def grant(self, *handles: Json, session: str, frame: str = "") -> None:
        """Make processes visible in a session (or a frame of it), all or none. Its tools may list, await, signal and
        cancel them.

        Raises:
            Error: `session_unknown`, `process_unknown`, `process_handle_invalid`. Nothing was changed.
        """
        scope = await self._scope(session, frame)
        await edges.add(self._runtime, self._handles(handles), scope, replay=self._unique())

    async def revoke(self, *handles: Json, session: str, frame: str = "") -> None:
        """Make processes invisible in a session. The processes go on."""
        scope = SessionScope(session_id=session, frame_id=frame)
        await edges.remove(self._runtime, self._handles(handles), scope, replay=self._unique())

    async def transfer(
        self, *handles: Json, session: str, to: str, frame: str = "", to_frame: str = "", key: str = ""
    ) -> None:
        """Move the visibility of processes to another session, all or none. The same transfer under the same `key`
        applies once.

        Raises:
            Error: `process_not_visible` if one is not visible in `session`; `session_unknown`. Nothing was changed.
        """
        found = self._handles(handles)
        if not found:
            return
        old = SessionScope(session_id=session, frame_id=frame)
        await edges.check_visible(self._runtime, found, old)
        new = await self._scope(to, to_frame)
        await edges.move(self._runtime, found, old, new, replay=key or self._unique())

    async def release(self, session: str, *, frame: str = "") -> int:
        """Remove the visibility of all processes in a session, and return their number. No process is cancelled."""
        released = 0
        while page := await self.list("all", session=session, frame=frame, limit=PAGE):
            await self.revoke(*(one.handle for one in page), session=session, frame=frame)
            released += len(page)
        return released

    # --- cancelling

    async def cancel(self, handle: Json, reason: str = "", *, source: CancelSource = "host") -> bool:
        """Request the end of a process, through `cancel_ability`. False if it had ended, or the request was made
        before."""
        return await self.cancel_ability.cancel(self.handle(handle), reason, source)

    async def cancel_all(
        self,
        *,
        session: str | None = None,
        frame: str = "",
        reason: str = "",
        keep: Iterable[Json] = (),
        source: CancelSource = "host",
    ) -> int:
        """Request the end of all live processes, or of those visible in a session, except `keep`. Return the number of
        requests."""
        kept = {self.handle(value).id for value in keep}
        asked, before = 0, None
        while page := await self.list("live", session=session, frame=frame, limit=PAGE, before=before):
            for one in page:
                if one.handle.id not in kept:
                    asked += await self.cancel(one.handle, reason, source=source)
            before = page[-1].place
        return asked

    async def cancel_unreferenced(self, *keep: Json, session: str, frame: str = "", reason: str = "") -> int:
        """Request the end of all processes visible in a session, except those in `keep`."""
        return await self.cancel_all(session=session, frame=frame, reason=reason, keep=keep)

    def _handles(self, values: Iterable[Json]) -> tuple[ProcessHandle, ...]:
        return tuple(self.handle(value) for value in values)

    async def _scope(self, session: str, frame: str) -> SessionScope:
        scope = SessionScope(session_id=check_id(session, what="the session id"), frame_id=frame)
        await edges.check_session(self._runtime, scope)
        return scope

    def _unique(self) -> str:
        return short_id("edge", self._runtime.clock.wall_ms())


def _invalid(because: str) -> Error:
    return Error(Code.PROCESS_HANDLE_INVALID, "invalid process handle", because=because)
