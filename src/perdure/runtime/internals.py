"""The one door from public objects to the internals behind them, for the command line and the test kit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore
    from perdure.runtime.runtime import Runtime
    from perdure.runtime.sessions.ref import SessionRef
    from perdure.runtime.sessions.session import Session


def core_of(runtime: Runtime) -> RuntimeCore:
    """Return the core of a runtime."""
    return runtime._core  # pyright: ignore[reportPrivateUsage] - users see no internals


def ref_of(session: Session) -> SessionRef:
    """Return the internal address of a session."""
    return session._ref  # pyright: ignore[reportPrivateUsage] - users see no internals
