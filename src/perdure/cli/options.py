"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

Db = Annotated[
    str,
    Option(
        "--db",
        metavar="PATH",
        help="The store: a file, or postgresql://… Default: PERDURE_STORE__URL, then ./.perdure/dev.db.",
        show_default=False,
    ),
]
Json = Annotated[bool, Option("--json", help="One JSON object per line, for programs.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Only the essential.")]
SessionName = Annotated[
    str, Argument(metavar="SESSION", help="A session id, or the beginning of one.", show_default=False)
]


def who(by: str) -> str:
    """Who does it: as said, or as logged in."""
    from getpass import getuser

    try:
        return by or getuser()
    except (OSError, KeyError):
        return "cli"
