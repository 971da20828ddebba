"""Posting of client-side results, and of answers to questions.

Laws: a call id identifies a result within its session. An invalid result is refused, changes nothing and leaves the
call open. The first valid result wins: the same result again is accepted, another one is refused as late. After its
deadline by the store's clock, a result is late even if no worker has noticed the timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from perdure.codec import Json, check_text
from perdure.effects.promises import TurnScope, unsigned_key
from perdure.errors import Code, Error
from perdure.ids import CallId, SessionId, TurnId, session_stream, without_keys
from perdure.runtime.audit import Actor, act
from perdure.runtime.secret_store import StoredSecrets
from perdure.runtime.sessions import answers
from perdure.runtime.sessions.contracts import contract_of
from perdure.services.secrets import Redactor
from perdure.store.shapes import Accepted, AlreadyResolved, Resolved
from perdure.vocab.effects import AwaitEvent, PreparedToolCall
from perdure.vocab.log_keys import ask_key
from perdure.vocab.promises import Cancelled, ClientResult, EventKey, Failure, Ok, Resolution, TimedOut, UserAnswer
from perdure.vocab.questions import Answer, Question, answered, mismatches, questions_of, values_of
from perdure.vocab.records import EffectStarted
from perdure.vocab.tools import ToolContract

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

MAX_NAME_BYTES = 512


async def post(
    rt: RuntimeCore, session: SessionId, results: Mapping[str, Json | Failure], who: Actor
) -> dict[CallId, Resolved]:
    """Post the results of client-side calls, all in one write or none.

    Raises:
        Error: `tool_call_unknown`, `tool_result_invalid`, `tool_call_answered`, `invalid_json`, `input_too_large`;
            `invalid_argument` unless `results` is a mapping.
    """
    if not isinstance(results, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - any input
        raise Error(Code.INVALID_ARGUMENT, f"results must map call ids to results, not {type(results).__name__}")
    checked: list[tuple[CallId, EventKey, Ok | Failure, int | None]] = []
    for name, result in results.items():
        scope, call = _place(rt, session, name), CallId(name)
        key = unsigned_key(scope.id, ClientResult(call_id=call))
        about, due_at = await _asked(rt, scope, key, call)
        failed = result if isinstance(result, Failure) else None
        given = await answers.answer_of(None if failed else cast("Json", result), failed)
        assert not isinstance(given, Cancelled)
        if isinstance(given, Ok):
            await _check(await contract_of(rt.store, scope.stream, scope.turn, about.tool_name), call, given.value)
        checked.append((call, key, given, due_at))
    known: dict[CallId, Resolved] = {}
    while left := [one for one in checked if one[0] not in known]:
        done = [act("result_posted", who, session=session, target=call) for call, *_ in left]
        audit = await rt.audit_log.notes(rt.tenant, *done)
        in_the_way = await answers.resolve_all(
            rt, session_stream(rt.tenant, session), [one[1:] for one in left], audit=audit
        )
        for call, key, given, _ in left:
            first = in_the_way.get(key.key_id)
            if first is not None and first != given:
                raise _late(call, first)
            if first is not None:  # a repeated post after a lost reply is no conflict
                known[call] = AlreadyResolved(first)
            elif not in_the_way:
                known[call] = Accepted()
    return {call: known[call] for call, *_ in checked}


async def answer(
    rt: RuntimeCore, session: SessionId, call: str, given: Mapping[str, Answer], *, by: str, via: str
) -> Resolved:
    """Record a person's answers to the questions of one call.

    Raises:
        Error: `tool_call_unknown`, `answer_invalid`, `tool_call_answered`, `invalid_argument`.
    """
    if not _named(by, "by").strip():
        raise Error(Code.INVALID_ARGUMENT, "an answer needs a name", hint='session.answer(call, {...}, by="ann")')
    scope = _place(rt, session, call)
    key = unsigned_key(scope.id, UserAnswer(call_id=call))
    about, due_at = await _asked(rt, scope, key, CallId(call))
    questions = questions_of(about.args)
    plain = await _kept(rt, scope, key, due_at, questions, _checked(questions, given, call))
    told = answered(plain, by=by, at=rt.clock.wall_ms(), via=_named(via, "via"))
    done = [act("question_answered", Actor(by, via), session=session, target=call)]
    done += [act("secret_stored", Actor(by, via), session=session, target=ref) for ref in _secrets(questions, plain)]
    audit = await rt.audit_log.notes(rt.tenant, *done)
    resolved = await answers.resolve(rt, key, await answers.answer_of(told, None), due_at, audit=audit)
    if isinstance(resolved, AlreadyResolved) and values_of(resolved.resolution) != plain:
        raise _late(CallId(call), resolved.resolution)
    return resolved


async def _kept(
    rt: RuntimeCore,
    scope: TurnScope,
    key: EventKey,
    due_at: int | None,
    questions: tuple[Question, ...],
    given: dict[str, Answer],
) -> dict[str, Answer]:
    """Return the answers as they are recorded, with a reference instead of each secret.

    Secrets for a closed question are not stored: that answer is a repeated one, or is refused.
    """
    secret = _secret_ids(questions)
    if not secret & given.keys():
        return given
    vault = StoredSecrets(rt.store, rt.secrets, scope.stream, Redactor(rt.seen_secrets, scope.stream), rt.audit_log)
    keep = vault.put if await _is_open(rt, scope, key, due_at) else vault.reference  # threat: S10
    call = str(cast("UserAnswer", key.wait).call_id)
    return {id: await keep(call, id, str(one)) if id in secret else one for id, one in given.items()}


async def _is_open(rt: RuntimeCore, scope: TurnScope, key: EventKey, due_at: int | None) -> bool:
    """Return whether a question can be answered. A closed question stays closed."""
    known = await rt.store.peek(key.key_id)
    if (known is not None and known.resolution is not None) or await answers.is_over(rt.store, scope):
        return False
    return due_at is None or await rt.store.now() < due_at


def _secrets(questions: tuple[Question, ...], given: Mapping[str, Answer]) -> list[str]:
    """Return the references among the answers."""
    return [str(given[id]) for id in sorted(_secret_ids(questions))]


def _secret_ids(questions: tuple[Question, ...]) -> set[str]:
    return {question.id for question in questions if question.kind == "secret"}


def _place(rt: RuntimeCore, session: SessionId, call: object) -> TurnScope:
    """Return the scope of a call, whose id begins with its turn."""
    parts = call.rsplit(".", 2) if isinstance(call, str) else []
    if len(parts) != 3 or not parts[0]:
        raise unknown(call)
    return TurnScope(rt.tenant, session, TurnId(parts[0]))


async def _asked(rt: RuntimeCore, scope: TurnScope, key: EventKey, call: CallId) -> tuple[PreparedToolCall, int | None]:
    """Return the call as it was emitted, and its deadline."""
    row = await rt.store.find(scope.stream, ask_key(key.key_id))
    match row.record if row is not None else None:
        case EffectStarted(command=AwaitEvent(about=PreparedToolCall() as about), due_at=due_at, redacted=""):
            return about, due_at
        case _:
            raise unknown(call)


async def _check(contract: ToolContract | None, call: CallId, value: Json) -> None:
    if contract is None or contract.returns is None:
        return
    from perdure.tools.json_schema import mismatches as misfits

    if problems := await misfits(contract.returns, value):
        raise Error(
            Code.TOOL_RESULT_INVALID,
            f"the result of {contract.name} does not match its schema",
            because="; ".join(problem.removeprefix("- ") for problem in problems),
            hint="the call stays open: post a valid result or an error",
            call=call,
        )


def _checked(questions: tuple[Question, ...], given: Mapping[str, Answer], call: str) -> dict[str, Answer]:
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - any input
        problems: tuple[str, ...] = ("answers must map question ids to answers",)
    else:
        problems = mismatches(questions, given)
    if problems:
        raise Error(
            Code.ANSWER_INVALID,
            "the answers do not match the questions",
            because="; ".join(problems),
            hint="the question stays open: answer again",
            call=call,
        )
    return {question.id: given[question.id] for question in questions}


def _late(call: CallId, first: Resolution) -> Error:
    match first:
        case Ok() | Failure():
            because = "an earlier resolution differs"
        case TimedOut():
            because = "the deadline has passed"
        case Cancelled():
            because = "the wait was cancelled"
    what = f"the call {call} is already resolved; nothing was written"
    return Error(Code.TOOL_CALL_ANSWERED, what, because=because, call=call)


def _named(text: object, what: str) -> str:
    if not isinstance(text, str):
        raise Error(Code.INVALID_ARGUMENT, f"{what} must be text, not {type(text).__name__}")
    plain = check_text(text, where=what)
    if len(plain.encode()) > MAX_NAME_BYTES:
        raise Error(Code.INPUT_TOO_LARGE, f"{what} is too long", because=f"the limit is {MAX_NAME_BYTES} bytes")
    return plain


def unknown(call: object) -> Error:
    """Return the error for a call that the session does not wait for."""
    return Error(
        Code.TOOL_CALL_UNKNOWN,
        "unknown open call or question",
        because=f"{without_keys(str(call))[:80]!r} names neither an open client-side call nor a question",
        hint="await session.pending()",
    )
