"""What every list of a runtime asks of its caller: how many at most."""

from __future__ import annotations

from perdure.errors import Code, Error

LONGEST_PAGE = 1_000_000


def check_limit(limit: object) -> int:
    """How many a page has at most.

    Raises:
        Error: `invalid_argument`.
    """
    if type(limit) is not int or not 1 <= limit <= LONGEST_PAGE:
        raise Error(
            Code.INVALID_ARGUMENT,
            f"limit is a number from 1 to {LONGEST_PAGE}, not {limit!r}",
            hint="take a page, and go on behind its last one",
        )
    return limit
