"""Spending limits of a turn: the usage of the turn, its session and its sub-agents against the limits.

Law: the limits are checked before each model call. A cost limit also stops the turn if the price of a call is unknown.
"""

from __future__ import annotations

from perdure.vocab.records import Limits
from perdure.vocab.usage import NANO, Usage


def spent_up(limits: Limits, turn: Usage, session: Usage) -> str:
    """Return the limit that forbids the next model call, or an empty string. `session` includes the turn."""
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
