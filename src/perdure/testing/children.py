"""A run in a child process that SIGKILL ends."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import pickle
import signal
import traceback
from multiprocessing.context import ForkServerContext
from pathlib import Path

from perdure.errors import Code, Error
from perdure.testing.crash import Boundary, Gate, fatal
from perdure.testing.life import Home, Lived, Played, live

_GRACE_S = 20.0
WARM = [
    "perdure.testing.children",
    "perdure.testing.sweep",
    "pydantic.json_schema",
    "pydantic.main",
    "pydantic.type_adapter",
    "pytest",
]
"""Modules that every child imports, preloaded once. Missing modules are skipped."""


def in_child(played: Played, home: Home, kill_at: Boundary | None) -> Lived:
    """Run the application in a child process, which SIGKILL ends at the boundary."""
    home.trace.unlink(missing_ok=True)
    home.failure.unlink(missing_ok=True)
    child = _processes().Process(target=_child, args=(played, home.folder, kill_at))
    child.start()
    child.join(played.timeout_s + _GRACE_S)
    if child.is_alive():
        child.kill()
        child.join()
        return Lived(_passed(home), failure=f"the process timed out after {played.timeout_s + _GRACE_S:g} s")
    code = child.exitcode
    child.close()
    if kill_at and code == -signal.SIGKILL:
        return Lived(_passed(home), died=True)
    if code == 0:
        return Lived(_passed(home))
    said = home.failure.read_text() if home.failure.exists() else ""
    return Lived(_passed(home), failure=said or f"the process exited with {code}")


def check_portable(played: Played) -> None:
    """Check that a child process can import the application.

    Raises:
        Error: `invalid_argument` if it cannot.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        raise Error(Code.INVALID_ARGUMENT, "this platform has no SIGKILL", hint='use mode="memory" or mode="sqlite"')
    try:
        pickle.dumps((played.app, played.script))
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise Error(
            Code.INVALID_ARGUMENT,
            'mode="kill" needs an app and a script that a child process can import',
            because=str(problem),
            hint="define both at the top level of a module, not inside a test",
        ) from None


@functools.cache
def _processes() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(WARM)
    return context


def _child(played: Played, folder: Path, kill_at: Boundary | None) -> None:
    home = Home(folder)
    gate = Gate.at(kill_at, fatal(kill_at, home.trace))
    try:
        asyncio.run(live(played, home, gate, home.store()))
    except Exception:  # noqa: BLE001 - the parent reports it
        home.failure.write_text(traceback.format_exc())
        raise SystemExit(1) from None


def _passed(home: Home) -> tuple[Boundary, ...]:
    if not home.trace.exists():
        return ()
    return tuple(Boundary.parse(line) for line in home.trace.read_text().splitlines())
