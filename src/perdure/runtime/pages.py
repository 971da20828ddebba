"""The check of the page size of all lists."""

from __future__ import annotations

from perdure.errors import Code, Error

LONGEST_PAGE = 1_000_000


def check_limit(limit: object) -> int:
    """Return a valid page size.

    Raises:
        Error: `invalid_argument`.
    """
    if type(limit) is not int or not 1 <= limit <= LONGEST_PAGE:
        raise Error(
            Code.INVALID_ARGUMENT,
            f"limit must be an integer from 1 to {LONGEST_PAGE}, not {limit!r}",
            hint="read one page, and continue after its last item",
        )
    return limit
