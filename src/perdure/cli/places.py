"""Where a command looks: the store it opens without ever creating one, and the session a prefix names."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from perdure.cli.exits import ReaderLeft
from perdure.errors import Code, Error
from perdure.ids import without_keys

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime
    from perdure.runtime.sessions.session import Session
    from perdure.store.encoded import Codec
    from perdure.store.protocol import Store

T = TypeVar("T")

DEFAULT = Path(".perdure") / "dev.db"
DEMO = Path(".perdure") / "demo.db"
_PAGE = 200
_SHOWN = 4


def store_url(db: str) -> str:
    """The store a command works on: `--db`, then the environment, then the default. A file must exist.

    Raises:
        Error: `store_url_invalid` for an address of nothing that lasts; `store_unavailable` if there is no file.
    """
    from perdure.runtime.stores import POSTGRES

    given = db or os.environ.get("PERDURE_STORE__URL") or str(DEFAULT)
    if given.startswith(POSTGRES):
        return given
    if "://" in given and not given.startswith("sqlite:///"):
        raise Error(
            Code.STORE_URL_INVALID,
            f"{_without_password(given)!r} is not a store this command can open",
            because="it must be a file (a path, or sqlite:///path/to/file.db) or postgresql://user@host/database",
            hint="--db .perdure/dev.db",
        )
    path = Path(given.removeprefix("sqlite:///"))
    if not path.is_file() or path.stat().st_size == 0:
        raise _absent(path, given_db=bool(db))
    return f"sqlite:///{path}"


def url_of(db: str) -> str | None:
    """The store that `--db` names for a command that may create it; None leaves it to the target."""
    return (db if "://" in db else f"sqlite:///{db}") if db else None


def store_shown(store: Store) -> str | None:
    """A store as one may print it: its file, or its server and database, never a password. None: it has no address."""
    path, address = getattr(store, "path", None), getattr(store, "address", None)
    if path is not None:
        return f"sqlite:///{path}"
    return f"postgresql://{address.shown}" if address is not None else None


def db_flag(db: str) -> str:
    """What a hint adds to a command so that it finds the store of this one, as a shell reads it. Never a password: the
    user is left in the address, and the driver looks for the rest (PGPASSWORD, a passfile)."""
    return f" --db {shlex.quote(_without_password(db))}" if db else ""


def to_paste(text: str, db: str) -> str:
    """A text with commands in it, each of which finds the store of this one."""
    return re.sub(r"`(perdure [^`]*)`", lambda found: f"`{found[1]}{db_flag(db)}`", text)


def _without_password(db: str) -> str:
    shown = re.sub(r"(://[^:@/?#]*):[^?#]*@", r"\1@", db)
    return re.sub(r"(?<=[?&])(ssl)?password=[^&#]*&?", "", shown).rstrip("?&")


def store_file(url: str) -> Path | None:
    """The file of a store, if it is one."""
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


def _absent(path: Path, *, given_db: bool) -> Error:
    because = "it is empty" if path.is_file() else "it is a folder" if path.is_dir() else "there is no such file"
    hint = "start with `perdure demo`, or name another one: --db PATH"
    if not given_db and DEMO.is_file():
        hint = f"the store of the demo is here: --db {DEMO}"
    return Error(Code.STORE_UNAVAILABLE, f"no store at {path}", because=because, hint=hint)


def codec_named() -> Codec | None:
    """The codec that `PERDURE_CODEC` names as module:name, so that commands can look into an encrypted store.

    Raises:
        Error: `target_invalid` if it is not there, or is no codec.
    """
    target = os.environ.get("PERDURE_CODEC")
    if not target:
        return None
    from perdure.cli.targets import load

    try:
        found = load(target)
    except Error as problem:
        raise Error(
            problem.code,
            f"PERDURE_CODEC={target} names no codec",
            because=problem.message,
            hint="PERDURE_CODEC=module:name, where name is a codec of that module",
        ) from problem
    if not callable(getattr(found, "encode", None)) or not callable(getattr(found, "decode", None)):
        raise Error(
            Code.TARGET_INVALID,
            f"{target} is no codec",
            because="a codec has the methods encode and decode",
            hint='codec = AesGcm({"2026-11": key})',
        )
    return cast("Codec", found)


@asynccontextmanager
async def opened(db: str) -> AsyncGenerator[Runtime]:
    """The store, opened to look at and never to work on."""
    from perdure.runtime.runtime import Runtime

    async with Runtime(store_url(db), worker=False, codec=codec_named()) as rt:
        yield rt


async def find_session(rt: Runtime, name: str) -> Session:
    """The session of that id, or the only one whose id begins like that.

    Raises:
        Error: `session_unknown`; `invalid_id` if several begin like that.
    """
    session = rt.existing(name)
    if await rt.store.stream(session.stream) is not None:
        return session
    matches = await _beginning_with(rt, name)
    if len(matches) == 1:
        return rt.existing(matches[0])
    if not matches:
        raise Error(
            Code.SESSION_UNKNOWN,
            f"there is no session {without_keys(name)!r}",
            hint="list them with `perdure sessions list`",
        )
    more = "" if len(matches) <= _SHOWN else ", …"
    raise Error(
        Code.INVALID_ID,
        f"{name!r} could be {len(matches)} sessions",
        because=f"these begin like that: {', '.join(matches[:_SHOWN])}{more}",
        hint="type more of the id",
    )


async def _beginning_with(rt: Runtime, prefix: str) -> list[str]:
    found: list[str] = []
    page = await rt.sessions(limit=_PAGE)
    while page:
        found += [info.name for info in page if info.name.startswith(prefix)]
        if len(page) < _PAGE:
            break
        page = await rt.sessions(limit=_PAGE, before=(page[-1].updated_at, page[-1].stream))
    return found


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run a command's coroutine.

    Raises:
        ReaderLeft: if whoever read the output has gone.
    """

    async def main() -> T:
        return await work()

    try:
        return asyncio.run(main())
    except BrokenPipeError as gone:
        raise ReaderLeft from gone
