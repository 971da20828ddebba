"""The SQL files of this folder, read once: named queries, numbered migrations, the resulting schema."""

from __future__ import annotations

from importlib.resources import files

from perdure.store.release import THIS, Migration, Release

APPLICATION_ID = int.from_bytes(b"PERD")


def _text(name: str) -> str:
    return files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _named(text: str) -> dict[str, str]:
    """Split a file into its `-- name: x` blocks."""
    _, *blocks = text.split("-- name: ")
    named = {name.strip(): sql.strip() for name, _, sql in (block.partition("\n") for block in blocks)}
    named["claimable_of"] = named["claimable"].replace("{ready}", named["ready"].replace("{work}", "{work_of}"))
    for part in ("ready", "work_of", "work"):
        named = {name: sql.replace(f"{{{part}}}", named[part]) for name, sql in named.items()}
    return named


def statements(script: str) -> list[str]:
    """Split a schema script into statements. Comments must be whole lines, and literals must not contain semicolons."""
    code = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("--"))
    return [statement.strip() for statement in code.split(";") if statement.strip()]


def schema() -> str:
    """Return the text of `schema.sql`."""
    return _text("schema.sql")


_MIGRATIONS = ("0001_init.sql",)


def migrations(release: Release = THIS) -> tuple[Migration, ...]:
    """Return the migrations of a release in order; the number of the last one is its schema version."""
    return (*(Migration.of(name, _text(f"migrations/{name}")) for name in _MIGRATIONS), *release.later)


QUERIES = _named(_text("queries.sql"))
SCHEMA_VERSION = len(_MIGRATIONS)
