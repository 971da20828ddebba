"""`perdure sessions send | cancel | pause | resume | answer | post-result`: the commands that act on a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

from typer import Argument, Exit, Option

from perdure.cli.options import By, Db, Json, SessionName, who

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typer import Typer

    from perdure.observe.pending import PendingItem
    from perdure.runtime.sessions.session import Session
    from perdure.vocab.questions import Question

Item = TypeVar("Item", bound="PendingItem")


def add_to(app: Typer) -> None:
    """Add these commands to `perdure sessions`."""
    for command in (send, cancel, pause, resume, answer, post_result):
        app.command()(command)


def send(  # noqa: PLR0913 - its options, each one word
    session: SessionName,
    text: Annotated[str, Argument(metavar="TEXT", help="The input text; - reads stdin.", show_default=False)],
    mode: Annotated[str, Option(metavar="MODE", help="queue, steer or interrupt.")] = "queue",
    key: Annotated[
        str | None, Option(metavar="KEY", help="Idempotency key: the same key and text is one input.")
    ] = None,
    replace_key: Annotated[
        str | None, Option(metavar="KEY", help="Replace a queued input with the same replace key.")
    ] = None,
    by: By = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Send an input to a session; a worker runs the turn.

    The input is durable when the command returns.
    """
    import sys

    from perdure.cli.store_locator import run

    said = sys.stdin.read() if text == "-" else text
    run(lambda: _send(session, said, mode, key, replace_key, by, db, json=json))


async def _send(  # noqa: PLR0913 - the options of the command
    name: str, text: str, mode: str, key: str | None, replace_key: str | None, by: str, db: str, *, json: bool
) -> None:
    from typing import cast

    from perdure.cli.program import own_command
    from perdure.cli.screen import emit, note
    from perdure.cli.store_locator import db_flag, find_session, opened
    from perdure.vocab.records import InputMode

    async with opened(db) as rt:
        session = await find_session(rt, name)
        where = cast("InputMode", mode)
        sent = await session.send(text, mode=where, key=key, replace_key=replace_key, sent_by=who(by))
    if json:
        emit(type="sent", v=1, session=session.id, turn=sent.turn_id, input=sent.input_id, duplicate=sent.is_duplicate)
    else:
        what = "Sent before; nothing was added." if sent.is_duplicate else f"Sent as {sent.input_id}."
        note(f"{what}  watch: {own_command('sessions watch', session.id, flags=db_flag(db))}")


def cancel(
    session: SessionName,
    input: Annotated[str | None, Option(metavar="INPUT", help="Cancel this queued input instead.")] = None,
    include_later: Annotated[bool, Option("--include-later", help="With --input: and all later inputs.")] = False,
    reason: Annotated[str, Option(metavar="TEXT", help="Reason, for the record.")] = "",
    by: By = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Cancel the running turn, or a queued input.

    The exit code is 4 if the request came too late.
    """
    from perdure.cli.store_locator import run

    if input is not None and not input.strip():
        raise _usage("--input must not be blank", "nothing was cancelled", "perdure sessions show SESSION")
    if include_later and input is None:
        raise _usage("--include-later needs --input", "nothing was cancelled", "--input INPUT --include-later")
    outcome = run(lambda: _cancel(session, input or "", reason, by, db, include_later=include_later, json=json))
    if outcome in ("unknown", "not_found"):
        raise Exit(3)
    if outcome in ("completion_won", "completed", "already_claimed"):
        raise Exit(4)


def _usage(what: str, because: str, hint: str) -> Exception:
    from perdure.errors import Code, Error

    return Error(Code.INVALID_ARGUMENT, what, because=because, hint=hint)


async def _cancel(name: str, input: str, reason: str, by: str, db: str, *, include_later: bool, json: bool) -> str:
    from perdure.cli.screen import emit, say
    from perdure.cli.store_locator import find_session, opened

    async with opened(db) as rt:
        session = await find_session(rt, name)
        inputs: tuple[str, ...] = ()
        if input:
            done = await session.cancel_input(input, include_later=include_later, reason=reason, by=who(by), via="cli")
            outcome, inputs = done.outcome, done.inputs
        else:
            outcome = await session.cancel(reason=reason, by=who(by), via="cli")
    if json:
        emit(type="cancel", v=1, session=session.id, outcome=outcome, inputs=list(inputs))
    else:
        say(outcome.replace("_", " ") + (f": {', '.join(inputs)}" if inputs else ""))
    return outcome


def pause(
    session: SessionName,
    reason: Annotated[str, Option(metavar="TEXT", help="Reason, for the record.")] = "",
    by: By = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Pause a session: no new turns start.

    Inputs are kept. A running turn continues to its end.
    """
    from perdure.cli.store_locator import run

    run(lambda: _pause(session, reason, who(by), db, json=json))


async def _pause(name: str, reason: str, by: str, db: str, *, json: bool) -> None:
    from perdure.cli.store_locator import find_session, opened

    async with opened(db) as rt:
        session = await find_session(rt, name)
        new = await session.pause(by=by, reason=reason, via="cli")
    _report(session, "paused", "was already paused", new=new, json=json)


def resume(session: SessionName, by: By = "", db: Db = "", json: Json = False) -> None:
    """Resume a paused session."""
    from perdure.cli.store_locator import run

    run(lambda: _resume(session, who(by), db, json=json))


async def _resume(name: str, by: str, db: str, *, json: bool) -> None:
    from perdure.cli.store_locator import find_session, opened

    async with opened(db) as rt:
        session = await find_session(rt, name)
        new = await session.resume(by=by, via="cli")
    _report(session, "resumed", "was not paused", new=new, json=json)


def _report(session: Session, done: str, before: str, *, new: bool, json: bool) -> None:
    from perdure.cli.screen import emit, say

    if json:
        emit(type=done, v=1, session=session.id, new=new)
    else:
        say(f"{session.id} {done if new else before}")


def answer(
    session: SessionName,
    answers: Annotated[list[str] | None, Argument(metavar="ID=TEXT...", help="One answer per question.")] = None,
    call: Annotated[str, Option(metavar="CALL", help="The call, if several have questions.", show_default=False)] = "",
    by: By = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Answer the questions that a session asks a person.

    A secret is never taken from the command line; the command prompts for it.
    """
    from perdure.cli.store_locator import run

    run(lambda: _answer(session, answers or [], call, by, db, json=json))


async def _answer(name: str, given: list[str], call: str, by: str, db: str, *, json: bool) -> None:
    from perdure.cli.screen import emit, say
    from perdure.cli.store_locator import find_session, opened
    from perdure.observe.pending import PendingQuestion

    said = dict(_pair(one) for one in given)
    async with opened(db) as rt:
        session = await find_session(rt, name)
        item = _only([one for one in await session.pending() if isinstance(one, PendingQuestion)], call, "question")
        answers: dict[str, str | list[str]] = {}
        for question in item.questions:
            if question.kind == "secret":
                if question.id in said:
                    because = "the shell stores command lines in its history; nothing was answered"
                    raise _usage(
                        f"{question.id} is a secret", because, f"omit {question.id}= and type the secret at the prompt"
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


def post_result(
    session: SessionName,
    value: Annotated[
        str | None, Argument(metavar="[JSON]", help="The result; - reads stdin.", show_default=False)
    ] = None,
    error: Annotated[
        tuple[str, str] | None, Option("--error", metavar="CODE MESSAGE", help="Report a failure.", show_default=False)
    ] = None,
    call: Annotated[str, Option(metavar="CALL", help="The call, if several wait.", show_default=False)] = "",
    db: Db = "",
    json: Json = False,
) -> None:
    """Post the result of a client-side call."""
    import sys

    from perdure.cli.store_locator import run

    if (value is None) is (error is None):
        raise _usage(
            "exactly one result is needed", "a call has a result or a failure", "JSON, or --error CODE MESSAGE"
        )
    text = sys.stdin.read() if value == "-" else value
    run(lambda: _post_result(session, text, error, call, db, json=json))


async def _post_result(
    name: str, text: str | None, error: tuple[str, str] | None, call: str, db: str, *, json: bool
) -> None:
    from perdure.cli.screen import emit, say
    from perdure.cli.store_locator import find_session, opened
    from perdure.codec import decode
    from perdure.errors import Code, Error
    from perdure.observe.pending import PendingClientCall
    from perdure.vocab.promises import Failure

    try:
        result = decode(text.encode()) if text is not None else None
    except (Error, UnicodeError):
        hint = """'"text"', '{"lat": 1}', or - for stdin"""
        raise Error(Code.INVALID_JSON, "the result is not JSON; nothing was posted", hint=hint) from None
    failed = Failure(code=error[0], message=error[1]) if error is not None else None
    async with opened(db) as rt:
        session = await find_session(rt, name)
        waiting = [one for one in await session.pending() if isinstance(one, PendingClientCall)]
        item = _only(waiting, call, "client call")
        await session.post_result(item.id, result, error=failed, by=who(""), via="cli")
    if json:
        emit(type="posted", v=1, session=session.id, call=item.id)
    else:
        say(f"{item.id} ({item.tool}) result posted")


def _pair(given: str) -> tuple[str, str]:
    id, equals, text = given.partition("=")
    if not equals or not id:
        raise _usage(f"invalid answer {given!r:.60}", "expected ID=TEXT", "perdure sessions answer S size=L")
    return id, text


def _only(waiting: Sequence[Item], call: str, what: str) -> Item:
    """Return the named item, or the only one."""
    from perdure.errors import Code, Error

    found = [one for one in waiting if one.id.startswith(call)]
    if not found:
        raise Error(Code.TOOL_CALL_UNKNOWN, f"no pending {what}", hint="perdure why SESSION")
    if len(found) > 1:
        names = ", ".join(one.id for one in found)
        raise Error(Code.INVALID_ID, f"several pending {what}s", because=names, hint="--call CALL")
    return found[0]


def _asked(question: Question) -> str | None:
    """Prompt for an answer that the command line lacks. None without a terminal."""
    import sys

    from perdure.cli.screen import in_line

    if not sys.stdin.isatty():
        return None
    options = f" ({', '.join(question.options)})" if question.options else ""
    print(in_line(f"{question.question}{options} "), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().rstrip("\n")


def _typed(question: str) -> str:
    """Read a secret: from a prompt without echo, or as a line of stdin."""
    import sys
    from getpass import getpass

    from perdure.cli.screen import in_line

    if sys.stdin.isatty():
        return getpass(f"{in_line(question)} ")
    return sys.stdin.readline().rstrip("\n")
