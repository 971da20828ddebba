"""Calls that somebody outside completes: the tool hands out a key, and its end is whatever is told under it."""

from __future__ import annotations

from typing import Literal, Protocol

from perdure.errors import Code, Error
from perdure.ids import CallId
from perdure.tools.durations import duration_ms
from perdure.tools.errors import ToolError
from perdure.vocab.outcomes import PendingCompletion
from perdure.vocab.promises import AwaitEventKey


class Completion(Protocol):
    """The one completion key of one attempt."""

    @property
    def key(self) -> AwaitEventKey | None:
        """The key, if the tool asked for it."""
        ...

    async def make(self, deadline_ms: int | None) -> AwaitEventKey:
        """The key, durably recorded as this attempt's: after a crash the call is pending, not in doubt."""
        ...


class CompletionOps:
    """What a tool's context offers a call that ends outside."""

    call_id: CallId
    tool_name: str
    completion: Completion | None

    async def completion_key(self, *, deadline: float | str | None = None) -> AwaitEventKey:
        """The key under which somebody outside completes this call: `rt.resolve(key, value)`. The same key every time.

        Hand it out, then `return ctx.pending()`. It belongs to this attempt. From here on a crash leaves the call
        pending; `deadline` bounds how long.

        Raises:
            Error: `tool_completion_key_missing_call_id`, `tool_completion_state_poisoned` once the call is over.
            ToolError: `pending_tool_not_supported_here` where nothing can wait for it.
        """
        if not self.call_id.strip():
            raise Error(Code.TOOL_COMPLETION_KEY_MISSING_CALL_ID, "a completion key needs a tool call to belong to")
        if self.completion is None:
            message = f"the tool {self.tool_name} cannot be completed from outside here"
            raise ToolError(message, code="pending_tool_not_supported_here")
        limit = None if deadline is None else duration_ms(deadline, what="the deadline of a completion key")
        return await self.completion.make(limit)

    def pending(
        self,
        *,
        deadline: float | str | None = None,
        on_timeout: Literal["error_as_result", "fail_turn"] = "error_as_result",
        on_cancel: Literal["cancel_external_work", "ignore"] = "cancel_external_work",
    ) -> PendingCompletion:
        """What a tool returns to leave its end to whoever has the completion key.

        When nobody answers within `deadline`, the model gets an error, or (`fail_turn`) the turn is stopped. When the
        turn is cancelled, whoever has the key can see it at once (`rt.peek(key)` is `Cancelled`), or (`ignore`) only
        when they answer.
        """
        limit = None if deadline is None else duration_ms(deadline, what="the deadline of a pending call")
        return PendingCompletion(deadline_ms=limit, on_timeout=on_timeout, on_cancel=on_cancel)
