"""The command line, `perdure …`: commands parse, call the runtime and print. Nothing is loaded before it is used."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point of the `perdure` command."""
    args = sys.argv[1:]
    if args in (["--version"], ["-V"]):
        from perdure.ids import VERSION

        print(f"perdure {VERSION}")
        return
    from perdure.cli.app import run_app

    sys.exit(run_app(args))
