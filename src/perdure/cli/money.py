"""Printed form of money and token counts. An unknown price is never printed as zero."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.vocab.usage import Usage

_NANO = 1_000_000_000


def cost(usage: Usage) -> str:
    """Return a cost as text: `$0.0041`, `≥ $0.0041` if some prices are unknown, or `unknown`."""
    if not usage.calls:
        return "-"
    if not usage.priced:
        return "unknown"
    return f"{'' if usage.priced == usage.calls else '≥ '}{dollars(Decimal(usage.cost_nano) / _NANO)}"


def dollars(amount: Decimal) -> str:
    """Format dollars and cents; below one dollar, keep two significant digits."""
    if amount >= 1 or not amount:
        return f"${amount:,.2f}"
    return f"${amount:.{1 - amount.adjusted()}f}"


def tokens(number: int) -> str:
    """Format a token count, `1,204`; zero is a dash."""
    return f"{number:,}" if number else "-"
