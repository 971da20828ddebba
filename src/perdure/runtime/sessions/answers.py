"""External resolutions of waits, by key or through the session. The first resolution wins.

Laws: an unknown, forged or revoked key, and a key of another tenant or a deleted session, get the same error. A value
is checked before any write.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from perdure.codec import Json, check_text, encode, to_json
from perdure.commit.changes import Audit
from perdure.effects.journal import EffectJournal
from perdure.effects.promises import SECRET, ProcessScope, TurnScope, check_key, revocation_id, scope_of
from perdure.errors import Code, Error
from perdure.ids import PromiseId, Seq, SessionId, StreamId, stream_names
from perdure.observe.ends import end_of, has_turn
from perdure.observe.pending import ask_id
from perdure.offload import offload, weight_of
from perdure.runtime.audit import Actor, act, named
from perdure.store.protocol import Store
from perdure.store.shapes import Accepted, AlreadyResolved, PromiseUnknown, Resolved
from perdure.tools.step_arguments import refuse_unordered
from perdure.vocab.audit import ActRecorded
from perdure.vocab.effects import AwaitEvent
from perdure.vocab.log_keys import PROCESS_END, gate_key, open_key
from perdure.vocab.outcomes import Pending, ToolCallOutcome
from perdure.vocab.promises import (
    Cancelled,
    Custom,
    DoubtVerdict,
    EventKey,
    Failure,
    Ok,
    PromiseState,
    Resolution,
    ToolApproval,
    ToolCompletion,
    TurnCancelGate,
    TurnTerminal,
    unknown_key,
)
from perdure.vocab.records import EffectSettled, Row, TurnEnded

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

MAX_ANSWER_BYTES = 262_144

BEARER = (ToolCompletion, Custom, TurnCancelGate, TurnTerminal)
"""The kinds of wait for which a key suffices. People's decisions are not among them, whatever the signature: they need
a caller that the application has authenticated.
"""


async def answer_of(value: Json, error: Failure | None, *, cancel: bool = False) -> Ok | Failure | Cancelled:
    """Return an external resolution in its stored form.

    Raises:
        Error: `invalid_json`, `invalid_text`, `input_too_large`; `invalid_argument` for more than one resolution, or
            for a `Failure`, `Cancelled` or other resolution as the value.
    """
    _check_kind(value, error, cancel=cancel)
    if cancel:
        return Cancelled()
    return await offload(weight_of((value, error)), _converted, value, error)  # threat: T-TOOL-03


def _check_kind(value: Json, error: Failure | None, *, cancel: bool) -> None:
    """Raise unless the arguments are one resolution. Their content is not read."""
    if type(cancel) is not bool:
        raise Error(Code.INVALID_ARGUMENT, f"cancel must be True or False, not {cancel!r:.40}")
    if sum((value is not None, error is not None, cancel)) > 1:
        raise Error(
            Code.INVALID_ARGUMENT, "value, error and cancel are mutually exclusive", because="a wait has one resolution"
        )
    if isinstance(value, Resolution):  # else a failure would be stored as the value of a success
        raise Error(
            Code.INVALID_ARGUMENT,
            f"value is a resolution ({type(value).__name__}); nothing was written",
            because="a value resolves the wait with success",
            hint="pass the plain value, error=Failure(...) or cancel=True",
        )
    if error is not None and not isinstance(error, Failure):  # pyright: ignore[reportUnnecessaryIsInstance] - any input
        kind = type(error).__name__
        raise Error(
            Code.INVALID_ARGUMENT,
            f"a failure must be a Failure, not {kind}",
            hint='Failure(code="sold_out", message="")',
        )


def _converted(value: Json, error: Failure | None) -> Ok | Failure:
    if error is not None:
        answer = _failure(error)
    else:
        refuse_unordered(value, "the answer")
        answer = Ok(value=to_json(value, where="the answer"))
    if (size := len(encode(answer))) > MAX_ANSWER_BYTES:
        raise Error(
            Code.INPUT_TOO_LARGE,
            f"the answer is {size} bytes",
            because=f"the limit is {MAX_ANSWER_BYTES}",
            hint="send a reference, and let the tool fetch the content",
        )
    return answer


def _failure(error: Failure) -> Failure:
    code, message = check_text(error.code, where="the code"), check_text(error.message, where="the message")
    if not code.strip():
        raise Error(
            Code.INVALID_ARGUMENT, "a failure needs a code", hint='Failure(code="sold_out", message="none left")'
        )
    return Failure(code=code, message=message, raw=to_json(error.raw, where="the raw failure"))


async def resolve_by_key(rt: RuntimeCore, key: object, value: Json, error: Failure | None, *, cancel: bool) -> Resolved:
    """Resolve a wait for a caller that has only a key. The value is read after the check of the key.

    Raises:
        Error: `event_key_invalid`, whatever is wrong with the key; `invalid_argument` for a read-only key; and the
            errors of `answer_of`.
    """
    _check_kind(value, error, cancel=cancel)
    try:
        asked, scope = await _checked(rt, key)
    except Error as problem:
        await rt.audit_log.refuse(rt.tenant, _by_key(key), problem.code)
        raise
    resolution = await answer_of(value, error, cancel=cancel)
    match asked.wait:
        case TurnCancelGate() if isinstance(scope, TurnScope):
            return await _end_turn(rt, scope, resolution)
        case TurnTerminal():
            raise Error(
                Code.INVALID_ARGUMENT,
                "a terminal key cannot resolve a turn",
                hint="await rt.peek(key)",
            )
        case _:
            done = _by_key(asked, scope)
            resolved = await resolve(rt, asked, resolution, audit=await rt.audit_log.notes(rt.tenant, done))
            if isinstance(resolved, AlreadyResolved) and resolved.resolution != resolution:  # else a repeated delivery
                await rt.audit_log.refuse(rt.tenant, done, "already_resolved")
            return resolved


def _by_key(key: object, scope: TurnScope | ProcessScope | None = None) -> ActRecorded:
    """Return the act of a bearer: the id of the key, and never its text. Without a scope, the key is unchecked."""
    with suppress(Error):
        key = EventKey.parse(key) if isinstance(key, str) else key
    id = key.key_id if isinstance(key, EventKey) else ""
    session = scope.session if isinstance(scope, TurnScope) else ""
    process = scope.process if isinstance(scope, ProcessScope) else ""
    return act("key_resolved", Actor(via="key"), session=session, target=named(id), detail=process)


async def resolve(
    rt: RuntimeCore, key: EventKey, resolution: Resolution, due_at: int | None = None, *, audit: Audit = ()
) -> Resolved:
    """Resolve a promise of an open turn or process, and wake its waiters.

    After `due_at` the promise resolves as timed out, by the store's clock. The default is the latest deadline of its
    waits.
    """
    scope = scope_of(key.scope)
    now = rt.clock.wall_ms()
    await rt.check_readable(scope.stream)
    if due_at is None:
        due_at = await _due(rt.store, scope, key)
    try:
        over = await is_over(rt.store, scope)
        promise = PromiseState(id=key.key_id, stream=scope.stream, deadline_at=due_at)
        if over:
            resolution, audit = Cancelled(), ()
        answered = await rt.store.resolve(promise.id, resolution, now=now, make=promise, audit=audit)
    except Error as problem:
        if problem.code is Code.SESSION_UNKNOWN:
            raise unknown_key() from None
        raise
    if isinstance(answered, PromiseUnknown):
        raise unknown_key()
    if isinstance(answered, Accepted) and over:
        return AlreadyResolved(Cancelled())
    await rt.notify_stream(scope.stream)
    return answered


async def resolve_all(
    rt: RuntimeCore, stream: StreamId, given: Sequence[tuple[EventKey, Resolution, int | None]], *, audit: Audit = ()
) -> dict[PromiseId, Resolution]:
    """Resolve several promises of one session's turns, each with its deadline: all or none.

    Returns the resolutions that prevented the write. Waits of an ended turn are cancelled.
    """
    await rt.check_readable(stream)
    scopes = {key.scope for key, _, _ in given}
    over = {scope for scope in scopes if await is_over(rt.store, scope_of(scope))}
    if over:
        states = {key.key_id: await rt.store.peek(key.key_id) for key, _, _ in given if key.scope in over}
        return {id: (state.resolution if state else None) or Cancelled() for id, state in states.items()}
    made = [
        (PromiseState(id=key.key_id, stream=stream, deadline_at=due_at), resolution)
        for key, resolution, due_at in given
    ]
    in_the_way = await rt.store.resolve_all(made, now=rt.clock.wall_ms(), audit=audit)
    await rt.notify_stream(stream)
    return in_the_way


async def _due(store: Store, scope: TurnScope | ProcessScope, key: EventKey) -> int | None:
    """Return the latest deadline of the waits for a key, or None if there is no wait yet or one has no deadline."""
    begins = Seq(0)
    if isinstance(scope, TurnScope):
        opened = await store.find(scope.stream, open_key(scope.turn))
        if opened is None:
            return None
        begins = opened.seq
    journal, left = EffectJournal(), dict[str, int | None]()
    for row in await store.read(scope.stream, after=begins):
        journal.fold(row.record)
        match row.record:
            case EffectSettled(id=id, outcome=ToolCallOutcome(launch=Pending(due_at=due_at))) if due_at is not None:
                left[f"{id}.completion"] = due_at  # the deadline that the tool set for the external completion
            case _:
                pass
    waits = [
        left.get(started.id, started.due_at)
        for started in journal.unsettled()
        if isinstance(started.command, AwaitEvent) and started.command.key.key_id == key.key_id
    ]
    return max(cast("list[int]", waits)) if waits and None not in waits else None


async def peek(rt: RuntimeCore, key: object) -> Resolution | None:
    """Return the resolution of a wait for the bearer of its key, or None while it is open. Changes nothing.

    Raises:
        Error: `event_key_invalid`.
    """
    asked, scope = await _checked(rt, key)
    if isinstance(scope, ProcessScope):
        state, over = await rt.store.peek(asked.key_id), await is_over(rt.store, scope)
        return (state.resolution if state else None) or (Cancelled() if over else None)
    ended = await end_of(rt.store, scope.stream, scope.turn)
    match asked.wait:
        case TurnTerminal():
            return _terminal(ended)
        case TurnCancelGate():
            gate = await rt.store.find(scope.stream, gate_key(scope.turn))
            return Cancelled() if gate is not None and gate.kind == "cancel_requested" else _terminal(ended)
        case _:
            state = await rt.store.peek(asked.key_id)
            known = state.resolution if state else None
            return known if known or ended is None else Cancelled()


async def cancel_waits(rt: RuntimeCore, stream: StreamId, turn_seq: Seq, who: Actor) -> int:
    """Resolve every wait of the open turn with `Cancelled`, and return their number. The turn goes on."""
    journal = EffectJournal()
    for row in await rt.store.read(stream, after=Seq(turn_seq - 1)):
        journal.fold(row.record)
    now, ended = rt.clock.wall_ms(), 0
    for started in journal.unsettled():
        if isinstance(started.command, AwaitEvent) and not isinstance(started.command.key.wait, TurnTerminal):
            promise = PromiseState(id=started.command.key.key_id, stream=stream)
            target = _shown(started.command.key)
            done = act("wait_cancelled", who, session=stream_names(stream)[2], target=target)
            audit = await rt.audit_log.notes(rt.tenant, done)
            answered = await rt.store.resolve(promise.id, Cancelled(), now=now, make=promise, audit=audit)
            ended += isinstance(answered, Accepted)
    await rt.notify_stream(stream)
    return ended


def _shown(key: EventKey) -> str:
    """Return the name of a wait in the audit log: of an approval, a call in doubt or an event, else the key's id."""
    match key.wait:
        case ToolApproval():
            return ask_id("approval", key.key_id)
        case DoubtVerdict():
            return ask_id("doubt", key.key_id)
        case Custom(key=name):
            return name
        case _:
            return key.key_id


async def revoke_keys(rt: RuntimeCore, scope: TurnScope, who: Actor) -> bool:
    """Revoke every key of a turn, permanently. False if that was done before."""
    tombstone = PromiseState(id=revocation_id(scope.id), stream=scope.stream)
    now = rt.clock.wall_ms()
    done = act("keys_revoked", who, session=scope.session, target=scope.turn)
    audit = await rt.audit_log.notes(scope.tenant, done)
    return isinstance(await rt.store.resolve(tombstone.id, Cancelled(), now=now, make=tombstone, audit=audit), Accepted)


async def is_over(store: Store, scope: TurnScope | ProcessScope) -> bool:
    """Return whether the turn or process has ended, so that its waits are closed."""
    if isinstance(scope, ProcessScope):
        return await store.find(scope.stream, PROCESS_END) is not None
    return await end_of(store, scope.stream, scope.turn) is not None


async def _exists(store: Store, scope: TurnScope | ProcessScope) -> bool:
    if isinstance(scope, ProcessScope):
        return await store.stream(scope.stream) is not None
    return await has_turn(store, scope.stream, scope.turn)


async def _checked(rt: RuntimeCore, key: object) -> tuple[EventKey, TurnScope | ProcessScope]:
    """Return a valid key and its scope. A deleted and re-created session has other turns, so old keys stay invalid."""
    asked = EventKey.parse(key) if isinstance(key, str) else key
    if not isinstance(asked, EventKey) or not isinstance(asked.wait, BEARER):  # threat: S8, T-SEC-06
        raise unknown_key()
    check_key(await rt.secrets.get(SECRET, rt.tenant), asked)
    scope = scope_of(asked.scope)
    if scope.tenant != rt.tenant or not await _exists(rt.store, scope):
        raise unknown_key()
    revoked = await rt.store.peek(revocation_id(scope.id))
    if revoked is not None and revoked.resolution is not None:
        raise unknown_key()
    return asked, scope


async def _end_turn(rt: RuntimeCore, scope: TurnScope, resolution: Resolution) -> Resolved:
    session = rt.get_session(SessionId(scope.session))
    reason = resolution.value if isinstance(resolution, Ok) and isinstance(resolution.value, str) else ""
    match await session.cancel(scope.turn, reason=reason, via="key"):
        case "requested":
            return Accepted()
        case "already_requested":
            return AlreadyResolved(Cancelled())
        case "completion_won":
            return AlreadyResolved(_terminal(await end_of(rt.store, scope.stream, scope.turn)) or Ok())
        case "unknown":
            raise unknown_key()


def _terminal(row: Row | None) -> Resolution | None:
    match row.record if row is not None else None:
        case TurnEnded(status="finished"):
            return Ok(value={"status": "finished"})
        case TurnEnded(reason="cancelled"):
            return Cancelled()
        case TurnEnded(reason=reason, message=message):
            return Failure(code=reason or "stopped", message=message)
        case _:
            return None
