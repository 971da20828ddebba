"""Schema changes of the next release. Nothing here loads one: stores are opened as the release they find."""

from __future__ import annotations

from perdure.store.release import Migration, Release
from perdure.vocab.records import FORMAT

_EXPAND = """
ALTER TABLE {p}streams ADD COLUMN shard {int} NOT NULL DEFAULT 0;
ALTER TABLE {p}log ADD COLUMN checksum {bytes};
CREATE TABLE {p}shards (id {int} PRIMARY KEY, note text NOT NULL);
CREATE INDEX streams_shard ON {p}streams (shard);
"""
_CONTRACT = "DROP TABLE {p}shards;"


def _migrations(url: str, steps: int) -> tuple[Migration, ...]:
    server = url.startswith("postgresql")
    words = {"p": "perdure." if server else "", "int": "int", "bytes": "bytea" if server else "blob"}
    expand = Migration(2, "0002_shards", _EXPAND.format(**words), min_code_schema=1)
    contract = Migration(3, "0003_no_shards", _CONTRACT.format(**words), min_code_schema=2)
    return (expand, contract)[:steps]


def next_release(url: str, *, contracted: bool = False) -> Release:
    """The release after this one; `contracted`, the one after that, which takes away what this one never had."""
    return Release(format=FORMAT + 1, later=_migrations(url, 2 if contracted else 1))
