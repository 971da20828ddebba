"""What clients and people bring: results of calls that the client runs, and answers to questions.

Laws: a result is found by its call, in its own session. What does not fit is refused and changes nothing: the call
stays open. The first that fits stands; the same again is the same, and something else is told that it came too late.
So is whatever comes after its time by the store's clock, also while nobody is at work to notice that it is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from perdure.codec import Json, check_text
from perdure.effects.promises import TurnScope, unsigned_key
from perdure.errors import Code, Error
from perdure.ids import CallId, SessionId, TurnId, session_stream, without_keys
from perdure.runtime.keeping import KeptSecrets
from perdure.runtime.sessions import answers
from perdure.runtime.sessions.contracts import contract_of
from perdure.services.secrets import Veil
from perdure.store.shapes import Accepted, AlreadyResolved, Resolved
from perdure.vocab.effects import AwaitEvent, PreparedToolCall
from perdure.vocab.log_keys import ask_key
from perdure.vocab.promises import AwaitEventKey, Cancelled, ClientResult, Err, Ok, Resolution, TimedOut, UserAnswer
from perdure.vocab.questions import Answer, Question, answered, mismatches, questions_of, values_of
from perdure.vocab.records import EffectStarted
from perdure.vocab.tools import ToolContract

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime

MAX_NAME_BYTES = 512


async def post(rt: Runtime, session: SessionId, results: Mapping[str, Json | Err]) -> dict[CallId, Resolved]:
    """Bring the results of client-side calls: all of them are taken, in one write, or none.

    Raises:
        Error: `tool_call_unknown`, `tool_result_invalid`, `tool_call_answered`, `invalid_json`, `input_too_large`;
            `invalid_argument` for what is no mapping.
    """
    if not isinstance(results, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a caller gives
        raise Error(
            Code.INVALID_ARGUMENT, f"results are given by the id of their call, not as {type(results).__name__}"
        )
    checked: list[tuple[CallId, AwaitEventKey, Ok | Err, int | None]] = []
    for name, result in results.items():
        scope, call = _place(rt, session, name), CallId(name)
        key = unsigned_key(scope.id, ClientResult(call_id=call))
        about, due_at = await _asked(rt, scope, key, call)
        failed = result if isinstance(result, Err) else None
        given = answers.answer_of(None if failed else cast("Json", result), failed)
        assert not isinstance(given, Cancelled)
        if isinstance(given, Ok):
            _check(await contract_of(rt.store, scope.stream, scope.turn, about.tool_name), call, given.value)
        checked.append((call, key, given, due_at))
    known: dict[CallId, Resolved] = {}
    while left := [one for one in checked if one[0] not in known]:
        in_the_way = await answers.resolve_all(rt, session_stream(rt.tenant, session), [one[1:] for one in left])
        for call, key, given, _ in left:
            first = in_the_way.get(key.key_id)
            if first is not None and first != given:
                raise _late(call, first)
            if first is not None:  # who did not hear that it was taken says it again: that is no conflict
                known[call] = AlreadyResolved(first)
            elif not in_the_way:
                known[call] = Accepted()
    return {call: known[call] for call, *_ in checked}


async def answer(
    rt: Runtime, session: SessionId, call: str, given: Mapping[str, Answer], *, by: str, via: str
) -> Resolved:
    """Bring a person's answers to the questions of one call.

    Raises:
        Error: `tool_call_unknown`, `answer_invalid`, `tool_call_answered`, `invalid_argument`.
    """
    if not _named(by, "who answers").strip():
        raise Error(Code.INVALID_ARGUMENT, "an answer says who gives it", hint='session.answer(call, {...}, by="ann")')
    scope = _place(rt, session, call)
    key = unsigned_key(scope.id, UserAnswer(call_id=call))
    about, due_at = await _asked(rt, scope, key, CallId(call))
    questions = questions_of(about.args)
    plain = await _kept(rt, scope, call, questions, _checked(questions, given, call))
    told = answered(plain, by=by, at=rt.clock.wall_ms(), via=_named(via, "where it comes from"))
    resolved = await answers.resolve(rt, key, answers.answer_of(told, None), due_at)
    if isinstance(resolved, AlreadyResolved) and values_of(resolved.resolution) != plain:
        raise _late(CallId(call), resolved.resolution)
    return resolved


async def _kept(
    rt: Runtime, scope: TurnScope, call: str, questions: tuple[Question, ...], given: dict[str, Answer]
) -> dict[str, Answer]:
    """The answers as they are recorded: of a secret, the reference."""
    vault = KeptSecrets(rt.store, rt.secrets, scope.stream, Veil(rt.revealed, scope.stream))
    secret = {question.id for question in questions if question.kind == "secret"}
    return {id: await vault.put(call, id, str(one)) if id in secret else one for id, one in given.items()}


def _place(rt: Runtime, session: SessionId, call: object) -> TurnScope:
    """Where a call belongs: its id begins with its turn."""
    parts = call.rsplit(".", 2) if isinstance(call, str) else []
    if len(parts) != 3 or not parts[0]:
        raise unknown(call)
    return TurnScope(rt.tenant, session, TurnId(parts[0]))


async def _asked(
    rt: Runtime, scope: TurnScope, key: AwaitEventKey, call: CallId
) -> tuple[PreparedToolCall, int | None]:
    """The call as it was emitted, and until when it can be answered."""
    row = await rt.store.find(scope.stream, ask_key(key.key_id))
    match row.record if row is not None else None:
        case EffectStarted(command=AwaitEvent(about=PreparedToolCall() as about), due_at=due_at, redacted=""):
            return about, due_at
        case _:
            raise unknown(call)


def _check(contract: ToolContract | None, call: CallId, value: Json) -> None:
    if contract is None or contract.returns is None:
        return
    from perdure.tools.json_schema import mismatches as misfits

    if problems := misfits(contract.returns, value):
        raise Error(
            Code.TOOL_RESULT_INVALID,
            f"the result of {contract.name} does not fit",
            because="; ".join(problem.removeprefix("- ") for problem in problems),
            hint="the call stays open: post a result that fits, or an error",
            call=call,
        )


def _checked(questions: tuple[Question, ...], given: Mapping[str, Answer], call: str) -> dict[str, Answer]:
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a caller gives
        problems: tuple[str, ...] = ("answers are given by the id of their question",)
    else:
        problems = mismatches(questions, given)
    if problems:
        raise Error(
            Code.ANSWER_INVALID,
            "the answers do not fit the questions",
            because="; ".join(problems),
            hint="the question stays open: answer again",
            call=call,
        )
    return {question.id: given[question.id] for question in questions}


def _late(call: CallId, first: Resolution) -> Error:
    match first:
        case Ok() | Err():
            because = "somebody was first, with something else"
        case TimedOut():
            because = "its time was over"
        case Cancelled():
            because = "nobody waits for it any more"
    what = f"the call {call} was answered before; nothing was taken"
    return Error(Code.TOOL_CALL_ANSWERED, what, because=because, call=call)


def _named(text: object, what: str) -> str:
    if not isinstance(text, str):
        raise Error(Code.INVALID_ARGUMENT, f"{what} must be text, not {type(text).__name__}")
    plain = check_text(text, where=what)
    if len(plain.encode()) > MAX_NAME_BYTES:
        raise Error(Code.INPUT_TOO_LARGE, f"{what} is too long", because=f"the limit is {MAX_NAME_BYTES} bytes")
    return plain


def unknown(call: object) -> Error:
    """There is no such call; nor is there one that is named by something else than its id."""
    return Error(
        Code.TOOL_CALL_UNKNOWN,
        "this session waits for nothing like that",
        because=f"{without_keys(str(call))[:80]!r} is no call that was left to its client, or no question",
        hint="session.pending() lists what is waited for, with the ids of the calls",
    )
