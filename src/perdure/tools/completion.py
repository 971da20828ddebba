"""External completion: the tool hands out a key, and the call ends with the resolution of that key."""

from __future__ import annotations

from typing import Literal, Protocol

from perdure.errors import Code, Error
from perdure.ids import CallId
from perdure.tools.durations import duration_ms
from perdure.tools.errors import ToolError
from perdure.vocab.outcomes import PendingCompletion
from perdure.vocab.promises import EventKey


class Completion(Protocol):
    """The completion key of one attempt."""

    @property
    def key(self) -> EventKey | None:
        """The key, or None if the tool did not request it."""
        ...

    async def make(self, deadline_ms: int | None) -> EventKey:
        """Create and durably record the key of this attempt. After a crash the call is pending, not in doubt."""
        ...


class CompletionOps:
    """The part of a tool's context for calls that complete externally."""

    call_id: CallId
    tool_name: str

    def _completion(self) -> Completion | None:
        raise NotImplementedError

    async def completion_key(self, *, deadline: float | str | None = None) -> EventKey:
        """Return the key that completes this call externally: `rt.resolve(key, value)`. Repeated calls return the same
        key.

        Hand the key out, then `return ctx.pending()`. The key belongs to this attempt. From now on a crash leaves the
        call pending; `deadline` limits how long.

        Raises:
            Error: `tool_completion_key_missing_call_id`, `tool_completion_state_poisoned` once the call is over.
            ToolError: `pending_tool_not_supported_here` where nothing can wait for it.
        """
        if not self.call_id.strip():
            raise Error(Code.TOOL_COMPLETION_KEY_MISSING_CALL_ID, "a completion key needs the id of a tool call")
        if (completion := self._completion()) is None:
            message = f"the tool {self.tool_name} cannot be completed externally here"
            raise ToolError(message, code="pending_tool_not_supported_here")
        limit = None if deadline is None else duration_ms(deadline, what="the deadline of a completion key")
        return await completion.make(limit)

    def pending(
        self,
        *,
        deadline: float | str | None = None,
        on_timeout: Literal["error_as_result", "fail_turn"] = "error_as_result",
        on_cancel: Literal["cancel_external_work", "ignore"] = "cancel_external_work",
    ) -> PendingCompletion:
        """Return the value by which a tool leaves its completion to the holder of the key.

        After `deadline`, the model gets an error, or (`fail_turn`) the turn is stopped. If the turn is cancelled,
        `rt.peek(key)` is `Cancelled` at once, or (`ignore`) only after a resolution arrives.
        """
        limit = None if deadline is None else duration_ms(deadline, what="the deadline of a pending call")
        return PendingCompletion(deadline_ms=limit, on_timeout=on_timeout, on_cancel=on_cancel)
