"""`perdure resolve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from perdure.cli.options import Db, Json

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime
    from perdure.store.shapes import Resolved
    from perdure.vocab.promises import Err


def resolve(  # noqa: PLR0913 - a command's options are its parameters
    target: Annotated[
        str,
        Argument(
            metavar="[KEY|SESSION]",
            help="A key, or - to read it from stdin; or a session, with the name of the event.",
            show_default=False,
        ),
    ] = "",
    name: Annotated[str, Argument(metavar="[NAME]", help="The event's name.", show_default=False)] = "",
    key_file: Annotated[str, Option(metavar="PATH", help="Read the key from a file, out of the shell's history.")] = "",
    ok: Annotated[str | None, Option(metavar="JSON", help="Answer with this value.", show_default=False)] = None,
    err: Annotated[
        tuple[str, str] | None, Option(metavar="CODE MESSAGE", help="Answer with a failure.", show_default=False)
    ] = None,
    cancel: Annotated[bool, Option("--cancel", help="Say that nobody will answer.")] = False,
    db: Db = "",
    json: Json = False,
) -> None:
    """Answer what a turn waits for. The first answer stands; if it was not this one, the exit code is 4."""
    from perdure.cli.places import run
    from perdure.vocab.promises import Err

    if sum((ok is not None, err is not None, cancel)) != 1:
        raise _usage("say one answer", "a wait ends once", "--ok JSON, --err CODE MESSAGE or --cancel")
    answer = _Answer(_value(ok), Err(code=err[0], message=err[1]) if err else None, cancel)
    place = _place(target, name, key_file)
    if not run(lambda: _resolve(place, answer, db, json=json)):
        raise Exit(4)


class _Answer:
    """What is answered."""

    def __init__(self, value: object, error: Err | None, cancel: bool) -> None:
        self.value = value
        self.error = error
        self.cancel = cancel


def _value(text: str | None) -> object:
    from perdure.codec import decode
    from perdure.errors import Error

    if text is None:
        return None
    try:
        return decode(text.encode())
    except (Error, UnicodeError):
        raise _usage("the value is not JSON", "a text is JSON in quotation marks", """--ok '"yes"'""") from None


def _place(target: str, name: str, key_file: str) -> tuple[str, str]:
    """A key and nothing, or a session and a name."""
    if name:
        if key_file:
            raise _usage("a session and a key are two answers", "", "leave one of them out")
        _refuse_key(target)
        _refuse_key(name)
        return target, name
    if bool(target) == bool(key_file):
        raise _usage("say what to answer", "", "a key, -, --key-file PATH, or SESSION NAME")
    return (_read(key_file) if key_file else _read("-") if target == "-" else target), ""


def _refuse_key(name: str) -> None:
    """A key where a session or an event belongs must not be printed back, and is not the name of anything."""
    from perdure.errors import Error
    from perdure.vocab.promises import AwaitEventKey

    try:
        AwaitEventKey.parse(name)
    except Error:
        return
    raise _usage("a key needs no name", "it says itself what it answers", "perdure resolve KEY --ok JSON")


def _read(path: str) -> str:
    import sys
    from pathlib import Path

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
    except (OSError, UnicodeError) as problem:
        raise _usage(
            "the key cannot be read", type(problem).__name__, "the file holds the key and nothing else"
        ) from None
    return text.strip()


def _usage(what: str, because: str, hint: str) -> Exception:
    from perdure.errors import Code, Error

    return Error(Code.INVALID_ARGUMENT, what, because=because, hint=hint)


async def _resolve(place: tuple[str, str], answer: _Answer, db: str, *, json: bool) -> bool:
    from perdure.cli.places import opened
    from perdure.cli.screen import emit, say
    from perdure.codec import encode
    from perdure.store.shapes import AlreadyResolved

    async with opened(db) as rt:
        shown, resolved = await _told(rt, place, answer)
    first = resolved.resolution if isinstance(resolved, AlreadyResolved) else None
    if json:
        emit(type="resolved", v=1, promise=shown, accepted=first is None, first=first)
    elif first is None:
        say(f"accepted  {shown}")
    else:
        say(f"answered before  {shown}")
        say(f"  first  {encode(first).decode()}")
    return first is None


async def _told(rt: Runtime, place: tuple[str, str], answer: _Answer) -> tuple[str, Resolved]:
    """Answer; how the promise may be shown (a key only by its id), and what became of the answer."""
    from typing import cast

    from perdure.cli.places import find_session
    from perdure.vocab.promises import AwaitEventKey

    target, name = place
    value = cast("Json", answer.value)
    if name:
        session = await find_session(rt, target)
        return f"{session.id} {name}", await session.resolve(name, value, error=answer.error, cancel=answer.cancel)
    key = AwaitEventKey.parse(target)
    return key.key_id, await rt.resolve(key, value, error=answer.error, cancel=answer.cancel)
