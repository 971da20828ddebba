"""Commands to the process table and their outcomes, as effects carry them.

Law: two commands share an effect id only if they name the same processes and scopes; every name in an id is escaped.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from perdure.codec import Json, digest
from perdure.ids import join
from perdure.vocab.wire import Value

ProcessListMode = Literal["live", "all"]


class SessionScope(Value, frozen=True):
    """A session, or one frame of it, as the owner or observer of processes."""

    session_id: str
    frame_id: str = ""

    @property
    def id(self) -> str:
        """The scope as spelled in effect ids."""
        session = f"session:{join(self.session_id)}"
        return f"{session}/frame:{join(self.frame_id)}" if self.frame_id else session


class StartProcess(Value, frozen=True, tag="start", tag_field="op"):
    """Register a process and make it runnable."""

    process_id: str
    registration: Json
    grant: Json = None
    execution_context: Json = None

    @property
    def effect_id(self) -> str:
        """Stable name of this command."""
        return join("process", "start", self.process_id)


class ListProcesses(Value, frozen=True, tag="list", tag_field="op"):
    """List the processes visible from a scope."""

    session_scope: SessionScope
    mode: ProcessListMode = "live"

    @property
    def effect_id(self) -> str:
        """Stable name of this command."""
        return f"process:list:{self.session_scope.id}:{self.mode}"


class TransferProcesses(Value, frozen=True, tag="transfer", tag_field="op"):
    """Move visibility of processes from one scope to another."""

    from_scope: SessionScope
    to_scope: SessionScope
    process_ids: tuple[str, ...]

    @property
    def effect_id(self) -> str:
        """Stable name of this command."""
        return f"process:transfer:{self.from_scope.id}:{self.to_scope.id}:{digest(self.process_ids)}"


class DeleteSessionEdges(Value, frozen=True, tag="delete_session", tag_field="op"):
    """Remove a session's visibility entries. Cancels no process."""

    session_id: str

    @property
    def effect_id(self) -> str:
        """Stable name of this command."""
        return join("process", "delete-session", self.session_id)


class AwaitProcess(Value, frozen=True, tag="await", tag_field="op"):
    """Wait for a process to end."""

    process_id: str

    @property
    def effect_id(self) -> str:
        """Stable name of this command."""
        return join("process", "await", self.process_id)


class CancelProcess(Value, frozen=True, tag="cancel", tag_field="op"):
    """Request the end of a process."""

    process_id: str
    reason: str | None = None

    @property
    def effect_id(self) -> str:
        """Stable name of this command."""
        return join("process", "cancel", self.process_id)


class SignalProcess(Value, frozen=True, tag="signal", tag_field="op"):
    """Send a named signal to a process."""

    process_id: str
    signal_name: str
    signal_id: str
    payload: Json = None

    @property
    def effect_id(self) -> str:
        """Stable name of this command."""
        return join("process", "signal", self.process_id, f"signal.{self.signal_name}", self.signal_id)


ProcessCommand: TypeAlias = (
    StartProcess | ListProcesses | TransferProcesses | DeleteSessionEdges | AwaitProcess | CancelProcess | SignalProcess
)


class ProcessStarted(Value, frozen=True, tag="start", tag_field="op"):
    """The record of the started process."""

    record: Json


class ProcessesListed(Value, frozen=True, tag="list", tag_field="op"):
    """The visible processes."""

    entries: tuple[Json, ...] = ()


class ProcessesTransferred(Value, frozen=True, tag="transfer", tag_field="op"):
    """The transfer is done. Carries no data."""


class SessionEdgesDeleted(Value, frozen=True, tag="delete_session", tag_field="op"):
    """A report of the removed visibility entries."""

    report: Json = None


class ProcessAwaited(Value, frozen=True, tag="await", tag_field="op"):
    """The output of the ended process."""

    output: Json


class ProcessCancelled(Value, frozen=True, tag="cancel", tag_field="op"):
    """The record after the cancel request."""

    record: Json


class ProcessSignalled(Value, frozen=True, tag="signal", tag_field="op"):
    """The appended event."""

    event: Json


ProcessOutcome: TypeAlias = (
    ProcessStarted
    | ProcessesListed
    | ProcessesTransferred
    | SessionEdgesDeleted
    | ProcessAwaited
    | ProcessCancelled
    | ProcessSignalled
)
