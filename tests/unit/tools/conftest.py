import asyncio
from collections.abc import Callable, Iterator

import pytest

from perdure.tools import execute
from perdure.tools.threads import ToolThreads


@pytest.fixture
def threads() -> Iterator[ToolThreads]:
    pool = ToolThreads(4)
    yield pool
    assert pool.close(5000) == 0, "a thread of the test still runs"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grace that no thread of a busy machine can miss."""
    monkeypatch.setattr(execute, "GRACE_MS", 10_000)


@pytest.fixture
async def pass_deadline(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make every deadline of the loop pass now; callable from any thread, so that a tool can be sure to run by then."""
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real() + ahead)

    def jump() -> None:
        nonlocal ahead
        ahead += 3600
        loop.call_soon_threadsafe(lambda: None)

    return jump
