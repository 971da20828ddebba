"""The approval inbox: open questions to people across sessions, and their decisions.

Laws: the first decision stands, and a later one is refused with its author. Every decision has a name. A decision only
resolves a promise; the owner of the session acts on it, and the store allows that once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol

from msgspec.structs import replace

from perdure.clock import Clock
from perdure.codec import Json, check_text, encode, to_json
from perdure.effects.promises import TurnScope
from perdure.errors import Code, Error
from perdure.ids import PromiseId, StreamId, Tenant, TurnId, WorkerId, without_keys
from perdure.observe.hub import PEOPLE, Hub
from perdure.observe.pending import PendingDecision, decision_owed
from perdure.offload import offload, weight_of
from perdure.runtime.audit import Actor, AuditLog, act
from perdure.runtime.pages import check_limit
from perdure.runtime.sessions.contracts import contract_of
from perdure.store.protocol import Store
from perdure.store.shapes import Accepted, AlreadyResolved, Resolved
from perdure.tools.json_schema import mismatches
from perdure.vocab.approvals import Decision, Verdict, decision_of
from perdure.vocab.audit import Act, ActRecorded
from perdure.vocab.effects import AwaitEvent
from perdure.vocab.log_keys import ask_key, gate_key, open_key
from perdure.vocab.promises import Cancelled, PromiseState, Resolution, TimedOut
from perdure.vocab.records import EffectStarted
from perdure.vocab.refs import EffectRef, is_part, part_beside

MIN_PREFIX_CHARS = 8
MAX_NAME_CHARS = 200
MAX_REASON_BYTES = 4096
MAX_DECISION_BYTES = 262_144
POLL_PAUSE_S = 0.05  # the shortest pause between two polls
OVERLAP_MS = 60_000  # request times come from several clocks: a poll overlaps the last one by this much

Status = Literal["waiting", "approved", "denied", "settled", "expired", "withdrawn"]
Outcome = Literal["happened", "did_not_happen", "unknown"]


@dataclass(frozen=True, slots=True)
class Approval:
    """A question to people and its state. `used_at` is the time at which the approved call started."""

    question: PendingDecision
    status: Status
    decision: Decision | None = None
    used_at: int | None = None


class ApprovalsPort(Protocol):
    """The parts of a runtime that the approval inbox uses."""

    @property
    def store(self) -> Store: ...  # noqa: D102
    @property
    def clock(self) -> Clock: ...  # noqa: D102
    @property
    def tenant(self) -> Tenant: ...  # noqa: D102
    @property
    def hub(self) -> Hub: ...  # noqa: D102
    def check_usable(self) -> None: ...  # noqa: D102
    @property
    def audit_log(self) -> AuditLog: ...  # noqa: D102
    async def check_readable(self, stream: StreamId) -> None: ...  # noqa: D102
    async def notify_stream(self, stream: StreamId) -> None: ...  # noqa: D102


class Approvals:
    """`rt.approvals`: list, read, decide and watch questions to people. Works on any runtime of the store."""

    def __init__(self, host: ApprovalsPort) -> None:
        self._host = host

    async def list(self, *, limit: int = 50, after: PendingDecision | None = None) -> tuple[PendingDecision, ...]:
        """Return the open questions, oldest first. `after` is the last one of the previous page.

        Raises:
            Error: `invalid_argument`.
        """
        self._host.check_usable()
        check_limit(limit)
        if after is not None and not isinstance(after, PendingDecision):  # pyright: ignore[reportUnnecessaryIsInstance] - any input
            raise Error(Code.INVALID_ARGUMENT, "after must be the last item of the previous page")
        place = None
        if after is not None:
            last = await self._host.store.peek(after.promise)
            place = (last.requested_at if last and last.requested_at is not None else after.since, after.promise)
        open = await self._host.store.asked(tenant=self._host.tenant, limit=limit, after=place)
        asked = [await _question(self._host, state) for state in open]
        return tuple([found for found, _ in filter(None, asked)])

    async def get(self, id: str) -> Approval:
        """Return one question, open or decided.

        Raises:
            Error: `approval_unknown`, also for a prefix of an id.
        """
        state, asked, _ = await self._found(id)
        decision = decision_of(state.resolution)
        used = state.consumed_at is not None  # also after a redaction
        return Approval(asked, "approved" if used else _status(state.resolution), decision, state.consumed_at)

    async def approve(
        self,
        id: str,
        *,
        by: str,
        args: Mapping[str, Json] | None = None,
        for_session: bool = False,
        reason: str = "",
        via: str = "api",
    ) -> Decision:
        """Approve a call, as it is or with other arguments (`args` replaces all). The model is told about the change.

        `for_session` also allows later calls of the tool in this session, until `session.revoke_grant(...)`.

        Raises:
            Error: `approval_already_decided`, `approval_stale`, `approval_unknown`; `invalid_argument` for arguments
                that the tool does not accept, or a `for_session` that is neither True nor False.
        """
        if type(for_session) is not bool:
            raise Error(Code.INVALID_ARGUMENT, f"for_session must be True or False, not {for_session!r}")
        args = await offload(weight_of(args), _arguments, args) if args is not None else None
        decision = self._decision("approve", by, via, reason)
        state, asked, started = await self._found(id, kind="approval")
        if args is not None:
            await self._check_edit(state, started, asked.tool, args)
        return await self._decide(state, asked, started, replace(decision, args=args, for_session=for_session))

    async def deny(self, id: str, *, by: str, reason: str = "", via: str = "api") -> Decision:
        """Deny a call. The model receives the reason.

        Raises:
            Error: `approval_already_decided`, `approval_stale`, `approval_unknown`.
        """
        decision = self._decision("deny", by, via, reason)
        state, asked, started = await self._found(id, kind="approval")
        return await self._decide(state, asked, started, decision)

    async def settle(
        self, id: str, outcome: Outcome, *, by: str, value: Json = None, reason: str = "", via: str = "api"
    ) -> Decision:
        """Decide a call in doubt: it happened (with this result), it did not happen, or its outcome stays unknown.

        A call that did not happen is dispatched again, under the same idempotency key and with your name in the record.

        Raises:
            Error: `original_call_may_still_run` while the worker that made the call may still be running it;
                `approval_already_decided`, `approval_stale`, `approval_unknown`.
        """
        if outcome not in ("happened", "did_not_happen", "unknown"):
            raise Error(
                Code.INVALID_ARGUMENT, f"outcome must be 'happened', 'did_not_happen' or 'unknown', not {outcome!r}"
            )
        decision = replace(self._decision(outcome, by, via, reason), value=to_json(value, where="the value"))
        state, asked, started = await self._found(id, kind="doubt")
        if outcome == "did_not_happen":
            try:
                await self._check_dead(state, started)
            except Error as problem:
                await self._refused(asked, decision, problem)
                raise
        return await self._decide(state, asked, started, decision)

    async def watch(self) -> AsyncIterator[PendingDecision]:
        """Yield every open question, and then each new one, endlessly."""
        seen: dict[PromiseId, int] = {}
        place: tuple[int, PromiseId] | None = None
        with self._host.hub.subscribe(PEOPLE, live=False) as news:
            while True:
                self._host.check_usable()
                while page := await self._host.store.asked(tenant=self._host.tenant, limit=100, after=place):
                    for state in page:
                        place = (state.requested_at or 0, state.id)
                        if state.id in seen:
                            continue
                        seen[state.id] = place[0]
                        if (asked := await _question(self._host, state)) is not None:
                            yield asked[0]
                if place is not None:
                    place = (place[0] - OVERLAP_MS, PromiseId(""))
                    seen = {id: at for id, at in seen.items() if at >= place[0]}
                await news.wait()
                await asyncio.sleep(POLL_PAUSE_S)

    # --- lookup

    async def _found(
        self, id: str, *, kind: Literal["approval", "doubt"] | None = None
    ) -> tuple[PromiseState, PendingDecision, EffectStarted]:
        self._host.check_usable()
        state, asked = None, None
        for state in await _asked_as(self._host, check_text(id, where="the id")):
            asked = await _question(self._host, state)
        if state is None or asked is None or asked[0].id != id:  # threat: S17
            raise _unknown(id)
        if kind is not None and asked[0].kind != kind:
            what = "decides a call in doubt" if kind == "approval" else "allows a call"
            use = "settle" if kind == "approval" else "approve or deny"
            raise Error(Code.INVALID_ARGUMENT, f"the answer to {id!r} {what}", hint=f"use {use}")
        return state, *asked

    # --- decisions

    def _decision(self, verdict: Verdict, by: str, via: str, reason: str) -> Decision:
        name = check_text(by, where="by").strip()
        if not name or len(name) > MAX_NAME_CHARS:
            raise Error(
                Code.INVALID_ARGUMENT,
                "a decision needs a name",
                because=f"by= needs 1 to {MAX_NAME_CHARS} characters",
                hint='by="ana@example.com"',
            )
        said, origin = check_text(reason, where="the reason"), check_text(via, where="via")
        if len(said.encode()) > MAX_REASON_BYTES or len(origin) > MAX_NAME_CHARS:
            raise Error(
                Code.INPUT_TOO_LARGE, "the reason is too long", because=f"the limit is {MAX_REASON_BYTES} bytes"
            )
        return Decision(verdict=verdict, by=name, at=self._host.clock.wall_ms(), via=origin, reason=said)

    async def _decide(
        self, state: PromiseState, asked: PendingDecision, started: EffectStarted, decision: Decision
    ) -> Decision:
        resolution, store = decision.resolution, self._host.store
        if (size := len(encode(resolution))) > MAX_DECISION_BYTES:
            raise Error(
                Code.INPUT_TOO_LARGE, f"the decision is {size} bytes", because=f"the limit is {MAX_DECISION_BYTES}"
            )
        await self._host.check_readable(state.stream)
        over = await store.find(state.stream, gate_key(_turn(started))) is not None
        now = self._host.clock.wall_ms()
        audit = () if over else await self._host.audit_log.notes(self._host.tenant, *_acts(state, asked, decision))
        answered = await store.resolve(state.id, Cancelled() if over else resolution, now=now, audit=audit)
        await self._host.notify_stream(state.stream)
        if isinstance(answered, Accepted) and not over:
            return decision
        problem = _too_late(answered)
        await self._refused(asked, decision, problem)
        raise problem

    async def _refused(self, asked: PendingDecision, decision: Decision, problem: Error) -> None:
        await self._host.audit_log.refuse(self._host.tenant, _act(asked, decision), problem.code)

    async def _check_edit(
        self, state: PromiseState, started: EffectStarted, tool: str, args: Mapping[str, Json]
    ) -> None:
        """Raise if the tool would refuse the arguments, while the approver can still change them."""
        contract = await contract_of(self._host.store, state.stream, _turn(started), tool)
        wrong = await mismatches(contract.definition.parameters, dict(args)) if contract else []
        if wrong:
            raise Error(Code.INVALID_ARGUMENT, f"{tool} does not take these arguments", because="\n".join(wrong))

    async def _check_dead(self, state: PromiseState, started: EffectStarted) -> None:
        """Raise if the worker of the call may be alive: then "did not happen" is not certain."""
        worker = await self._worker_of(state.stream, started)
        if not await self._host.store.is_dead(worker):
            raise Error(
                Code.ORIGINAL_CALL_MAY_STILL_RUN,
                "the call may still happen",
                because=f"the worker that made it ({worker}) may still be running it",
                hint="end that worker's process, then settle the call again; or settle it as unknown",
            )

    async def _worker_of(self, stream: StreamId, started: EffectStarted) -> WorkerId:
        """Return the worker of the attempt in doubt, from its start record."""
        if is_part(started.id):
            attempt = part_beside(started.id, "step")
        else:
            ref = EffectRef.parse(started.id)
            attempt = EffectRef(ref.iteration, ref.index, ref.attempt).id
        opened = await self._host.store.find(stream, open_key(_turn(started)))
        for row in await self._host.store.read(stream, after=opened.seq) if opened else ():
            if isinstance(row.record, EffectStarted) and row.record.id == attempt:
                return row.record.worker
        return WorkerId("")


async def full_id(host: ApprovalsPort, text: str) -> str:
    """Return the id that begins with this text, for the command line. The API takes whole ids only.

    Raises:
        Error: `invalid_id` if the text is shorter than eight characters, or matches several ids.
    """
    if len(_bare(text)) < MIN_PREFIX_CHARS:
        raise Error(
            Code.INVALID_ID,
            f"{without_keys(text)!r} is too short for an approval",
            because=f"a prefix needs at least {MIN_PREFIX_CHARS} characters after apr_ or dbt_",
            hint="perdure approvals list",
        )
    for state in await _asked_as(host, text):
        if (asked := await _question(host, state)) is not None:
            return asked[0].id
    return text  # its use reports it as unknown


async def _asked_as(host: ApprovalsPort, text: str) -> tuple[PromiseState, ...]:
    """Return the question whose id begins with this text, if any."""
    prefix = _bare(text)
    found = await host.store.asked_as(tenant=host.tenant, prefix=prefix, limit=2) if prefix.isalnum() else ()
    if len(found) > 1:
        raise Error(Code.INVALID_ID, f"ambiguous id {without_keys(text)!r}", hint="type more of the id")
    return found


async def _question(host: ApprovalsPort, state: PromiseState) -> tuple[PendingDecision, EffectStarted] | None:
    row = await host.store.find(state.stream, ask_key(state.id))
    if row is None or not isinstance(row.record, EffectStarted):
        return None
    started = row.record
    if not isinstance(started.command, AwaitEvent):
        return None
    scope = TurnScope.parse(started.command.key.scope)
    asked = decision_owed(started, scope.session, scope.turn, row.at)
    return (asked, started) if asked else None


def _acts(state: PromiseState, asked: PendingDecision, decision: Decision) -> list[ActRecorded]:
    """Return the audited acts of a decision: an approval for the session is also a grant."""
    who = Actor(decision.by, decision.via)
    grant = [act("grant_made", who, session=asked.session, target=state.id, detail=asked.tool)]
    return [_act(asked, decision), *(grant if decision.for_session else ())]


def _act(asked: PendingDecision, decision: Decision) -> ActRecorded:
    names: dict[Verdict, Act] = {
        "approve": "approval_approved" if decision.args is None else "approval_edited",
        "deny": "approval_denied",
    }
    name = names.get(decision.verdict, "doubt_settled")
    detail = decision.verdict if name == "doubt_settled" else ""
    return act(name, Actor(decision.by, decision.via), session=asked.session, target=asked.id, detail=detail)


def _bare(text: str) -> str:
    return text.removeprefix("apr_").removeprefix("dbt_")


def _turn(started: EffectStarted) -> TurnId:
    assert isinstance(started.command, AwaitEvent)
    return TurnScope.parse(started.command.key.scope).turn


def _arguments(args: Mapping[str, Json]) -> dict[str, Json]:
    if not isinstance(args, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - any input
        raise Error(Code.INVALID_ARGUMENT, "args must be a mapping of all arguments", hint='args={"cents": 4000}')
    plain = {
        check_text(name, where="the name of an argument"): to_json(value, where=f"the argument {name}")
        for name, value in args.items()
    }
    if (size := len(encode(plain))) > MAX_DECISION_BYTES:
        raise Error(
            Code.INPUT_TOO_LARGE, f"the arguments are {size} bytes", because=f"the limit is {MAX_DECISION_BYTES}"
        )
    return plain


def _status(resolution: Resolution | None) -> Status:
    if resolution is None:
        return "waiting"
    decision = decision_of(resolution)
    if decision is None:
        return "expired" if isinstance(resolution, TimedOut) else "withdrawn"
    return {"approve": "approved", "deny": "denied"}.get(decision.verdict, "settled")  # pyright: ignore[reportReturnType]


def _unknown(id: str) -> Error:
    return Error(
        Code.APPROVAL_UNKNOWN,
        f"unknown approval {without_keys(id)!r}",
        because="no such question, or its session was deleted",
        hint="perdure approvals list",
    )


def _too_late(answered: Resolved) -> Error:
    resolution = answered.resolution if isinstance(answered, AlreadyResolved) else None
    decision = decision_of(resolution)
    if decision is not None:
        said = {"approve": "approved", "deny": "denied"}.get(decision.verdict, decision.verdict.replace("_", " "))
        when = datetime.fromtimestamp(decision.at / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        via = f" ({decision.via})" if decision.via else ""
        return Error(
            Code.APPROVAL_ALREADY_DECIDED,
            f"already decided by {decision.by}: {said} at {when}{via}",
            hint="the first decision stands",
            by=decision.by,
            verdict=decision.verdict,
            at=decision.at,
        )
    if isinstance(resolution, TimedOut):
        return Error(Code.APPROVAL_STALE, "the question is closed", because="the question has expired")
    if isinstance(answered, Accepted | AlreadyResolved):
        because = "the turn has ended or was cancelled"
        return Error(Code.APPROVAL_STALE, "the question is closed", because=because)
    return _unknown("it")
