"""Options shared by several commands, with one wording for all."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

Db = Annotated[
    str,
    Option(
        "--db",
        metavar="PATH",
        help="Store: a file, or postgresql://… Default: PERDURE_DB, then ./.perdure/dev.db.",
        show_default=False,
    ),
]
Terse = Annotated[bool, Option("--quiet", "-q", help="Print only results and problems.")]
Json = Annotated[bool, Option("--json", help="Print one JSON object per line.")]
Limit = Annotated[int, Option("--limit", "-n", metavar="N", min=1, help="List at most this many.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print ids only.")]
By = Annotated[
    str, Option("--by", metavar="NAME", help="Name to record. Default: your login name.", show_default=False)
]
Approver = Annotated[
    str, Option("--by", metavar="NAME", help="Name of the approver. Default: your login name.", show_default=False)
]
SessionName = Annotated[str, Argument(metavar="SESSION", help="A session id, or a unique prefix.", show_default=False)]


def who(by: str) -> str:
    """Return the name to record: the given one, or the login name."""
    from getpass import getuser

    try:
        return by or getuser()
    except (OSError, KeyError):
        return "cli"


def approver(by: str) -> str:
    """Return the name of the approver: the given one, or the login name.

    Raises:
        Error: `invalid_argument` without either.
    """
    from getpass import getuser

    from perdure.errors import Code, Error

    try:
        return by or getuser()
    except (OSError, KeyError, ImportError):
        raise Error(
            Code.INVALID_ARGUMENT,
            "a decision needs a name",
            because="the operating system has no name for this user",
            hint="--by NAME",
        ) from None


def moment(when: str, now_ms: int) -> int:
    """Return the time of `--since` in milliseconds: an age such as 7d, or a day.

    Raises:
        Error: `invalid_argument`.
    """
    from datetime import UTC, datetime

    from perdure.errors import Code, Error
    from perdure.tools.durations import to_ms

    if (ago := to_ms(when)) is not None:
        return now_ms - ago
    try:
        day = datetime.fromisoformat(when)
    except ValueError:
        raise Error(
            Code.INVALID_ARGUMENT,
            f"invalid time {when!r:.40}",
            because="expected a duration or a date",
            hint="--since 7d, --since 2026-11-01",
        ) from None
    return int((day if day.tzinfo else day.replace(tzinfo=UTC)).timestamp() * 1000)
