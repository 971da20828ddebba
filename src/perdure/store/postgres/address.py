"""Where a database is: the parts of a store URL that are ours, and the rest for the driver."""

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
"""Parts of a query that the driver understands; whatever else is there becomes a setting of the connection."""

_OURS = {
    "application_name": "perdure",
    "statement_timeout": "30000",
    "lock_timeout": "10000",
    "idle_in_transaction_session_timeout": "10000",
    "default_transaction_isolation": "read committed",
    "plan_cache_mode": "force_generic_plan",
}
"""What connections are set to unless the address says otherwise. A frozen worker must not hold locks for long, and
statements whose plans cannot differ are planned once."""


@dataclass(frozen=True, slots=True)
class Address:
    """A database, the schema in it, and how to talk to it.

    `pooled`: a pooler hands out another server connection for every transaction, so nothing may be kept in one.
    `awake`: whoever waits for the server alone may use processor time for it.
    """

    dsn: str
    shown: str
    schema: str = DEFAULT_SCHEMA
    pooled: bool = False
    pool_size: int = POOL_SIZE
    awake: bool = True
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    def missing_file(self) -> str | None:
        """A certificate or key that the address names and that is not there."""
        named = dict(parse_qsl(urlsplit(self.dsn).query))
        files = (named[name] for name in ("sslrootcert", "sslcert", "sslkey") if name in named)
        return next((file for file in files if not Path(file).exists()), None)


def parse(url: str) -> Address:
    """Read a store URL: `postgresql://user:password@host/database?sslmode=require&schema=perdure&pooler=transaction`.

    Raises:
        Error: `store_url_invalid`. The message never has the password in it.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may repeat a piece of the password
        raise _invalid("the port is no number; write / @ : ? # in a password as %2F %40 %3A %3F %23") from None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = query.pop("schema", DEFAULT_SCHEMA)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
        raise _invalid(f"{schema!r} cannot be a schema: use lower-case letters, digits and _")
    pooler = query.pop("pooler", "")
    if pooler not in ("", "transaction"):
        raise _invalid(f"pooler={pooler} is not known: it is 'transaction' or left out")
    awake = query.pop("awake", "yes")
    if awake not in ("yes", "no"):
        raise _invalid(f"awake={awake} is not known: it is 'no' or left out")
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
        raise _invalid(f"pool_size={text} cannot work: at least {MIN_POOL_SIZE} connections are needed")
    return int(text)


def _invalid(because: str) -> Error:
    return Error(
        Code.STORE_URL_INVALID,
        "the address of the store cannot be used",
        because=because,
        hint="postgresql://user:password@host:5432/database",
    )
