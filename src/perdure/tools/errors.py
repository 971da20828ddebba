"""What a tool may raise to say how its call ended. Any other exception stays between us and the log."""

from __future__ import annotations

import logging
import math
from typing import cast

logger = logging.getLogger("perdure.tools")

MAX_MESSAGE_CHARS = 16_384


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


# --- reading what was raised --------------------------------------------------------------------------------------


def foremost(error: BaseException) -> BaseException:
    """What a group of exceptions says about the call: doubt of any part is doubt; one exception stands for itself."""
    leaves = _leaves(error)
    doubt = next((leaf for leaf in leaves if isinstance(leaf, OutcomeUnknown)), None)
    return doubt or (leaves[0] if len(leaves) == 1 else error)


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [leaf for one in group.exceptions for leaf in _leaves(one)]


def message_of(error: ToolError | OutcomeUnknown) -> str:
    """What it says, as text that can be stored."""
    return text_of(error.message) or text_of(error)


def text_of(said: object) -> str:
    """Anything as text: tools raise with whatever they have, not always text, not always valid, not always short."""
    try:
        text = str(said).encode("utf-8", "replace").decode()
    except Exception:
        logger.exception("what a tool raised cannot be shown")
        text = type(said).__name__
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}…"


def whole_ms(ms: object) -> int | None:
    """Whole milliseconds: a fraction would be written to the log and refused when it is read."""
    return max(0, round(ms)) if isinstance(ms, int | float) and math.isfinite(ms) else None
