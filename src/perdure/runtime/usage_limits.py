"""Limits of the model usage of an agent's turns and sessions."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from perdure.errors import Code, Error
from perdure.vocab.usage import NANO

Usd = float | str | Decimal | None


@dataclass(frozen=True, slots=True)
class UsageLimits:
    """Limits of the model usage of one turn, and of its session with all sub-agents. None means no limit.

    Perdure checks them before each model call. If the price of a call is unknown, a limit in US dollars ends the turn
    before the next call.

    Raises:
        Error: `agent_invalid`.
    """

    turn_tokens: int | None = None
    turn_usd: Usd = None
    session_tokens: int | None = None
    session_usd: Usd = None

    def __post_init__(self) -> None:
        for name in ("turn_tokens", "session_tokens"):
            _check_tokens(name, getattr(self, name))
        for name in ("turn_usd", "session_usd"):
            nano_of(name, getattr(self, name))


def _check_tokens(name: str, given: object) -> None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
        raise Error(Code.AGENT_INVALID, f"{name} must be an integer >= 1, not {given!r:.40}")


def nano_of(name: str, given: object) -> int | None:
    """Convert US dollars to billionths.

    Raises:
        Error: `agent_invalid`.
    """
    if given is None:
        return None
    try:
        amount = Decimal(str(given)) if isinstance(given, int | float | str | Decimal) else Decimal("nan")
    except InvalidOperation:
        amount = Decimal("nan")
    if isinstance(given, bool) or not amount.is_finite() or amount <= 0:
        raise Error(Code.AGENT_INVALID, f"{name} must be an amount of US dollars, such as 0.50, not {given!r:.40}")
    return round(amount * NANO)
