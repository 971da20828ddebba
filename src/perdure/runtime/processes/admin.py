"""`rt.processes`: the processes of a tenant, looked at and spoken to."""

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


CancelSource = Literal["host", "tool", "process"]


class CancelAbility(Protocol):
    """How processes are asked to end by whoever sees them: a tool of a session, one that runs in a process, or the
    application itself through `rt.processes`."""

    async def cancel(self, handle: ProcessHandle, reason: str, source: CancelSource) -> bool:
        """Ask one to end; whether it was asked. An `Error` or a `ToolError` refuses."""
        ...


class AskToEnd:
    """The ordinary ability: everybody who sees a process may ask."""

    async def cancel(self, handle: ProcessHandle, reason: str, source: CancelSource) -> bool:
        """Ask it to end."""
        return await handle.cancel(reason)


class Processes:
    """The processes of this tenant."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.cancel_ability: CancelAbility = AskToEnd()
        """How tools and others ask processes to end: put your own here to refuse or to tell somebody."""

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

        Raises:
            Error: `invalid_argument`.
        """
        rt = self._runtime
        rt.check_usable()
        if mode not in get_args(ProcessListMode):
            raise Error(Code.INVALID_ARGUMENT, f"{mode!r} is no list of processes", hint="live or all")
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

    async def validate(self, *handles: Json, session: str | None = None, frame: str = "") -> tuple[ProcessHandle, ...]:
        """The processes that these handles stand for, if there are all of them, and are seen from the session if one is
        named.

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

    # --- from where they are seen

    async def grant(self, *handles: Json, session: str, frame: str = "") -> None:
        """Let processes be seen from a session (or a frame of it) too: its tools may list, await, signal and cancel
        them. All of them or none.

        Raises:
            Error: `session_unknown`, `process_unknown`, `process_handle_invalid`. Nothing was changed.
        """
        scope = await self._scope(session, frame)
        await edges.add(self._runtime, self._handles(handles), scope, replay=self._unique())

    async def revoke(self, *handles: Json, session: str, frame: str = "") -> None:
        """Let processes not be seen from there any more. They go on."""
        scope = SessionScope(session_id=session, frame_id=frame)
        await edges.remove(self._runtime, self._handles(handles), scope, replay=self._unique())

    async def transfer(
        self, *handles: Json, session: str, to: str, frame: str = "", to_frame: str = "", key: str = ""
    ) -> None:
        """Let processes be seen from another session instead: all of them or none. Nothing to transfer is done at once.
        The same transfer under the same `key` is made once.

        Raises:
            Error: `process_not_visible` if one is not seen from `session`; `session_unknown`. Nothing was changed.
        """
        found = self._handles(handles)
        if not found:
            return
        old = SessionScope(session_id=session, frame_id=frame)
        await edges.check_visible(self._runtime, found, old)
        new = await self._scope(to, to_frame)
        await edges.move(self._runtime, found, old, new, replay=key or self._unique())

    async def release(self, session: str, *, frame: str = "") -> int:
        """Take away all that a session sees: how many processes that were. None of them is cancelled."""
        released = 0
        while page := await self.list("all", session=session, frame=frame, limit=PAGE):
            await self.revoke(*(one.handle for one in page), session=session, frame=frame)
            released += len(page)
        return released

    # --- ending them

    async def cancel(self, handle: Json, reason: str = "", *, source: CancelSource = "host") -> bool:
        """Ask one to end, through the `cancel_ability` of this runtime. False if it had ended or was asked before."""
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
        """Ask all that have not ended to end, or those that are seen from a session, except `keep`: how many were
        asked."""
        kept = {self.handle(value).id for value in keep}
        asked, before = 0, None
        while page := await self.list("live", session=session, frame=frame, limit=PAGE, before=before):
            for one in page:
                if one.handle.id not in kept:
                    asked += await self.cancel(one.handle, reason, source=source)
            before = page[-1].place
        return asked

    async def cancel_unreferenced(self, *keep: Json, session: str, frame: str = "", reason: str = "") -> int:
        """Ask all that are seen from a session to end, except those that somebody still refers to."""
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
    return Error(Code.PROCESS_HANDLE_INVALID, "this is not the handle of a process", because=because)
