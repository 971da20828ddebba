"""What tests of all kinds share: a Postgres server, started when the first test asks for it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from tests.postgres import Server, faked

_schemas = itertools.count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One server for all tests of this process."""
    server = Server()
    faked(server)
    yield server
    server.remove()


@pytest.fixture
def postgres_url(postgres: Server) -> Iterator[str]:
    """A store of its own for one test: a new schema."""
    schema = f"test_{next(_schemas)}"
    yield postgres.url(schema=schema)
    asyncio.run(postgres.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE"))
