"""Addresses of stores: URLs and bare paths, the same for the runtime and for every command."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from perdure import Code, Error, Runtime
from perdure.cli.store_locator import store_url, url_of
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.runtime.stores import address_of, schema_of, store_for
from perdure.store.sqlite.store import SqliteStore


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("app.db", "sqlite:///app.db"),
        ("store", "sqlite:///store"),
        ("data/app.db", "sqlite:///data/app.db"),
        ("/var/app.db", "sqlite:////var/app.db"),
        ("./memory", "sqlite:///./memory"),
        (Path("data") / "app.db", "sqlite:///data/app.db"),
        ("sqlite:///app.db", "sqlite:///app.db"),
        ("memory://", "memory://"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
    ],
)
def test_address_is_a_url_or_a_path(given: str | Path, address: str) -> None:
    assert address_of(given) == address


@pytest.mark.parametrize("given", ["memory", ":memory:", "sqlite", "postgres", "sqlite:app.db", "postgresql:db"])
def test_address_like_a_broken_url_is_refused(given: str) -> None:
    for opens in (address_of, Runtime, url_of, store_url):
        with pytest.raises(Error) as caught:
            opens(given)
        assert caught.value.code is Code.STORE_URL_INVALID
        assert "://" in caught.value.hint


def test_address_shows_no_password() -> None:
    with pytest.raises(Error) as caught:
        address_of("postgresql:user:s3cret@host/db")
    assert "s3cret" not in str(caught.value)


async def test_runtime_opens_the_file_that_a_command_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given in ("app.db", tmp_path / "app.db"):
        async with Runtime(given, worker=False) as rt:
            store = cast(SqliteStore, core_of(rt).store)  # it has a wrapper
            assert store.path.resolve() == tmp_path / "app.db"
    assert url_of("app.db") == store_url("app.db") == "sqlite:///app.db"


def test_variable_takes_a_path_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DB", "elsewhere.db")
    store = cast(SqliteStore, core_of(Runtime(worker=False)).store)  # it has a wrapper
    assert store.path.name == "elsewhere.db"


URLS = [
    "postgresql+asyncpg://u:PWCANARY@127.0.0.1/db",
    "mysql://127.0.0.1/db?password=PWCANARY",
    "redis://:PWCANARY@host",
    "postgresql:u:PWCANARY",
]


@pytest.mark.parametrize("url", URLS)
def test_s21_password_is_in_no_error_of_an_unknown_scheme(url: str) -> None:
    with pytest.raises(Error) as caught:
        store_for(url, SystemClock(), lease_ms=1_000)
    assert "PWCANARY" not in f"{caught.value} {caught.value.details}"


@pytest.mark.parametrize("url", URLS)
async def test_s21_password_is_in_no_error_about_a_schema(url: str) -> None:
    with pytest.raises(Error) as caught:
        await schema_of(url, SystemClock())
    assert "PWCANARY" not in f"{caught.value} {caught.value.details}"
