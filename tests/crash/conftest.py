"""Where the killed processes keep their store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.scenarios import URL


@pytest.fixture
def on_postgres(tmp_path: Path, postgres_url: str) -> Path:
    """A folder whose store is in a database."""
    (tmp_path / URL).write_text(postgres_url)
    return tmp_path


@pytest.fixture(params=["sqlite", "postgres"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder for each kind of store that several processes can share."""
    return tmp_path if request.param == "sqlite" else request.getfixturevalue("on_postgres")
