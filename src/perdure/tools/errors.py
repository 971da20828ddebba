"""Exceptions by which a tool reports the outcome of a call. Any other exception is hidden from the model."""

from __future__ import annotations

import logging
import math
from typing import cast

from perdure.errors import Error

logger = logging.getLogger("perdure.tools")

MAX_MESSAGE_CHARS = 16_384


class ToolError(Exception):
    """The call failed, and the model reads the message.

    `retry_safe` promises that the call had no effect, so that even a `once` tool may be retried. `code` is chosen by
    the tool; it is data, not an error code of the runtime.
    """

    # Class attributes too: a subclass may not call this constructor.
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


def tool_error_of(problem: Error) -> ToolError:
    """Return an error of the runtime as the failure that a model reads: what, because, and what to change.

    A hint that is a command is for operators, and is left out.
    """
    because = f" (because {problem.because})" if problem.because else ""
    hint = f". Hint: {problem.hint}" if problem.hint and not problem.hint.startswith("perdure ") else ""
    return ToolError(f"{problem.message}{because}{hint}", code=problem.code.value)


# --- reading exceptions -------------------------------------------------------------------------------------------


def foremost(error: BaseException) -> BaseException:
    """Reduce an exception group to the exception that decides the call. Doubt of any part wins."""
    leaves = _leaves(error)
    doubt = next((leaf for leaf in leaves if isinstance(leaf, OutcomeUnknown)), None)
    return doubt or (leaves[0] if len(leaves) == 1 else error)


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [leaf for one in group.exceptions for leaf in _leaves(one)]


def message_of(error: ToolError | OutcomeUnknown) -> str:
    """Return the error's message as text that can be stored."""
    return text_of(error.message) or text_of(error)


def text_of(said: object) -> str:
    """Convert any value to storable text of limited length. Tools raise with values of any type."""
    try:
        text = str(said).encode("utf-8", "replace").decode()
    except Exception:
        logger.exception("exception text unavailable")
        text = type(said).__name__
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}…"


def whole_ms(ms: object) -> int | None:
    """Round to whole milliseconds. The log accepts no fractions."""
    return max(0, round(ms)) if isinstance(ms, int | float) and math.isfinite(ms) else None
