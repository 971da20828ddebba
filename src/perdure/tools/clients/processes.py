"""The client `ctx.processes`: the processes visible to a session, for its tools."""

from __future__ import annotations

from typing import Protocol

from perdure.codec import Json


class SessionProcesses(Protocol):
    """Operations of a tool on processes. A handle is `{"__handle__": "process", "id": …}`, or the id alone.

    In a resumable tool each operation is recorded with the call and replayed on re-entry. In any other tool, operations
    use keys derived from the call, so a repeated attempt starts and signals nothing twice. A process that is not
    visible to the session is refused (`process_not_visible`), except one started by this call. Failures are
    `ToolError`s with a code.
    """

    async def start(
        self,
        process: object,
        /,
        *args: object,
        id: str | None = None,
        label: str = "",
        wake_on_end: bool = False,
        **kwargs: object,
    ) -> dict[str, Json]:
        """Start a process of a function (or its name) or of a `Registration`, and return its handle.

        The process belongs to this session. With `wake_on_end` its end is sent to the session. The default `id` is
        derived from the call.
        """
        ...

    async def await_process(self, handle: Json, *, timeout: float | str | None = None) -> Json:
        """Wait for the end of a process: `{"status": "success", "value": …}`, or `failure`, `cancelled`, `abandoned`.

        A resumable tool is parked meanwhile. A timeout (`result_timeout`) does not end the process.
        """
        ...

    async def complete_external(self, handle: Json, value: Json = None) -> None:
        """Complete a process that runs externally."""
        ...

    async def list_handles(self) -> tuple[Json, ...]:
        """Return the visible processes that have not ended, newest first."""
        ...

    async def list_all_handles(self) -> tuple[Json, ...]:
        """Return all visible processes, including ended ones."""
        ...

    async def list_handles_filtered(
        self, *, definition: str | None = None, status: str | None = None
    ) -> tuple[Json, ...]:
        """Return the visible processes of one definition or with one status."""
        ...

    async def validate_handles(self, *handles: Json) -> tuple[str, ...]:
        """Return the ids of these handles, if all are valid handles of visible processes."""
        ...

    async def signal(self, handle: Json, name: str, payload: Json = None) -> Json:
        """Send a signal and return the appended event."""
        ...

    async def cancel(self, handle: Json, reason: str = "requested by tool") -> bool:
        """Request the end of a process. Return False if it has ended or was asked before."""
        ...

    async def cancel_all(self, reason: str = "requested by tool") -> int:
        """Request the end of all visible processes and return their number."""
        ...

    async def cancel_unreferenced_handles(self, *keep: Json) -> int:
        """Request the end of all visible processes except these."""
        ...

    async def transfer_handles(self, session: str, *handles: Json) -> None:
        """Move the visibility of processes to another session. All or none are moved."""
        ...

    async def transfer_handles_to_frame(self, frame: str, *handles: Json) -> None:
        """Move the visibility of processes to a frame of this session."""
        ...

    async def release_session(self, session: str) -> int:
        """Remove all visibility entries of a session and return their number. No process is cancelled."""
        ...
