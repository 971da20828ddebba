"""How every stored or sent value is shaped: frozen, keyword-only, defaults left out of the JSON."""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Base of every value that is stored or sent."""
