"""Store URLs: Perdure's own options, and the rest for the driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from perdure.errors import Code, Error
from perdure.store.postgres.schema import DEFAULT_SCHEMA

SCHEMES = ("postgresql://", "postgres://")
POOL_SIZE = 8
MIN_POOL_SIZE = 2

_DRIVER = {
    *("host", "port", "user", "password", "passfile", "database", "dbname", "service", "servicefile"),
    *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslpassword", "sslcrl", "sslnegotiation"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs", "krbsrvname", "gsslib"),
}
"""Query parameters that the driver understands; every other parameter becomes a setting of the connection."""

_OURS = {
    "application_name": "perdure",
    "statement_timeout": "30000",
    "lock_timeout": "10000",
    "idle_in_transaction_session_timeout": "10000",
    "default_transaction_isolation": "read committed",
    "plan_cache_mode": "force_generic_plan",
}
"""Default settings of connections. A frozen worker must not hold locks for long, and each statement is planned once
because its plans do not depend on parameters."""


@dataclass(frozen=True, slots=True)
class Address:
    """A database, a schema in it, and connection options.

    `pooled`: a pooler assigns another server connection to every transaction, so connections keep no state.
    `awake`: a process with one append in flight busy-polls for up to 1 ms to reduce latency.
    """

    dsn: str
    shown: str
    schema: str = DEFAULT_SCHEMA
    pooled: bool = False
    pool_size: int = POOL_SIZE
    awake: bool = True
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    def missing_file(self) -> str | None:
        """Return the first certificate or key file of the address that does not exist, or None."""
        named = dict(parse_qsl(urlsplit(self.dsn).query))
        files = (named[name] for name in ("sslrootcert", "sslcert", "sslkey") if name in named)
        return next((file for file in files if not Path(file).exists()), None)


def parse(url: str) -> Address:
    """Parse a store URL: `postgresql://user:password@host/database?sslmode=require&schema=perdure&pooler=transaction`.

    Raises:
        Error: `store_url_invalid`. The message never contains the password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # the exception's text may contain a part of the password
        raise _invalid("the port is not a number; write / @ : ? # in a password as %2F %40 %3A %3F %23") from None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = query.pop("schema", DEFAULT_SCHEMA)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
        raise _invalid(f"{schema!r} is not a valid schema name: use lower-case letters, digits and _")
    pooler = query.pop("pooler", "")
    if pooler not in ("", "transaction"):
        raise _invalid(f"pooler={pooler} is not valid: use 'transaction' or omit it")
    awake = query.pop("awake", "yes")
    if awake not in ("yes", "no"):
        raise _invalid(f"awake={awake} is not valid: use 'no' or omit it")
    for_driver = {name: value for name, value in query.items() if name in _DRIVER}
    settings = {name: value for name, value in query.items() if name not in _DRIVER}
    size = _size(settings.pop("pool_size", str(POOL_SIZE)))
    where = parts.hostname or for_driver.get("host", "")
    shown = f"{where}{f':{port}' if port else ''}/{parts.path.lstrip('/')}"
    dsn = parts._replace(scheme="postgresql", query=urlencode(for_driver, quote_via=quote)).geturl()
    if not parts.netloc and not dsn.startswith("postgresql://"):
        dsn = dsn.replace("postgresql:", "postgresql://", 1)
    ours = {} if pooler else _OURS
    return Address(dsn, shown, schema, bool(pooler), size, awake == "yes", ours | settings)


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) < MIN_POOL_SIZE:
        raise _invalid(f"pool_size={text} is not valid: at least {MIN_POOL_SIZE} connections are required")
    return int(text)


def _invalid(because: str) -> Error:
    return Error(
        Code.STORE_URL_INVALID,
        "invalid store URL",
        because=because,
        hint="postgresql://user:password@host:5432/database",
    )
