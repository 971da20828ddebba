"""Money and tokens as people read them. A price that is not known is never shown as none."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.vocab.usage import Usage

_NANO = 1_000_000_000


def cost(usage: Usage) -> str:
    """What something cost: `$0.0041`; `≥ $0.0041` if that is not all of it; `unknown`."""
    if not usage.calls:
        return "-"
    if not usage.priced:
        return "unknown"
    return f"{'' if usage.priced == usage.calls else '≥ '}{dollars(Decimal(usage.cost_nano) / _NANO)}"


def dollars(amount: Decimal) -> str:
    """Dollars and cents; of less than a dollar, two digits that say something."""
    if amount >= 1 or not amount:
        return f"${amount:,.2f}"
    return f"${amount:.{1 - amount.adjusted()}f}"


def tokens(number: int) -> str:
    """`1,204`; nothing is a dash."""
    return f"{number:,}" if number else "-"
