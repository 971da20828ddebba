"""`perdure sessions send | cancel | pause | resume`: what is done to a session from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from perdure.cli.options import Db, Json, SessionName

if TYPE_CHECKING:
    from typer import Typer

    from perdure.runtime.session import Session

By = Annotated[str, Option(metavar="NAME", help="Who does it; your login name if not said.", show_default=False)]


def add_to(app: Typer) -> None:
    """Make these commands of `perdure sessions`."""
    for command in (send, cancel, pause, resume):
        app.command()(command)


def _who(by: str) -> str:
    from getpass import getuser

    try:
        return by or getuser()
    except (OSError, KeyError):
        return "cli"


def send(  # noqa: PLR0913 - its options, each one word
    session: SessionName,
    text: Annotated[str, Argument(metavar="TEXT", help="What to say; - reads the standard input.", show_default=False)],
    mode: Annotated[str, Option(metavar="MODE", help="queue, steer (the running turn) or interrupt (it).")] = "queue",
    key: Annotated[str, Option(metavar="KEY", help="The same key and text again is the same input.")] = "",
    merge_key: Annotated[str, Option(metavar="KEY", help="Replace what waits under the same merge key.")] = "",
    by: By = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Say something to a session; a worker answers. Durable when this returns."""
    import sys

    from perdure.cli.places import run

    said = sys.stdin.read() if text == "-" else text
    run(lambda: _send(session, said, mode, key, merge_key, by, db, json=json))


async def _send(  # noqa: PLR0913 - the options of the command
    name: str, text: str, mode: str, key: str, merge_key: str, by: str, db: str, *, json: bool
) -> None:
    from typing import cast

    from perdure.cli.places import db_flag, find_session, opened
    from perdure.cli.screen import emit, note
    from perdure.vocab.records import InputMode

    async with opened(db) as rt:
        session = await find_session(rt, name)
        sent = await session.send(
            text, mode=cast("InputMode", mode), key=key or None, merge_key=merge_key or None, source=_who(by)
        )
    if json:
        emit(type="sent", v=1, session=session.id, turn=sent.turn, input=sent.input, duplicate=sent.duplicate)
    else:
        what = "Sent before: the same input." if sent.duplicate else f"Sent as {sent.input}."
        note(f"{what}  watch: perdure sessions watch {session.id}{db_flag(db)}")


def cancel(
    session: SessionName,
    input: Annotated[str | None, Option(metavar="INPUT", help="Take back this input, which waits, instead.")] = None,
    and_behind: Annotated[bool, Option("--and-behind", help="With --input: all that came after it, too.")] = False,
    reason: Annotated[str, Option(metavar="TEXT", help="Why.")] = "",
    by: By = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Ask for the running turn to end, or take back an input that waits. Too late: the exit code is 4."""
    from perdure.cli.places import run

    if input is not None and not input.strip():
        raise _usage("--input names no input", "it is blank; nothing was cancelled", "perdure sessions show SESSION")
    if and_behind and input is None:
        raise _usage("--and-behind needs --input", "it says behind which one", "--input INPUT --and-behind")
    outcome = run(lambda: _cancel(session, input or "", reason, by, db, and_behind=and_behind, json=json))
    if outcome in ("unknown", "not_found"):
        raise Exit(3)
    if outcome in ("completion_won", "completed", "already_claimed"):
        raise Exit(4)


def _usage(what: str, because: str, hint: str) -> Exception:
    from perdure.errors import Code, Error

    return Error(Code.INVALID_ARGUMENT, what, because=because, hint=hint)


async def _cancel(name: str, input: str, reason: str, by: str, db: str, *, and_behind: bool, json: bool) -> str:
    from perdure.cli.places import find_session, opened
    from perdure.cli.screen import emit, say

    async with opened(db) as rt:
        session = await find_session(rt, name)
        inputs: tuple[str, ...] = ()
        if input:
            done = await session.cancel_input(input, and_behind=and_behind, reason=reason, origin=_who(by))
            outcome, inputs = done.outcome, done.inputs
        else:
            outcome = await session.cancel(reason=reason, origin=_who(by))
    if json:
        emit(type="cancel", v=1, session=session.id, outcome=outcome, inputs=list(inputs))
    else:
        say(outcome.replace("_", " ") + (f": {', '.join(inputs)}" if inputs else ""))
    return outcome


def pause(
    session: SessionName,
    reason: Annotated[str, Option(metavar="TEXT", help="Why.")] = "",
    by: By = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Begin nothing more in a session. Inputs are kept; what is under way goes on to its end."""
    from perdure.cli.places import run

    run(lambda: _pause(session, reason, _who(by), db, json=json))


async def _pause(name: str, reason: str, by: str, db: str, *, json: bool) -> None:
    from perdure.cli.places import find_session, opened

    async with opened(db) as rt:
        session = await find_session(rt, name)
        new = await session.pause(by=by, reason=reason)
    _told(session, "paused", "was paused already", new=new, json=json)


def resume(session: SessionName, by: By = "", db: Db = "", json: Json = False) -> None:
    """Go on with a session that was paused."""
    from perdure.cli.places import run

    run(lambda: _resume(session, _who(by), db, json=json))


async def _resume(name: str, by: str, db: str, *, json: bool) -> None:
    from perdure.cli.places import find_session, opened

    async with opened(db) as rt:
        session = await find_session(rt, name)
        new = await session.resume(by=by)
    _told(session, "resumed", "was not paused", new=new, json=json)


def _told(session: Session, done: str, before: str, *, new: bool, json: bool) -> None:
    from perdure.cli.screen import emit, say

    if json:
        emit(type=done, v=1, session=session.id, new=new)
    else:
        say(f"{session.id} {done if new else before}")
