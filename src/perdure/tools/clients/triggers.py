"""The client `ctx.triggers`: emits occurrences and subscribes processes to them."""

from __future__ import annotations

from typing import Protocol

from perdure.codec import Json
from perdure.vocab.processes import SessionScope
from perdure.vocab.wire import Value


class TriggerReport(Value, frozen=True):
    """The confirmation of a durable occurrence.

    It is part of the outcome of the emitting call (`triggers`); a replayed call emits nothing. `duplicate`: the key was
    known before.
    """

    occurrence_id: str
    source_type: str
    source: str
    idempotency_key: str
    duplicate: bool = False


class TriggerClient(Protocol):
    """The triggers of the session's tenant."""

    @property
    def registration_originator(self) -> SessionScope | None:
        """The owner of new subscriptions: the owner of the running process, else this session."""
        ...

    @property
    def registration_wake_target(self) -> SessionScope | None:
        """The wake target of a subscription's processes: that of the running process, else this session."""
        ...

    async def emit(
        self, source_type: str, payload: Json = None, *, key: str | None = None, source: str = "", session: str = ""
    ) -> TriggerReport:
        """Emit an occurrence; durable on return.

        The default `key` is derived from the call, so a repeated attempt emits nothing new; its payload must then be
        equal.

        Raises:
            ToolError: `trigger_conflict` for another payload under the same key, `trigger_invalid` for a payload that
                does not match the declaration, `input_too_large`, `invalid_json`, `invalid_id`.
        """
        ...

    async def subscribe(
        self,
        source_type: str,
        process: object,
        *,
        key: str,
        source: str = "",
        args: tuple[object, ...] | None = None,
    ) -> str:
        """Subscribe a process (a `@process` function, or its name) to future occurrences of a source, and return the
        id.

        The subscription belongs to `registration_originator`. An equal subscription has the same id.

        Raises:
            ToolError: `trigger_revision_conflict` for a different subscription under that key, `trigger_limit`.
        """
        ...
