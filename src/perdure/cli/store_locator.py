"""Lookup of the store and the session that a command names. Never creates a store."""

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
from perdure.cli.program import pasteable
from perdure.errors import Code, Error
from perdure.ids import without_keys
from perdure.runtime.internals import core_of, ref_of

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime
    from perdure.runtime.sessions.session import Session
    from perdure.store.encoded import PayloadCodec
    from perdure.store.protocol import Store

T = TypeVar("T")

DEFAULT = Path(".perdure") / "dev.db"
DEMO = Path(".perdure") / "demo.db"
_PAGE = 200
_SHOWN = 4


def store_url(db: str) -> str:
    """Return the URL of the command's store: `--db`, else the environment, else the default. A file must exist.

    Raises:
        Error: `store_url_invalid` for a store that is not durable; `store_unavailable` if there is no file.
    """
    from perdure.runtime.stores import POSTGRES, address_of

    given = address_of(db or os.environ.get("PERDURE_DB") or DEFAULT)
    if given.startswith(POSTGRES):
        return given
    if not given.startswith("sqlite:///"):
        raise Error(
            Code.STORE_URL_INVALID,
            f"unsupported store {_without_password(given)!r}",
            because="expected a file (a path, or sqlite:///path/to/file.db) or postgresql://user@host/database",
            hint="--db .perdure/dev.db",
        )
    path = Path(given.removeprefix("sqlite:///"))
    if not path.is_file() or path.stat().st_size == 0:
        raise _absent(path, given_db=bool(db))
    return f"sqlite:///{path}"


def url_of(db: str) -> str | None:
    """Return the store that `--db` names, for a command that may create it. None leaves the choice to the target."""
    from perdure.runtime.stores import address_of

    return address_of(db) if db else None


def store_shown(store: Store) -> str | None:
    """Return a printable address of a store, without its password. None: the store has no address."""
    path, address = getattr(store, "path", None), getattr(store, "address", None)
    if path is not None:
        return f"sqlite:///{path}"
    return f"postgresql://{address.shown}" if address is not None else None


def db_flag(db: str) -> str:
    """Return the `--db` option that a hint needs to name this command's store, quoted for a shell.

    The password is left out. The driver reads it elsewhere (PGPASSWORD, a passfile).
    """
    return f" --db {shlex.quote(_without_password(db))}" if db else ""


def to_paste(text: str, db: str) -> str:
    """Add this command's `--db` option to each `perdure` command quoted in a text."""
    return re.sub(
        r"`(perdure(?: [a-z][a-z-]*)+)((?: -- )?[^`]*)`", lambda found: _with_db(found[1], found[2], db), text
    )


def _with_db(command: str, rest: str, db: str) -> str:
    flag = db_flag(db)
    if rest.startswith(" --") and " -- " in rest:  # options end at the `--`, and no word comes before it
        options, _, words = rest.partition(" -- ")
        return f"`{pasteable(command)}{options}{flag} -- {words}`"
    return f"`{pasteable(command)}{rest}{flag}`"


def _without_password(db: str) -> str:
    shown = re.sub(r"(://[^:@/?#]*):[^?#]*@", r"\1@", db)
    return re.sub(r"(?<=[?&])(ssl)?password=[^&#]*&?", "", shown).rstrip("?&")


def store_file(url: str) -> Path | None:
    """Return the file of a SQLite store, or None."""
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


def _absent(path: Path, *, given_db: bool) -> Error:
    because = "the file is empty" if path.is_file() else "the path is a folder" if path.is_dir() else "no such file"
    hint = "start with `perdure demo`, or pass --db PATH"
    if not given_db and DEMO.is_file():
        hint = f"the demo's store: --db {DEMO}"
    return Error(Code.STORE_UNAVAILABLE, f"no store at {path}", because=because, hint=hint)


def codec_named() -> PayloadCodec | None:
    """Return the codec that PERDURE_CODEC names as module:name, for commands that read an encrypted store.

    Raises:
        Error: `target_invalid` if the target is missing or not a codec.
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
            f"PERDURE_CODEC={target} does not name a codec",
            because=problem.message,
            hint="PERDURE_CODEC=module:name",
        ) from problem
    if not callable(getattr(found, "encode", None)) or not callable(getattr(found, "decode", None)):
        raise Error(
            Code.TARGET_INVALID,
            f"{target} is not a codec",
            because="a codec has the methods encode and decode",
            hint='codec = AesGcmCodec({"2026-11": key})',
        )
    return cast("PayloadCodec", found)


@asynccontextmanager
async def opened(db: str) -> AsyncGenerator[Runtime]:
    """Open the store for reading and control, without a worker."""
    from perdure.runtime.runtime import Runtime

    async with Runtime(store_url(db), worker=False, payload_codec=codec_named()) as rt:
        yield rt


async def find_session(rt: Runtime, name: str) -> Session:
    """Return the session with this id, or the only session whose id has this prefix.

    Raises:
        Error: `session_unknown`; `invalid_id` if the prefix matches several sessions.
    """
    session = rt.get_session(name)
    if await core_of(rt).store.stream(ref_of(session).stream) is not None:
        return session
    matches = await _beginning_with(rt, name)
    if len(matches) == 1:
        return rt.get_session(matches[0])
    if not matches:
        raise Error(
            Code.SESSION_UNKNOWN,
            f"unknown session {without_keys(name)!r}",
            hint="perdure sessions list",
        )
    more = "" if len(matches) <= _SHOWN else ", …"
    raise Error(
        Code.INVALID_ID,
        f"{name!r} matches {len(matches)} sessions",
        because=f"matching ids: {', '.join(matches[:_SHOWN])}{more}",
        hint="type a longer prefix",
    )


async def _beginning_with(rt: Runtime, prefix: str) -> list[str]:
    found: list[str] = []
    page = await core_of(rt).session_streams(limit=_PAGE)
    while page:
        found += [info.name for info in page if info.name.startswith(prefix)]
        if len(page) < _PAGE:
            break
        page = await core_of(rt).session_streams(limit=_PAGE, before=(page[-1].updated_at, page[-1].stream))
    return found


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run a command's coroutine.

    Raises:
        ReaderLeft: if the reader of stdout closed the pipe.
    """

    async def main() -> T:
        return await work()

    try:
        return asyncio.run(main())
    except BrokenPipeError as gone:
        raise ReaderLeft from gone
