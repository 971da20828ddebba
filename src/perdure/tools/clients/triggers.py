"""`ctx.triggers`: saying that something happened, and asking for a process whenever it does."""

from __future__ import annotations

from typing import Protocol

from perdure.codec import Json
from perdure.vocab.processes import SessionScope
from perdure.vocab.wire import Value


class TriggerReport(Value, frozen=True):
    """That something happened is durable. It stands in the outcome of the call that said so (`triggers`), and a call
    that is answered from the log says nothing again. `duplicate`: it was known before under this key."""

    occurrence_id: str
    source_type: str
    source: str
    idempotency_key: str
    duplicate: bool = False


class TriggerClient(Protocol):
    """The triggers of the session's tenant."""

    @property
    def registration_originator(self) -> SessionScope | None:
        """To whom a subscription belongs that is made here: whom the running process belongs to, else this session."""
        ...

    @property
    def registration_wake_target(self) -> SessionScope | None:
        """Whom its processes tell what they have to tell: whom the running process tells, else this session."""
        ...

    async def emit(
        self, source_type: str, payload: Json = None, *, key: str | None = None, source: str = "", session: str = ""
    ) -> TriggerReport:
        """Something happened; durable when this returns.

        Without a `key` it has one that follows from the call, so that an attempt that runs again says the same thing
        again, and not a second one; what it says must then be equal.

        Raises:
            ToolError: `trigger_conflict` for another payload under the same key, `trigger_invalid` for one that does
                not fit what was declared, `input_too_large`, `invalid_json`, `invalid_id`.
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
        """A process (a `@process` function, or its name) for everything that happens at a source from now on, in the
        name of whom this runs for. The id of the subscription; the same one again is the same.

        Raises:
            ToolError: `trigger_revision_conflict` for another one under that key, `trigger_limit`.
        """
        ...
