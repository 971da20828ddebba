"""`perdure db` on both kinds of store, and the other commands on a database server."""

from __future__ import annotations

import asyncio
import json
import shlex
import sqlite3
from pathlib import Path

import pytest

from perdure import Agent, Runtime
from perdure.cli.store_locator import db_flag
from tests.e2e.command import perdure


async def _talk(url: str) -> None:
    async with Runtime(url, agents=[Agent("echo", model="sim:echo")]) as rt:
        await (await rt.session("one", agent="echo")).ask("hello")


@pytest.fixture(params=["sqlite", "postgres"])
def used(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store with one session in it."""
    file = f"sqlite:///{tmp_path / 's.db'}"
    url: str = file if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    asyncio.run(_talk(url))
    return url


def test_a_store_in_use_is_up_to_date_and_sound(used: str, tmp_path: Path) -> None:
    status = perdure("db", "status", "--db", used, cwd=tmp_path)
    assert status.code == 0
    assert "schema     1 of 1" in status.out
    assert "pending    nothing" in status.out
    assert (f"engine     sqlite {sqlite3.sqlite_version} has" in status.out) is used.startswith("sqlite")
    migrated = perdure("db", "migrate", "--db", used, cwd=tmp_path)
    assert (migrated.code, migrated.out.endswith("nothing to do\n")) == (0, True)
    checked = perdure("db", "check", "--json", "--db", used, cwd=tmp_path)
    assert checked.code == 0
    lines = [json.loads(line) for line in checked.out.splitlines()]
    assert {"integrity", "references", "schema", "leases"} <= {line["what"] for line in lines}
    assert {line["status"] for line in lines} == {"ok"}


def test_other_commands_read_a_database_server_too(postgres_url: str, tmp_path: Path) -> None:
    asyncio.run(_talk(postgres_url))
    listed = perdure("sessions", "list", "--db", postgres_url, cwd=tmp_path)
    assert (listed.code, "one" in listed.out) == (0, True)
    verified = perdure("journal", "verify", "one", "--db", postgres_url, cwd=tmp_path)
    assert (verified.code, verified.out.startswith("OK  one")) == (0, True)
    doctor = perdure("doctor", "--db", postgres_url, cwd=tmp_path)
    assert (doctor.code, "the server's" in doctor.out) == (0, True)


def test_hint_contains_a_quoted_store_url_without_password(postgres_url: str, tmp_path: Path) -> None:
    asyncio.run(_talk(postgres_url))
    secret = postgres_url.replace("postgres@", "postgres:hunter2@") + "&password=hunter2"
    for words in (["sessions", "show", "one"], ["sessions", "send", "one", "more"]):
        ran = perdure(*words, "--db", secret, cwd=tmp_path)
        assert ran.code == 0, ran.err
        assert "hunter2" not in ran.out + ran.err
        hinted = shlex.split(ran.err)
        assert hinted[hinted.index("--db") + 1] == postgres_url


@pytest.mark.parametrize(
    ("db", "flag"),
    [
        ("", ""),
        ("a b.db", " --db 'a b.db'"),
        ("sqlite:///x.db", " --db sqlite:///x.db"),
        ("postgresql://u:p%40w@h:5/d", " --db postgresql://u@h:5/d"),
        ("postgresql://u:p/w@x@h/d?sslmode=require", " --db 'postgresql://u@h/d?sslmode=require'"),
        ("postgresql://h:5/d?user=u&password=pw&schema=s", " --db 'postgresql://h:5/d?user=u&schema=s'"),
        ("postgresql://h/d?sslpassword=pw", " --db postgresql://h/d"),
    ],
)
def test_no_address_is_hinted_at_with_its_password(db: str, flag: str) -> None:
    assert db_flag(db) == flag


def test_an_empty_database_is_shown_before_it_is_migrated(postgres_url: str, tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        ran = perdure("db", *words, "--db", postgres_url, cwd=tmp_path)
        return ran.code, ran.out

    code, out = run("status", "--json")
    state = json.loads(out)
    assert (code, state["version"], state["known"], state["pending"]) == (0, 0, 1, ["0001_init"])
    code, out = run("migrate", "--dry-run")
    assert (code, "CREATE TABLE" in out, out.endswith("1 step pending\n")) == (0, True, True)
    assert json.loads(run("status", "--json")[1])["version"] == 0, "nothing was changed"
    assert run("check")[0] == 1, "there is no store to check yet"
    code, out = run("migrate")
    assert (code, out.endswith("1 step applied\n")) == (0, True)
    assert json.loads(run("status", "--json")[1])["pending"] == []
    assert run("check")[0] == 0


def test_a_file_of_another_application_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    for verb in ("status", "migrate", "check"):
        ran = perdure("db", verb, "--db", "other.db", cwd=tmp_path)
        assert ran.code != 0
        assert "belongs" in ran.err or "another application" in ran.err


def test_a_server_that_is_away_is_said_plainly(tmp_path: Path) -> None:
    ran = perdure("db", "status", "--db", "postgresql://u:hunter2@127.0.0.1:9/x", cwd=tmp_path)
    assert ran.code == 7
    assert ran.err.startswith("error: the server of the store cannot be reached")
    assert "hunter2" not in ran.err + ran.out
