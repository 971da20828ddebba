"""`ctx.processes`: the processes that are seen from a session, for its tools."""

from __future__ import annotations

from typing import Protocol

from perdure.codec import Json


class SessionProcesses(Protocol):
    """What a tool can do with processes. A handle is `{"__handle__": "process", "id": …}`, or the id alone.

    In a resumable tool each of these is recorded with the call and answered from the log when it is entered again; in
    any other, what the call does carries keys that follow from the call, so that an attempt that runs again starts and
    signals nothing twice. A process that is not seen from the session is refused (`process_not_visible`), except one
    that this very call has started. Everything raises `ToolError` with the code that says why.
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
        """Start a process of a function (or of its name), or what a `Registration` says: its handle. It belongs to this
        session, and with `wake_on_end` its end is said to it. Without an `id` it follows from the call."""
        ...

    async def await_process(self, handle: Json, *, timeout: float | str | None = None) -> Json:
        """How a process ended: `{"status": "success", "value": …}`, or `failure`, `cancelled`, `abandoned`. A resumable
        tool is parked meanwhile. Waiting is only that: giving it up does not end the process (`result_timeout`)."""
        ...

    async def complete_external(self, handle: Json, value: Json = None) -> None:
        """Say that a process that is done outside has ended."""
        ...

    async def list_handles(self) -> tuple[Json, ...]:
        """The processes that are seen from here and have not ended, the latest first."""
        ...

    async def list_all_handles(self) -> tuple[Json, ...]:
        """Also those that have ended."""
        ...

    async def list_handles_filtered(
        self, *, definition: str | None = None, status: str | None = None
    ) -> tuple[Json, ...]:
        """Of all that are seen from here, those of one definition, or in one status."""
        ...

    async def validate_handles(self, *handles: Json) -> tuple[str, ...]:
        """The ids of these handles, if each is a handle and its process is seen from here."""
        ...

    async def signal(self, handle: Json, name: str, payload: Json = None) -> Json:
        """Send a signal: the event that was appended."""
        ...

    async def cancel(self, handle: Json, reason: str = "requested by tool") -> bool:
        """Ask a process to end. False if it has ended, or was asked before."""
        ...

    async def cancel_all(self, reason: str = "requested by tool") -> int:
        """Ask all that are seen from here to end: how many were asked."""
        ...

    async def cancel_unreferenced_handles(self, *keep: Json) -> int:
        """Ask all that are seen from here to end, except these."""
        ...

    async def transfer_handles(self, session: str, *handles: Json) -> None:
        """Give processes to another session: they are seen from there, and not from here any more. All or none."""
        ...

    async def transfer_handles_to_frame(self, frame: str, *handles: Json) -> None:
        """Give processes to a frame of this session."""
        ...

    async def release_session(self, session: str) -> int:
        """Take away what a session sees: how many processes that were. None of them is cancelled."""
        ...
