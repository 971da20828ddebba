"""The SQL files of this folder, read once: named queries, numbered migrations, the schema they lead to.

They are written for the schema `perdure`; a store that lives in another one gets them rewritten.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

DEFAULT_SCHEMA = "perdure"


@dataclass(frozen=True, slots=True)
class Migration:
    """One step forward. Code that knows schema `works_from` or later can work with its result."""

    number: int
    name: str
    sql: str
    works_from: int


def _text(name: str) -> str:
    return files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _named(text: str) -> dict[str, str]:
    """Split `-- name: x` blocks."""
    _, *blocks = text.split("-- name: ")
    return {name.strip(): _bare(sql) for name, _, sql in (block.partition("\n") for block in blocks)}


def _bare(sql: str) -> str:
    return "\n".join(line for line in sql.splitlines() if not line.startswith("--")).strip()


def _placed(sql: str, schema: str) -> str:
    return sql if schema == DEFAULT_SCHEMA else re.sub(r"\bperdure\.", f"{schema}.", sql)


@cache
def queries(schema: str = DEFAULT_SCHEMA) -> dict[str, str]:
    """Every named statement."""
    return {name: _placed(sql, schema) for name, sql in _named(_text("queries.sql")).items()}


def schema_script(schema: str = DEFAULT_SCHEMA) -> str:
    """`schema.sql`."""
    return _placed(_text("schema.sql"), schema)


_MIGRATIONS = ("0001_init.sql",)


@cache
def migrations(schema: str = DEFAULT_SCHEMA) -> tuple[Migration, ...]:
    """The migrations in order; the number of the last one is the schema version."""
    return tuple(_migration(name, schema) for name in _MIGRATIONS)


def _migration(name: str, schema: str) -> Migration:
    text = _text(f"migrations/{name}")
    found = re.search(r"^-- .*Works with code from schema (\d+) on\.", text, re.MULTILINE)
    assert found is not None, f"{name} does not say which code can work with it"
    return Migration(int(name[:4]), name.removesuffix(".sql"), _placed(text, schema), int(found[1]))


SCHEMA_VERSION = len(_MIGRATIONS)
