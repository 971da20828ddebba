"""Whether a turn may spend more: what it, its session and its sub-agents have spent, against its limits.

Law: it is asked before each model call, and a limit in money is kept by not going on where a price is unknown.
"""

from __future__ import annotations

from perdure.vocab.records import Limits
from perdure.vocab.usage import NANO, Usage


def spent_up(limits: Limits, turn: Usage, session: Usage) -> str:
    """Which limit stands in the way of the next model call; empty if none does. `session` includes the turn."""
    bounds = (
        ("turn", turn, limits.turn_tokens, limits.turn_cost_nano),
        ("session", session, limits.session_tokens, limits.session_cost_nano),
    )
    for what, used, tokens, cost_nano in bounds:
        if tokens is not None and used.tokens >= tokens:
            return f"the {what} has used {used.tokens} tokens of {tokens}"
        if cost_nano is None:
            continue
        if used.priced < used.calls:
            unpriced = used.calls - used.priced
            return f"the {what} has a limit in money, and the price of {unpriced} of its model calls is unknown"
        if used.cost_nano >= cost_nano:
            return f"the {what} has spent ${used.cost_nano / NANO:.6f} of ${cost_nano / NANO:.6f}"
    return ""
