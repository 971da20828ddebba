"""The SQL files of this folder, read once: named queries, numbered migrations, the resulting schema.

The files use the schema name `perdure`; for a store in another schema, the name is replaced.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib.resources import files

from perdure.store.release import THIS, Migration, Release

DEFAULT_SCHEMA = "perdure"


def _text(name: str) -> str:
    return files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _named(text: str) -> dict[str, str]:
    """Split a file into its `-- name: x` blocks."""
    _, *blocks = text.split("-- name: ")
    named = {name.strip(): _bare(sql) for name, _, sql in (block.partition("\n") for block in blocks)}
    of_a_few = named["ready"].replace("{work}", "{work_of}")
    named |= {f"{look}_of": named[look].replace("{ready}", of_a_few) for look in ("claimable", "claim_ready")}
    for part in ("ready", "work", "work_of", "stream_left_waiting", "worker_cells"):
        named = {name: sql.replace(f"{{{part}}}", named[part]) for name, sql in named.items()}
    return {name: sql for name, sql in named.items() if name not in ("ready", "work", "work_of", "worker_cells")}


def _bare(sql: str) -> str:
    return "\n".join(line for line in sql.splitlines() if not line.startswith("--")).strip()


def _placed(sql: str, schema: str) -> str:
    return sql if schema == DEFAULT_SCHEMA else re.sub(r"\bperdure\.", f"{schema}.", sql)


@cache
def queries(schema: str = DEFAULT_SCHEMA) -> dict[str, str]:
    """Return every named statement for a schema."""
    return {name: _placed(sql, schema) for name, sql in _named(_text("queries.sql")).items()}


def schema_script(schema: str = DEFAULT_SCHEMA) -> str:
    """Return the text of `schema.sql` for a schema."""
    return _placed(_text("schema.sql"), schema)


_MIGRATIONS = ("0001_init.sql",)


@cache
def migrations(schema: str = DEFAULT_SCHEMA, release: Release = THIS) -> tuple[Migration, ...]:
    """Return the migrations of a release in order; the number of the last one is its schema version."""
    known = (*(Migration.of(name, _text(f"migrations/{name}")) for name in _MIGRATIONS), *release.later)
    return tuple(replace(migration, sql=_placed(migration.sql, schema)) for migration in known)


SCHEMA_VERSION = len(_MIGRATIONS)
