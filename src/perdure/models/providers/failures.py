"""What went wrong at a provider, in our kinds: whether asking again can help, and after how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from perdure.models.protocol import ModelError
from perdure.vocab.outcomes import LlmError, LlmErrorKind
from perdure.vocab.usage import Usage

if TYPE_CHECKING:
    from pydantic_ai.exceptions import ModelAPIError

MAX_MESSAGE_CHARS = 1024
MAX_RETRY_AFTER_MS = 60_000
"""A provider that wants us to wait longer is not waited for in the middle of a turn."""

_TRANSIENT = frozenset({408, 409, 429}) | frozenset(range(500, 600)) - {501}


def failure_of(problem: Exception, *, secret: str | None = None, spent: Usage = Usage()) -> ModelError | None:
    """The error of ours that an exception of Pydantic AI or of the connection means; None if it is neither."""
    import httpx2
    from pydantic_ai import exceptions as theirs

    match problem:
        case theirs.ModelAPIError():
            error = _of_provider(problem)
        case theirs.SuspendedResponseExpired():
            error = LlmError(kind="job_lost", message=problem.message, retryable=True)
        case theirs.ContentFilterError():
            error = LlmError(kind="refused", message=problem.message)
        case theirs.UnexpectedModelBehavior():
            error = LlmError(kind="stream_cut", message=problem.message, retryable=True)
        case theirs.UserError() | NotImplementedError():
            error = LlmError(kind="invalid", message=str(problem))
        case RuntimeError() if str(problem).startswith("Unsupported") or str(problem).endswith("not supported"):
            # of a kind of file, or of call, for want of a class
            error = LlmError(kind="invalid", message=str(problem))
        case httpx2.TimeoutException():
            error = LlmError(kind="stall", message=_named(problem), retryable=True)
        case httpx2.TransportError():
            error = LlmError(kind="stream_cut", message=_named(problem), retryable=True)
        case _:
            return None
    message = error.message.replace(secret, "[key]") if secret else error.message
    return ModelError(
        LlmError(
            kind=error.kind,
            message=message[:MAX_MESSAGE_CHARS],
            retryable=error.retryable,
            retry_after_ms=error.retry_after_ms,
            status=error.status,
        ),
        spent,
    )


def of_the_line(problem: Exception) -> bool:
    """Whether we could not ask, rather than that we got an answer: what the provider works on by itself goes on."""
    import httpx2
    from pydantic_ai import exceptions as theirs

    match problem:
        case theirs.ModelHTTPError():
            return not problem.in_stream
        case theirs.ModelConnectionError() | theirs.ModelTimeoutError() | theirs.ModelRequestTimeout():
            return True
        case _:
            return isinstance(problem, httpx2.TransportError)


def _of_provider(problem: ModelAPIError) -> LlmError:
    from pydantic_ai.exceptions import ModelHTTPError

    status = problem.status_code if isinstance(problem, ModelHTTPError) else None
    after = None if problem.retry_after is None else max(0, round(problem.retry_after * 1000))
    kind, retryable = _kind(problem, status)
    if retryable and after is not None and after > MAX_RETRY_AFTER_MS:
        retryable = False
    if isinstance(problem, ModelHTTPError) and problem.provider_retry_hint is False:
        retryable = False
    message = _said(problem.body) or problem.message or _named(problem)
    return LlmError(kind=kind, message=message, retryable=retryable, retry_after_ms=after, status=status)


def _kind(problem: ModelAPIError, status: int | None) -> tuple[LlmErrorKind, bool]:
    from pydantic_ai import exceptions as theirs

    match problem:
        case theirs.ModelQuotaExceededError():
            return "quota", False
        case theirs.ModelRateLimitError():
            return "rate_limit", True
        case theirs.ModelContextWindowExceededError():
            return "too_large", False
        case theirs.ModelAuthenticationError():
            return "auth", False
        case theirs.ModelTimeoutError() | theirs.ModelRequestTimeout():
            return "stall", True
        case theirs.ModelConnectionError(phase="read"):
            return "stream_cut", True
        case theirs.ModelConnectionError() | theirs.ModelUnavailableError():
            return "unavailable", True
        case theirs.ModelServerError():
            return "unavailable", status != 501
        case _:
            return _by_status(status)


def _by_status(status: int | None) -> tuple[LlmErrorKind, bool]:
    """What a status alone says. An answer without one that is not in any category was no answer we could read."""
    if status is None:
        return "stream_cut", True
    if status == 413:
        return "too_large", False
    return ("unavailable", True) if status in _TRANSIENT else ("invalid", False)


def _said(body: object) -> str:
    """The sentence in an error body, wherever the provider puts it."""
    if not isinstance(body, dict):
        return ""
    fields = {name.lower(): value for name, value in cast("dict[str, object]", body).items()}
    inner = fields.get("error")
    if isinstance(inner, dict) and (said := _said(cast("dict[str, object]", inner))):
        return said
    message = fields.get("message")
    return message if isinstance(message, str) else ""


def _named(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
