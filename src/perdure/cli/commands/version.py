"""`perdure version`."""

from __future__ import annotations

from perdure.cli.options import Json


def version(json: Json = False) -> None:
    """Print the versions of perdure, Python and SQLite."""
    import platform
    import sqlite3

    from perdure.cli.screen import emit, say
    from perdure.ids import VERSION

    if json:
        emit(type="version", v=1, perdure=VERSION, python=platform.python_version(), sqlite=sqlite3.sqlite_version)
    else:
        say(f"perdure {VERSION}  (python {platform.python_version()}, sqlite {sqlite3.sqlite_version})")
