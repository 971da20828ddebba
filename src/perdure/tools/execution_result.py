"""Return values that carry more than a value: images, a failure, a missing connection.

An ordinary return value is a success and an exception a failure, so most tools need none of these. Callers of a
registry get a `ToolCallResult`, made by `into_tool_result`.
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
class Image:
    """An image in a result: PNG, JPEG, GIF or WebP."""

    base64: str
    media_type: str

    def data(self) -> bytes:
        """Return the decoded bytes.

        Raises:
            ValueError: the text is not base64, or the media type is not one of the four.
        """
        if self.media_type not in IMAGE_TYPES:
            raise ValueError(f"{self.media_type!r} is not a supported image type")
        return b64decode(self.base64, validate=True)

    def to_data_url(self) -> str:
        """Return the image as a data URL."""
        return f"data:{self.media_type};base64,{self.base64}"


class ToolInternalError(Exception):
    """A failure hidden from the model: logged with its causes, reported as "an internal error"."""

    message: str = ""
    source: BaseException | None = None

    def __init__(self, error: BaseException | str) -> None:
        self.message = _error_text(error) if isinstance(error, BaseException) else error
        super().__init__(self.message)
        self.source = error if isinstance(error, BaseException) else None

    @staticmethod
    def from_message(message: str) -> ToolInternalError:
        """Return an internal error without a cause."""
        return ToolInternalError(message)

    def chain_string(self) -> str:
        """Join the message and the messages of its causes, without repetitions."""
        return chain_string(self.message, self.source)


def chain_string(message: str, cause: BaseException | None) -> str:
    """Join a message and the messages of its causes by `: `. A repetition of the previous message is omitted."""
    parts = [message]
    for _ in range(MAX_CAUSES):
        if cause is None:
            break
        if (said := _error_text(cause)) != parts[-1]:
            parts.append(said)
        cause = _cause_of(cause)
    return ": ".join(parts)


def _error_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception without text is still a cause
        return type(error).__name__


def _cause_of(error: BaseException) -> BaseException | None:
    if isinstance(error, ToolInternalError) and error.source is not None:
        return error.source
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@dataclass(frozen=True, slots=True)
class ToolCallResult:
    """The result of one call. `raw_output` is for programs: neither stored nor shown to a model."""

    tool_call_id: str
    result: Json = None
    images: tuple[Image, ...] | None = None
    error: str | None = None
    connection_required: str | None = None
    raw_output: str | None = None


class ToolResult:
    """The outcome of a call, one of five kinds. Create one with the functions below and return it from a tool."""

    __slots__ = ()

    @staticmethod
    def success(value: object = None) -> ToolResult:
        """Return a success."""
        return ToolSucceeded(value)

    @staticmethod
    def success_with_raw_output(value: object, raw_output: str) -> ToolResult:
        """Return a success. `value` is for the model, `raw_output` the full output for programs."""
        if not isinstance(raw_output, str):  # pyright: ignore[reportUnnecessaryIsInstance] - tools pass any type
            return ToolSucceeded(value)
        if isinstance(value, dict):
            return ToolSucceeded({**cast("dict[str, object]", value), _RAW: raw_output})
        return ToolSucceeded({_SCALAR: value, _RAW: raw_output})

    @staticmethod
    def success_with_images(value: object, images: Sequence[Image]) -> ToolResult:
        """Return a success with images."""
        return SucceededWithImages(value, tuple(images))

    @staticmethod
    def tool_error(message: str) -> ToolResult:
        """Return a failure whose message the model reads."""
        return FailedVisibly(message)

    @staticmethod
    def internal_error(error: BaseException) -> ToolResult:
        """Return a failure whose reason is only logged."""
        return FailedInternally(error if isinstance(error, ToolInternalError) else ToolInternalError(error))

    @staticmethod
    def internal_error_msg(message: str) -> ToolResult:
        """Return a failure whose message is only logged."""
        return FailedInternally(ToolInternalError.from_message(message))

    @staticmethod
    def connection_required(provider: str) -> ToolResult:
        """Return a request for an account at a provider that is not connected yet."""
        return ConnectionRequired(provider)

    @property
    def is_success(self) -> bool:
        """True if the call succeeded, with or without images."""
        return isinstance(self, ToolSucceeded | SucceededWithImages)

    @property
    def is_error(self) -> bool:
        """True if the call failed, visibly or internally."""
        return isinstance(self, FailedVisibly | FailedInternally)

    @property
    def is_connection_required(self) -> bool:
        """True if the call needs a connection, which is neither success nor failure."""
        return isinstance(self, ConnectionRequired)

    def into_tool_result(self, tool_call_id: str, tool_name: str) -> ToolCallResult:
        """Convert to the result that a caller receives. An internal error is logged and hidden."""
        match self:
            case ToolSucceeded(value=value):
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
                raise TypeError(f"{type(self).__name__} is not a tool execution result")


@dataclass(frozen=True, slots=True)
class ToolSucceeded(ToolResult):
    """A success."""

    value: Json = None


@dataclass(frozen=True, slots=True)
class SucceededWithImages(ToolResult):
    """A success with images."""

    value: Json = None
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedVisibly(ToolResult):
    """A failure whose message the model reads."""

    message: str


@dataclass(frozen=True, slots=True)
class FailedInternally(ToolResult):
    """A failure whose reason is only logged."""

    error: ToolInternalError


@dataclass(frozen=True, slots=True)
class ConnectionRequired(ToolResult):
    """A request for an account that is not connected yet."""

    provider: str


def without_raw_output(value: Json) -> tuple[Json, str | None]:
    """Split a success into its value and its raw output.

    A value that is not an object is wrapped in one. It is unwrapped only if a raw output was there and nothing else is,
    so that a tool's own key of that name stays.
    """
    if not isinstance(value, dict):
        return value, None
    shown = dict(cast("dict[str, Json]", value))
    raw = shown.pop(_RAW, None)
    if not isinstance(raw, str):
        return shown, None
    return (shown[_SCALAR] if shown.keys() == {_SCALAR} else shown), raw


def log_internal(error: ToolInternalError, tool: str, where: dict[str, object]) -> None:
    """Log an error hidden from the model, with all its causes."""
    logger.error(
        "tool failed internally tool=%s error=%s",
        tool,
        error.chain_string(),
        exc_info=error.source,
        extra=where,
    )
