"""`rt.processes`: list, cancel and share the processes of a tenant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import StreamId
from perdure.processes.record import Status, fold_all
from perdure.processes.registration import check_process_id, owner_of
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
    `await one.handle.info()` returns the exact status and the waits.
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
        *,
        ended: bool = False,
        session: str | None = None,
        definition: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> tuple[Listed, ...]:
        """Return the live processes, latest first; with `ended`, also those that have ended.

        `session` selects those visible there, `definition` those of one process code. `before` continues
        after the `place` of the last one. The cost of a page does not depend on the number of processes. With a session
        *and* a definition, all processes visible in the session are scanned.

        Raises:
            Error: `invalid_argument`.
        """
        if type(ended) is not bool:
            raise Error(Code.INVALID_ARGUMENT, f"ended must be True or False, not {ended!r:.40}")
        scope = None if session is None else SessionScope(session_id=session)
        mode: ProcessListMode = "all" if ended else "live"
        return await list_processes(self._runtime, mode, scope=scope, definition=definition, limit=limit, before=before)

    def from_json(self, value: Json) -> ProcessHandle:
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

    # --- visibility

    async def share(self, *handles: Json, session: str) -> None:
        """Make processes visible in a session, all or none. Its tools may list, await, signal and cancel them.

        Raises:
            Error: `session_unknown`, `process_unknown`, `process_handle_invalid`. Nothing was changed.
        """
        scope = await edges.existing_scope(self._runtime, session)
        found = tuple(self.from_json(value) for value in handles)
        await edges.add(self._runtime, found, scope, replay=new_edge(self._runtime))

    async def unshare(self, *handles: Json, session: str) -> None:
        """Make processes invisible in a session. The processes go on."""
        found = tuple(self.from_json(value) for value in handles)
        scope = SessionScope(session_id=session)
        await edges.remove(self._runtime, found, scope, replay=new_edge(self._runtime))

    # --- cancelling

    async def cancel(self, handle: Json, reason: str = "", *, source: CancelSource = "host") -> bool:
        """Request the end of a process, through `cancel_ability`. False if it had ended, or the request was made
        before."""
        return await self.cancel_ability.cancel(self.from_json(handle), reason, source)

    async def cancel_all(
        self,
        *,
        session: str | None = None,
        reason: str = "",
        keep: Iterable[Json] = (),
        source: CancelSource = "host",
    ) -> int:
        """Request the end of all live processes, or of those visible in a session, except `keep`. Return the number of
        requests."""
        scope = None if session is None else SessionScope(session_id=session)
        return await cancel_listed(self._runtime, scope, reason, keep=keep, source=source)


# --- also for scopes other than a whole session -----------------------------------------------------------------


async def list_processes(
    rt: RuntimeCore,
    mode: ProcessListMode,
    *,
    scope: SessionScope | None = None,
    definition: str | None = None,
    limit: int = 50,
    before: int | None = None,
) -> tuple[Listed, ...]:
    """Return a page of processes, latest first: those of a scope, of one process code, or all."""
    rt.check_usable()
    page = await rt.store.newest(
        tenant=rt.tenant,
        kind="process",
        limit=check_limit(limit),
        before=before,
        tag=listed_by(mode, scope, definition),
        agent=None if definition is None else owner_of(definition),
    )
    marks = await rt.store.marks([info.stream for info in page], PROCESS_END) if page else ()
    rows: dict[StreamId, list[Row]] = {}
    for row in sorted(marks, key=lambda row: row.seq):
        rows.setdefault(row.stream, []).append(row)
    return tuple(_listed(rt, info, rows[info.stream]) for info in page if info.stream in rows)


def _listed(rt: RuntimeCore, info: StreamInfo, marks: list[Row]) -> Listed:
    record = fold_all(marks)
    status = record.status
    if record.output is None and info.last_seq > 1:
        status = "waiting" if info.parked else "running"
    return Listed(
        handle=ProcessHandle(rt, info.name),
        registration=record.known,
        status=status,
        registered_at=record.registered_at,
        output=record.output,
        ended_at=record.ended_at if record.output is not None else None,
        place=info.number,
    )


async def cancel_listed(
    rt: RuntimeCore,
    scope: SessionScope | None,
    reason: str,
    *,
    keep: Iterable[Json] = (),
    source: CancelSource = "host",
) -> int:
    """Request the end of all live processes of a scope, or of the tenant, except `keep`."""
    kept = {rt.processes.from_json(value).id for value in keep}
    asked, before = 0, None
    while page := await list_processes(rt, "live", scope=scope, limit=PAGE, before=before):
        for one in page:
            if one.handle.id not in kept:
                asked += await rt.processes.cancel(one.handle, reason, source=source)
        before = page[-1].place
    return asked


async def release(rt: RuntimeCore, scope: SessionScope) -> int:
    """Remove the visibility of all processes in a scope, and return their number. No process is cancelled."""
    released = 0
    while page := await list_processes(rt, "all", scope=scope, limit=PAGE):
        await edges.remove(rt, [one.handle for one in page], scope, replay=new_edge(rt))
        released += len(page)
    return released


def new_edge(rt: RuntimeCore) -> str:
    """Return the replay key of a change of visibility that no recorded call makes."""
    return short_id("edge", rt.clock.wall_ms())


def _invalid(because: str) -> Error:
    return Error(Code.PROCESS_HANDLE_INVALID, "invalid process handle", because=because)
