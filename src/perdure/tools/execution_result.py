"""What a tool may return to say more than a value: pictures, a failure, a connection that somebody must set up first.

An ordinary return value is a success and an exception a failure, so most tools need none of this. What a caller of a
registry gets is a `ToolCallResult`, made by `into_tool_result`.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from perdure.codec import Json

INTERNAL_ERROR: Final = "An internal error occurred while executing the tool"
IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MAX_CAUSES = 32

_RAW = "_raw_output"
_SCALAR = "_raw_output_scalar"

logger = logging.getLogger("perdure.tools")


@dataclass(frozen=True, slots=True)
class ToolResultImage:
    """A picture in a result: PNG, JPEG, GIF or WebP."""

    base64: str
    media_type: str

    def data(self) -> bytes:
        """The bytes.

        Raises:
            ValueError: the text is not base64, or the media type is not one of the four.
        """
        if self.media_type not in IMAGE_TYPES:
            raise ValueError(f"{self.media_type!r} is not a picture a model can be shown")
        return b64decode(self.base64, validate=True)

    def to_data_url(self) -> str:
        """The picture as a URL."""
        return f"data:{self.media_type};base64,{self.base64}"


class ToolInternalError(Exception):
    """A failure that is none of the model's business: logged with its causes, told as "an internal error"."""

    message: str = ""
    source: BaseException | None = None

    def __init__(self, error: BaseException | str) -> None:
        self.message = _said(error) if isinstance(error, BaseException) else error
        super().__init__(self.message)
        self.source = error if isinstance(error, BaseException) else None

    @staticmethod
    def from_message(message: str) -> ToolInternalError:
        """One without a cause."""
        return ToolInternalError(message)

    def chain_string(self) -> str:
        """The message and those of its causes, once each where they repeat."""
        return chain_string(self.message, self.source)


def chain_string(message: str, cause: BaseException | None) -> str:
    """A message and those of its causes, joined by `: `; one that only repeats the one before it is left out."""
    parts = [message]
    for _ in range(MAX_CAUSES):
        if cause is None:
            break
        if (said := _said(cause)) != parts[-1]:
            parts.append(said)
        cause = _cause_of(cause)
    return ": ".join(parts)


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception that cannot be shown is still a cause
        return type(error).__name__


def _cause_of(error: BaseException) -> BaseException | None:
    if isinstance(error, ToolInternalError) and error.source is not None:
        return error.source
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@dataclass(frozen=True, slots=True)
class ToolCallResult:
    """What came of one call. `raw_output` is for programs: neither stored nor shown to a model."""

    tool_call_id: str
    result: Json = None
    images: tuple[ToolResultImage, ...] | None = None
    error: str | None = None
    connection_required: str | None = None
    raw_output: str | None = None


class ToolExecutionResult:
    """How a call ended: one of five. Make one with the functions below, and return it from a tool."""

    __slots__ = ()

    @staticmethod
    def success(value: object = None) -> ToolExecutionResult:
        """It worked."""
        return Succeeded(value)

    @staticmethod
    def success_with_raw_output(value: object, raw_output: str) -> ToolExecutionResult:
        """It worked; `value` is for the model, `raw_output` is the whole of it, for programs."""
        if not isinstance(raw_output, str):  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a tool gives
            return Succeeded(value)
        if isinstance(value, dict):
            return Succeeded({**cast("dict[str, object]", value), _RAW: raw_output})
        return Succeeded({_SCALAR: value, _RAW: raw_output})

    @staticmethod
    def success_with_images(value: object, images: Sequence[ToolResultImage]) -> ToolExecutionResult:
        """It worked, and there is something to see."""
        return SucceededWithImages(value, tuple(images))

    @staticmethod
    def tool_error(message: str) -> ToolExecutionResult:
        """It failed, and the model should read why."""
        return FailedVisibly(message)

    @staticmethod
    def internal_error(error: BaseException) -> ToolExecutionResult:
        """It failed, for reasons that are only logged."""
        return FailedInternally(error if isinstance(error, ToolInternalError) else ToolInternalError(error))

    @staticmethod
    def internal_error_msg(message: str) -> ToolExecutionResult:
        """It failed, for a reason that is only logged."""
        return FailedInternally(ToolInternalError.from_message(message))

    @staticmethod
    def connection_required(provider: str) -> ToolExecutionResult:
        """It needs an account at a provider that nobody has connected yet."""
        return ConnectionRequired(provider)

    @property
    def is_success(self) -> bool:
        """Whether it worked, with or without pictures."""
        return isinstance(self, Succeeded | SucceededWithImages)

    @property
    def is_error(self) -> bool:
        """Whether it failed, visibly or internally."""
        return isinstance(self, FailedVisibly | FailedInternally)

    @property
    def is_connection_required(self) -> bool:
        """Whether it waits for a connection, which is neither success nor failure."""
        return isinstance(self, ConnectionRequired)

    def into_tool_result(self, tool_call_id: str, tool_name: str) -> ToolCallResult:
        """The result of a call, as its caller gets it. An internal error is logged here, and hidden there."""
        match self:
            case Succeeded(value=value):
                shown, raw = without_raw_output(value)
                return ToolCallResult(tool_call_id, result=shown, raw_output=raw)
            case SucceededWithImages(value=value, images=images):
                return ToolCallResult(tool_call_id, result=value, images=images or None)
            case FailedVisibly(message=message):
                return ToolCallResult(tool_call_id, result={"error": message}, error=message)
            case FailedInternally(error=error):
                log_internal(error, tool_name, {"call": tool_call_id, "tool": tool_name})
                return ToolCallResult(tool_call_id, result={"error": INTERNAL_ERROR}, error=INTERNAL_ERROR)
            case ConnectionRequired(provider=provider):
                result: Json = {"connection_required": provider}
                return ToolCallResult(tool_call_id, result=result, connection_required=provider)
            case _:
                raise TypeError(f"{type(self).__name__} is not one of the five")


@dataclass(frozen=True, slots=True)
class Succeeded(ToolExecutionResult):
    """It worked."""

    value: Json = None


@dataclass(frozen=True, slots=True)
class SucceededWithImages(ToolExecutionResult):
    """It worked, and there is something to see."""

    value: Json = None
    images: tuple[ToolResultImage, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedVisibly(ToolExecutionResult):
    """It failed, and the model should read why."""

    message: str


@dataclass(frozen=True, slots=True)
class FailedInternally(ToolExecutionResult):
    """It failed, for reasons that are only logged."""

    error: ToolInternalError


@dataclass(frozen=True, slots=True)
class ConnectionRequired(ToolExecutionResult):
    """It needs an account that nobody has connected yet."""

    provider: str


def without_raw_output(value: Json) -> tuple[Json, str | None]:
    """A success without its sidecar, and the sidecar.

    A value that is no object travels inside one; it is unwrapped only if a raw output was there and nothing else is,
    so that a tool's own key of that name is left alone.
    """
    if not isinstance(value, dict):
        return value, None
    shown = dict(cast("dict[str, Json]", value))
    raw = shown.pop(_RAW, None)
    if not isinstance(raw, str):
        return shown, None
    return (shown[_SCALAR] if shown.keys() == {_SCALAR} else shown), raw


def log_internal(error: ToolInternalError, tool: str, where: dict[str, object]) -> None:
    """Log what the model must not see, with all its causes."""
    logger.error(
        "the tool %s failed internally (hidden from the model): %s",
        tool,
        error.chain_string(),
        exc_info=error.source,
        extra=where,
    )
