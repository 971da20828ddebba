"""`perdure resolve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from perdure.cli.options import By, Db, Json

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime
    from perdure.store.shapes import Resolved
    from perdure.vocab.promises import Failure


def resolve(  # noqa: PLR0913 - a command's options are its parameters
    target: Annotated[
        str,
        Argument(
            metavar="[KEY|SESSION]",
            help="A key, - for stdin, or a session with an event name.",
            show_default=False,
        ),
    ] = "",
    name: Annotated[str, Argument(metavar="[NAME]", help="The event's name.", show_default=False)] = "",
    key_file: Annotated[str, Option(metavar="PATH", help="Read the key from a file.")] = "",
    value: Annotated[str | None, Option(metavar="JSON", help="Resolve with this value.", show_default=False)] = None,
    error: Annotated[
        tuple[str, str] | None, Option(metavar="CODE MESSAGE", help="Resolve with an error.", show_default=False)
    ] = None,
    cancel: Annotated[bool, Option("--cancel", help="Cancel the wait.")] = False,
    by: By = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Resolve a wait: an event, or a signed key.

    The first resolution wins. The exit code is 4 if this one was not the first.
    """
    from perdure.cli.store_locator import run
    from perdure.vocab.promises import Failure

    if sum((value is not None, error is not None, cancel)) != 1:
        raise _usage(
            "exactly one resolution is needed", "a wait ends once", "--value JSON, --error CODE MESSAGE or --cancel"
        )
    answer = _Answer(_value(value), Failure(code=error[0], message=error[1]) if error else None, cancel)
    place = _place(target, name, key_file)
    if by and not name:
        raise _usage("--by takes a session and an event name", "a key is recorded by its id", "")
    if not run(lambda: _resolve(place, answer, by, db, json=json)):
        raise Exit(4)


class _Answer:
    """The resolution that the user gave."""

    def __init__(self, value: object, error: Failure | None, cancel: bool) -> None:
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
        raise _usage("--value must be JSON", "a text needs JSON quotation marks", """--value '"yes"'""") from None


def _place(target: str, name: str, key_file: str) -> tuple[str, str]:
    """Return a key and an empty name, or a session and the event's name."""
    if name:
        if key_file:
            raise _usage(
                "SESSION NAME and --key-file are mutually exclusive", "", "perdure resolve SESSION NAME --value JSON"
            )
        _refuse_key(target)
        _refuse_key(name)
        return target, name
    if bool(target) == bool(key_file):
        raise _usage("no wait was named", "", "KEY, -, --key-file PATH, or SESSION NAME")
    return (_read(key_file) if key_file else _read("-") if target == "-" else target), ""


def _refuse_key(name: str) -> None:
    """Refuse a key in the place of a session or an event name, without printing the key."""
    from perdure.errors import Error
    from perdure.vocab.promises import EventKey

    try:
        EventKey.parse(name)
    except Error:
        return
    raise _usage("a key takes no event name", "the key identifies the wait", "perdure resolve KEY --value JSON")


def _read(path: str) -> str:
    import sys
    from pathlib import Path

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
    except (OSError, UnicodeError) as problem:
        raise _usage(
            "cannot read the key", type(problem).__name__, "--key-file PATH, with only the key in the file"
        ) from None
    return text.strip()


def _usage(what: str, because: str, hint: str) -> Exception:
    from perdure.errors import Code, Error

    return Error(Code.INVALID_ARGUMENT, what, because=because, hint=hint)


async def _resolve(place: tuple[str, str], answer: _Answer, by: str, db: str, *, json: bool) -> bool:
    from perdure.cli.screen import emit, say
    from perdure.cli.store_locator import opened
    from perdure.codec import encode
    from perdure.store.shapes import AlreadyResolved

    async with opened(db) as rt:
        shown, resolved = await _resolve_wait(rt, place, answer, by)
    first = resolved.resolution if isinstance(resolved, AlreadyResolved) else None
    if json:
        emit(type="resolved", v=1, promise=shown, accepted=first is None, first=first)
    elif first is None:
        say(f"accepted  {shown}")
    else:
        say(f"already resolved  {shown}")
        say(f"  first  {encode(first).decode()}")
    return first is None


async def _resolve_wait(rt: Runtime, place: tuple[str, str], answer: _Answer, by: str) -> tuple[str, Resolved]:
    """Resolve the wait. Returns the printable name of the promise (of a key only its id) and the result."""
    from typing import cast

    from perdure.cli.options import who
    from perdure.cli.store_locator import find_session
    from perdure.vocab.promises import EventKey

    target, name = place
    value = cast("Json", answer.value)
    if name:
        session = await find_session(rt, target)
        return f"{session.id} {name}", await session.resolve(
            name, value, error=answer.error, cancel=answer.cancel, by=who(by), via="cli"
        )
    key = EventKey.parse(target)
    return key.key_id, await rt.resolve(key, value, error=answer.error, cancel=answer.cancel)
