"""Set-ups that cannot work answer clearly: a stable code, what, because, and what to do. Never the password."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from perdure.errors import Code, Error
from perdure.ids import WorkerId
from perdure.store.postgres import PostgresStore
from perdure.store.postgres.address import parse
from perdure.store.postgres.driver import dial
from perdure.store.postgres.failures import failure
from perdure.store.postgres.schema import migrations
from tests.postgres import Server
from tests.unit.store.parties import RealClock, entry, owned, plan

ANN = WorkerId("ann")


async def refusal(url: str) -> Error:
    """Why a store cannot be opened."""
    store = PostgresStore(url, RealClock())
    with pytest.raises(Error) as caught:
        await store.open()
    await store.close()
    assert caught.value.hint
    assert "hunter2" not in repr((caught.value, caught.value.details, caught.value.because))
    return caught.value


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server with few connections, which asks some users for a password."""
    server = Server({"max_connections": "9", "superuser_reserved_connections": "3"})
    server.hba("local all guest scram-sha-256", "local all nobody reject")
    yield server
    server.remove()


@pytest.fixture
async def roles(guarded: Server) -> AsyncIterator[Server]:
    """Users: guest with a password, clerk without any rights."""
    await guarded.execute(
        "CREATE ROLE guest LOGIN PASSWORD 'hunter1'; CREATE ROLE clerk LOGIN; CREATE ROLE nobody LOGIN"
    )
    yield guarded
    await guarded.execute("DROP SCHEMA IF EXISTS perdure CASCADE; DROP ROLE guest; DROP ROLE clerk; DROP ROLE nobody")


async def test_a_wrong_password(roles: Server) -> None:
    error = await refusal(roles.url(user="guest", password="hunter2"))
    assert error.code is Code.STORE_ACCESS_DENIED
    assert "password" in error.because


async def test_unknown_user_is_refused(roles: Server) -> None:
    assert (await refusal(roles.url(user="nobody"))).code is Code.STORE_ACCESS_DENIED


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://postgres@127.0.0.1:9/postgres",
        "postgresql://postgres:hunter2@no-such-host.invalid/postgres",
        "postgresql://postgres@/postgres?host=/nowhere",
    ],
)
async def test_a_server_that_cannot_be_reached(url: str) -> None:
    assert (await refusal(url)).code is Code.STORE_UNAVAILABLE


async def test_a_database_that_does_not_exist(postgres: Server) -> None:
    error = await refusal(postgres.url("missing"))
    assert error.code is Code.STORE_UNAVAILABLE
    assert "create it" in error.hint


async def test_a_user_that_may_not_create_the_tables(roles: Server) -> None:
    error = await refusal(roles.url(user="clerk"))
    assert error.code is Code.STORE_ACCESS_DENIED
    assert "perdure db migrate" in error.hint


async def test_a_user_that_may_use_tables_made_by_another_needs_no_more(roles: Server) -> None:
    owner = PostgresStore(roles.url(), RealClock())
    await owner.open()
    await owner.close()
    assert (await refusal(roles.url(user="clerk"))).code is Code.STORE_ACCESS_DENIED
    await roles.execute("GRANT USAGE ON SCHEMA perdure TO clerk; GRANT SELECT ON ALL TABLES IN SCHEMA perdure TO clerk")
    error = await refusal(roles.url(user="clerk"))
    assert error.code is Code.STORE_ACCESS_DENIED
    assert "GRANT" in error.hint
    await roles.execute(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA perdure TO clerk;"
        "GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA perdure TO clerk"
    )
    clerk = PostgresStore(roles.url(user="clerk"), RealClock())
    await clerk.open()
    await clerk.register(ANN, pid=1, version="1", now=0)
    claim = await owned(clerk, "one", ANN)
    assert (await clerk.append(plan(claim, ANN, 1, entry("a")))).first_seq == 2
    await clerk.close()


async def test_a_store_that_is_newer(postgres: Server, postgres_url: str) -> None:
    store = PostgresStore(postgres_url, RealClock())
    await store.open()
    await store.close()
    schema = store.address.schema
    newer = len(migrations()) + 1
    await postgres.execute(f"UPDATE {schema}.store SET version = {newer}")
    await store.open()  # a step that only expanded: this version still works, beside newer ones
    await store.close()
    await postgres.execute(f"UPDATE {schema}.store SET min_code_schema = {newer}")
    error = await refusal(postgres_url)
    assert error.code is Code.STORE_NEWER
    assert error.hint == "upgrade perdure"


async def test_a_read_only_server(postgres_url: str) -> None:
    error = await refusal(f"{postgres_url}&default_transaction_read_only=on")
    assert error.code is Code.STORE_READ_ONLY
    assert "primary" in error.hint


async def test_a_schema_of_another_application(postgres: Server, postgres_url: str) -> None:
    schema = parse(postgres_url).schema
    await postgres.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.customers (id int)")
    error = await refusal(postgres_url)
    assert error.code is Code.STORE_NOT_OURS
    assert "?schema=" in error.hint


async def test_a_server_without_a_free_connection(roles: Server) -> None:
    await roles.execute("ALTER ROLE clerk CONNECTION LIMIT 0")
    error = await refusal(roles.url(user="clerk"))
    assert error.code is Code.STORE_CONNECTIONS_EXHAUSTED
    assert "pool_size" in error.hint
    taken = [
        await dial(roles.url(user="guest", password="hunter1"), settings={}, cached=0, connect_s=5, command_s=5)
        for _ in range(6)
    ]
    try:
        assert (await refusal(roles.url(user="guest", password="hunter1"))).code is Code.STORE_CONNECTIONS_EXHAUSTED
    finally:
        for connection in taken:
            await connection.close()


async def test_two_connections_are_enough(roles: Server) -> None:
    """Slowly, and without hearing of others at once, but everything works."""
    await roles.execute("ALTER ROLE guest CONNECTION LIMIT 2; GRANT CREATE ON DATABASE postgres TO guest")
    try:
        store = PostgresStore(roles.url(user="guest", password="hunter1", pool_size="2"), RealClock())
        await store.open()
        await store.register(ANN, pid=1, version="1", now=0)
        claim = await owned(store, "one", ANN)
        for n in range(1, 20):
            await store.append(plan(claim, ANN, n, entry("a")))
            assert len(await store.read(claim.stream)) == n + 1
        await store.close()
    finally:
        await roles.execute("DROP SCHEMA perdure CASCADE; REVOKE CREATE ON DATABASE postgres FROM guest")


# --- addresses


@pytest.mark.parametrize(
    "query",
    [
        "schema=Bad-Name",
        "schema=pg_toast",
        "schema=",
        "pooler=session",
        "pool_size=1",
        "pool_size=many",
        "awake=perhaps",
    ],
)
def test_an_address_that_cannot_work(query: str) -> None:
    with pytest.raises(Error) as caught:
        parse(f"postgresql://u:hunter2@host/db?{query}")
    assert caught.value.code is Code.STORE_URL_INVALID
    assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize("address", ["u:hunter2@host:port/db", "u:hunter2/x@host/db", "u:hunter2?x@host/db"])
def test_an_address_with_a_port_that_is_none(address: str) -> None:
    with pytest.raises(Error) as caught:
        parse(f"postgresql://{address}")
    assert caught.value.code is Code.STORE_URL_INVALID
    assert "hunter2" not in f"{caught.value!r} {caught.value}"


def test_address_options_are_parsed() -> None:
    address = parse("postgres://u:hunter2@db.example:6543/app?sslmode=require&statement_timeout=5000&schema=other")
    assert address.dsn == "postgresql://u:hunter2@db.example:6543/app?sslmode=require"
    assert (address.shown, address.schema, address.pooled) == ("db.example:6543/app", "other", False)
    assert address.settings["statement_timeout"] == "5000"
    assert address.settings["idle_in_transaction_session_timeout"] == "10000"
    pooled = parse("postgresql://u@host/db?pooler=transaction&pool_size=3")
    assert (pooled.pooled, pooled.pool_size, pooled.settings) == (True, 3, {})


class Coded(Exception):
    """A driver error with a state."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("the server's words")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("state", "ours"),
    [
        ("28P01", Code.STORE_ACCESS_DENIED),
        ("42501", Code.STORE_ACCESS_DENIED),
        ("3D000", Code.STORE_UNAVAILABLE),
        ("42P01", Code.STORE_UNAVAILABLE),
        ("25006", Code.STORE_READ_ONLY),
        ("53300", Code.STORE_CONNECTIONS_EXHAUSTED),
        ("53100", Code.STORE_FULL),
        ("40001", Code.STORE_LOCKED),
        ("40P01", Code.STORE_LOCKED),
        ("55P03", Code.STORE_LOCKED),
        ("57014", Code.STORE_LOCKED),
        ("XX001", Code.STORE_CORRUPT),
        ("22021", Code.INVALID_TEXT),
        ("99999", Code.STORE_FAILED),
    ],
)
def test_every_server_error_has_a_code_of_ours(state: str, ours: Code) -> None:
    error = failure(Coded(state), "host/db")
    assert error.code is ours
    assert (error.because, error.details["reason"], error.details["place"]) == ("the server's words", state, "host/db")
