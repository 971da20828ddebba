"""Regular expressions matched in time linear in the text, by pydantic's engine, which never backtracks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache


@lru_cache(maxsize=512)
def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that tests whether a text contains a match.

    Raises:
        ValueError: the engine does not support this pattern: no look-around, no back-reference.
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python
    except SchemaError:
        raise ValueError("the pattern needs more than linear time (no look-around, no back-reference)") from None
