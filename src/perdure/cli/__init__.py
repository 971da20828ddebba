"""The `perdure` command line. Commands parse, call the runtime and print; each loads only the modules it uses."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the `perdure` command."""
    args = sys.argv[1:]
    if args in (["--version"], ["-V"]):
        from perdure.ids import VERSION

        print(f"perdure {VERSION}")
        return
    from perdure.cli.app import run_app

    sys.exit(run_app(args))
