"""What a tool may raise to say how its call ended. Any other exception stays between us and the log."""

from __future__ import annotations


class ToolError(Exception):
    """The call failed, and the model should read why.

    `retry_safe` promises that nothing happened, so that the call may be made again, even that of a `once` tool.
    `code` is the tool's own; it is data, not one of ours.
    """

    # Of the class as well: a subclass may forget to call this constructor, in the very moment something fails.
    message: str = ""
    code: str = "tool_error"
    retry_safe: bool = False
    retry_after_ms: int | None = None

    def __init__(
        self,
        message: str,
        *,
        code: str = "tool_error",
        retry_safe: bool = False,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.retry_safe = retry_safe
        self.retry_after_ms = retry_after_ms


class OutcomeUnknown(Exception):
    """The call may or may not have taken effect: a lost connection after sending, a 502 from a payment provider."""

    message: str = ""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message
