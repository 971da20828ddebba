"""TLS: a server that proves who it is, and those that cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure import Agent, Runtime
from perdure.errors import Code, Error
from perdure.models.scripted import ScriptedModel, say
from perdure.store.postgres import PostgresStore
from tests.postgres import Server
from tests.tls import Door, context_for, write_authority
from tests.unit.store.parties import RealClock


@dataclass(frozen=True)
class Guarded:
    """A server that speaks TLS, by two names; its certificate is for one of them."""

    port: int
    schema: str
    trusted: Path
    stranger: Path

    def url(self, *, host: str = "localhost", root: Path | None = None, mode: str = "verify-full") -> str:
        options = f"sslmode={mode}&sslrootcert={root or self.trusted}&schema={self.schema}"
        return f"postgresql://postgres@{host}:{self.port}/postgres?{options}"


@pytest.fixture
async def guarded(postgres: Server, postgres_url: str, tmp_path: Path) -> AsyncIterator[Guarded]:
    trusted, signer = write_authority(tmp_path, "ours")
    stranger, _ = write_authority(tmp_path, "theirs")
    context = context_for("localhost", tmp_path, signer, "ours")
    door = Door(postgres.folder / "data" / ".s.PGSQL.5432", context)
    schema = PostgresStore(postgres_url, RealClock()).address.schema
    yield Guarded(await door.open(), schema, trusted, stranger)
    await door.close()


async def refusal(url: str) -> Error:
    with pytest.raises(Error) as caught:
        await PostgresStore(url, RealClock()).open()
    return caught.value


async def test_a_turn_behind_a_certificate_that_was_checked(guarded: Guarded) -> None:
    async with Runtime(guarded.url(), agents=[Agent("a", model=ScriptedModel(say("hello")))]) as rt:
        session = await rt.session("s", agent="a")
        assert (await session.ask("hi", timeout=20)).startswith("hello")


async def test_certificate_of_another_authority_is_refused(guarded: Guarded) -> None:
    error = await refusal(guarded.url(root=guarded.stranger))
    assert error.code is Code.STORE_UNAVAILABLE
    assert error.message == "the certificate of the server could not be verified"
    assert "sslrootcert" in error.hint


async def test_a_certificate_for_another_host_is_not_enough(guarded: Guarded) -> None:
    error = await refusal(guarded.url(host="127.0.0.1"))
    assert error.message == "the certificate of the server could not be verified"
    assert "127.0.0.1" in error.because
    async with Runtime(guarded.url(host="127.0.0.1", mode="verify-ca"), worker=False):
        pass


async def test_an_authority_that_cannot_be_read(guarded: Guarded, tmp_path: Path) -> None:
    error = await refusal(guarded.url(root=tmp_path / "none.crt"))
    assert error.code is Code.STORE_UNAVAILABLE
    assert "none.crt" in error.because
