from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.ids import WorkerId
from perdure.store.sqlite import SqliteStore
from tests.unit.store.parties import opened

ANN = WorkerId("ann")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    """An open store in which ann is registered."""
    store = await opened(path, ANN)
    yield store
    await store.close()
