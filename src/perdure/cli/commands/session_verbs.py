"""`perdure sessions send | cancel | pause | resume | answer | post`: what is done to a session from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

from typer import Argument, Exit, Option

from perdure.cli.options import Db, Json, SessionName, who

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typer import Typer

    from perdure.observe.pending import PendingItem
    from perdure.runtime.sessions.session import Session
    from perdure.vocab.questions import Question

Item = TypeVar("Item", bound="PendingItem")

By = Annotated[str, Option(metavar="NAME", help="Who does it; your login name if not said.", show_default=False)]


def add_to(app: Typer) -> None:
    """Make these commands of `perdure sessions`."""
    for command in (send, cancel, pause, resume, answer, post):
        app.command()(command)


def send(  # noqa: PLR0913 - its options, each one word
    session: SessionName,
    text: Annotated[str, Argument(metavar="TEXT", help="What to say; - reads the standard input.", show_default=False)],
    mode: Annotated[str, Option(metavar="MODE", help="queue, steer (the running turn) or interrupt (it).")] = "queue",
    key: Annotated[str | None, Option(metavar="KEY", help="The same key and text again is the same input.")] = None,
    merge_key: Annotated[str | None, Option(metavar="KEY", help="Replace what waits under the same merge key.")] = None,
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
    name: str, text: str, mode: str, key: str | None, merge_key: str | None, by: str, db: str, *, json: bool
) -> None:
    from typing import cast

    from perdure.cli.places import db_flag, find_session, opened
    from perdure.cli.screen import emit, note
    from perdure.vocab.records import InputMode

    async with opened(db) as rt:
        session = await find_session(rt, name)
        where = cast("InputMode", mode)
        sent = await session.send(text, mode=where, key=key, merge_key=merge_key, source=who(by))
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
            done = await session.cancel_input(input, and_behind=and_behind, reason=reason, origin=who(by))
            outcome, inputs = done.outcome, done.inputs
        else:
            outcome = await session.cancel(reason=reason, origin=who(by))
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

    run(lambda: _pause(session, reason, who(by), db, json=json))


async def _pause(name: str, reason: str, by: str, db: str, *, json: bool) -> None:
    from perdure.cli.places import find_session, opened

    async with opened(db) as rt:
        session = await find_session(rt, name)
        new = await session.pause(by=by, reason=reason)
    _told(session, "paused", "was paused already", new=new, json=json)


def resume(session: SessionName, by: By = "", db: Db = "", json: Json = False) -> None:
    """Go on with a session that was paused."""
    from perdure.cli.places import run

    run(lambda: _resume(session, who(by), db, json=json))


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


def answer(
    session: SessionName,
    answers: Annotated[list[str] | None, Argument(metavar="ID=TEXT...", help="An answer for each question.")] = None,
    call: Annotated[str, Option(metavar="CALL", help="Which call, if several ask.", show_default=False)] = "",
    by: By = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Answer what a session asks a person. Secrets are never taken from the command line: they are asked for here."""
    from perdure.cli.places import run

    run(lambda: _answer(session, answers or [], call, by, db, json=json))


async def _answer(name: str, given: list[str], call: str, by: str, db: str, *, json: bool) -> None:
    from perdure.cli.places import find_session, opened
    from perdure.cli.screen import emit, say
    from perdure.observe.pending import PendingQuestion

    said = dict(_pair(one) for one in given)
    async with opened(db) as rt:
        session = await find_session(rt, name)
        item = _only([one for one in await session.pending() if isinstance(one, PendingQuestion)], call, "question")
        answers: dict[str, str | list[str]] = {}
        for question in item.questions:
            if question.kind == "secret":
                if question.id in said:
                    because = "it would stand in your shell's history; nothing was answered"
                    raise _usage(
                        f"{question.id} is a secret", because, f"leave {question.id}= out, and type it when asked"
                    )
                answers[question.id] = _typed(question.question)
            elif (text := said[question.id] if question.id in said else _asked(question)) is not None:
                answers[question.id] = text.split(",") if question.multiple else text
        strange = {id: text for id, text in said.items() if id not in answers}
        await session.answer(item.id, {**answers, **strange}, by=who(by), via="cli")
    if json:
        emit(type="answered", v=1, session=session.id, call=item.id, by=who(by))
    else:
        say(f"{item.id} answered by {who(by)}")


def post(
    session: SessionName,
    value: Annotated[
        str | None, Argument(metavar="[JSON]", help="The result; - reads the standard input.", show_default=False)
    ] = None,
    err: Annotated[
        tuple[str, str] | None, Option("--err", metavar="CODE MESSAGE", help="It failed.", show_default=False)
    ] = None,
    call: Annotated[str, Option(metavar="CALL", help="Which call, if several wait.", show_default=False)] = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Bring the result of a call that a session left to its client."""
    import sys

    from perdure.cli.places import run

    if (value is None) is (err is None):
        raise _usage("say one result", "a call has a result or a failure", "JSON, or --err CODE MESSAGE")
    text = sys.stdin.read() if value == "-" else value
    run(lambda: _post(session, text, err, call, db, json=json))


async def _post(name: str, text: str | None, err: tuple[str, str] | None, call: str, db: str, *, json: bool) -> None:
    from perdure.cli.places import find_session, opened
    from perdure.cli.screen import emit, say
    from perdure.codec import decode
    from perdure.errors import Code, Error
    from perdure.observe.pending import PendingClientCall
    from perdure.vocab.promises import Err

    try:
        result = decode(text.encode()) if text is not None else None
    except (Error, UnicodeError):
        hint = """'"text"', '{"lat": 1}', or - for the standard input"""
        raise Error(Code.INVALID_JSON, "the result is not JSON; nothing was posted", hint=hint) from None
    failed = Err(code=err[0], message=err[1]) if err is not None else None
    async with opened(db) as rt:
        session = await find_session(rt, name)
        waiting = [one for one in await session.pending() if isinstance(one, PendingClientCall)]
        item = _only(waiting, call, "call of the client")
        await session.post_result(item.id, result, error=failed)
    if json:
        emit(type="posted", v=1, session=session.id, call=item.id)
    else:
        say(f"{item.id} ({item.tool}) has its result")


def _pair(given: str) -> tuple[str, str]:
    id, equals, text = given.partition("=")
    if not equals or not id:
        raise _usage(f"{given!r:.60} is no answer", "an answer names its question", "perdure sessions answer S size=L")
    return id, text


def _only(waiting: Sequence[Item], call: str, what: str) -> Item:
    """What is meant: the one that waits, or the one that was named."""
    from perdure.errors import Code, Error

    found = [one for one in waiting if one.id.startswith(call)]
    if not found:
        raise Error(Code.TOOL_CALL_UNKNOWN, f"no {what} waits here", hint="perdure why SESSION")
    if len(found) > 1:
        names = ", ".join(one.id for one in found)
        raise Error(Code.INVALID_ID, f"more than one {what} waits", because=names, hint="--call CALL")
    return found[0]


def _asked(question: Question) -> str | None:
    """An answer that was not given with the command, from whoever sits there; None if nobody does."""
    import sys

    from perdure.cli.screen import in_line

    if not sys.stdin.isatty():
        return None
    options = f" ({', '.join(question.options)})" if question.options else ""
    print(in_line(f"{question.question}{options} "), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().rstrip("\n")


def _typed(question: str) -> str:
    """A secret, from whoever sits there, unseen; or a line of the standard input."""
    import sys
    from getpass import getpass

    from perdure.cli.screen import in_line

    if sys.stdin.isatty():
        return getpass(f"{in_line(question)} ")
    return sys.stdin.readline().rstrip("\n")
