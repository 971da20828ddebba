"""Provider failures as Perdure's error kinds: whether a retry can help, and after which delay."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from perdure.models.protocol import ModelError
from perdure.vocab.outcomes import LlmError, LlmErrorKind
from perdure.vocab.usage import Usage

if TYPE_CHECKING:
    from pydantic_ai.exceptions import ModelAPIError

MAX_MESSAGE_CHARS = 1024
_MAX_CAUSES = 10
MAX_RETRY_AFTER_MS = 60_000
"""Upper bound of a provider's requested delay; a longer one ends the retries."""

_TRANSIENT = frozenset({408, 409, 429}) | frozenset(range(500, 600)) - {501}


def failure_of(problem: Exception, *, secret: str | None = None, spent: Usage = Usage()) -> ModelError | None:
    """Return the model error for an exception of Pydantic AI or of the connection, or None for any other."""
    import httpx2
    from pydantic_ai import exceptions as theirs

    match problem:
        case _ if (excess := _excess(problem)) is not None:
            error = LlmError(kind="too_large", message=excess)
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
            # unsupported files and calls, for which the library has no exception class
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


def _excess(problem: BaseException) -> str | None:
    """Return the message of a response above the limit of bytes, which the libraries report as a lost connection."""
    from perdure.services.http_bytes import ResponseTooLarge

    seen, here = 0, cast("BaseException | None", problem)
    while here is not None and seen < _MAX_CAUSES:
        if isinstance(here, ResponseTooLarge):
            return str(here)
        seen, here = seen + 1, here.__cause__ or here.__context__
    return None


def of_the_line(problem: Exception) -> bool:
    """Return True if the request failed on the way, so that the provider's background job continues."""
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
    message = _message_in(problem.body) or problem.message or _named(problem)
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
    """Return the kind for an HTTP status. Without a status and a category, the answer was unreadable."""
    if status is None:
        return "stream_cut", True
    if status == 413:
        return "too_large", False
    return ("unavailable", True) if status in _TRANSIENT else ("invalid", False)


def _message_in(body: object) -> str:
    """Return the message in an error body, at any of the usual places."""
    if not isinstance(body, dict):
        return ""
    fields = {name.lower(): value for name, value in cast("dict[str, object]", body).items()}
    inner = fields.get("error")
    if isinstance(inner, dict) and (said := _message_in(cast("dict[str, object]", inner))):
        return said
    message = fields.get("message")
    return message if isinstance(message, str) else ""


def _named(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
