"""Fixtures of all tests: a Postgres server, started on first use."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import tempfile
from collections.abc import Iterator

import pytest

from tests import watchdog
from tests.postgres import Server, faked, memory_disk

_schemas = itertools.count(1)

REPEATED = {"chaos", "compat", "crash", "e2e", "scenarios"}
"""Folders whose tests run on several stores. On Postgres they repeat what they show on SQLite, and are marked slow.

`make test` still meets Postgres: all laws of stores in `conformance`, and the Postgres tests of `unit`.
"""

if "TMPDIR" not in os.environ and (roomy := memory_disk()):  # a commit waits a thousand times as long for a disk
    os.environ["TMPDIR"] = tempfile.tempdir = str(roomy)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell: the commands would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Watch the event loops of all tests."""
    config.pluginmanager.register(watchdog)


@pytest.hookimpl(tryfirst=True)  # before the tests are selected by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the repetitions on Postgres as slow."""
    for item in items:
        folder = item.path.relative_to(config.rootpath / "tests").parts[0]
        if folder in REPEATED and isinstance(item, pytest.Function) and _on_postgres(item):
            item.add_marker(pytest.mark.slow)


def _on_postgres(item: pytest.Function) -> bool:
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "postgres" in item.fixturenames or "postgres" in parameters


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
