"""The command line of the next release: `python -m tests.compat.next_command db migrate --db URL`."""

from __future__ import annotations

import sys

from perdure.store import release
from tests.compat.steps import next_release

if __name__ == "__main__":
    release.__dict__["THIS"] = next_release(sys.argv[sys.argv.index("--db") + 1])
    from perdure.cli import main  # whatever opens stores is loaded after that

    main()
