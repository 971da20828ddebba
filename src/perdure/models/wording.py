"""Fresh ids and wordings for simulated models, so that a repeated model call is always noticed."""

from __future__ import annotations

import re
import secrets

_WORDING = re.compile(r" \(wording [0-9a-f]{6}\)")


def provider_id() -> str:
    """Return a fresh call id, as a provider would mint it."""
    return f"call_{secrets.token_hex(8)}"


def reword(text: str) -> str:
    """Return the same answer in a new wording: `text (wording 3f2a1c)`."""
    return f"{text} (wording {secrets.token_hex(3)})"


def plain(text: str) -> str:
    """Remove the marks of `reword` from a text."""
    return _WORDING.sub("", text)


def pieces(text: str, count: int) -> tuple[str, ...]:
    """Cut a text into at most `count` deltas of about the same length."""
    if not text:
        return ()
    size = -(-len(text) // max(1, count))
    return tuple(text[start : start + size] for start in range(0, len(text), size))
