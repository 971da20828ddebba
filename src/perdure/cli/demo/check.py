"""Checks of a finished booking: ledger, e-mails, approval, log and conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perdure.cli.demo.ledger import DemoLedger, Mailbox
from perdure.ids import EffectId
from perdure.observe.verify import verify
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.runtime import Runtime
from perdure.runtime.sessions.session import Session
from perdure.session.fold import CODE
from perdure.vocab.approvals import decision_of
from perdure.vocab.messages import Message, ToolCall, ToolResultPart
from perdure.vocab.outcomes import AwaitEventOutcome, DurableStepOutcome
from perdure.vocab.records import EffectSettled, EffectStarted, InputAdmitted, Record, TurnEnded

EMAIL, QUESTION = EffectId("c3.0.1"), EffectId("c3.0.1.approval")


@dataclass(frozen=True, slots=True)
class Remains:
    """The state that a dead worker left: whether the session exists, and its durable records."""

    exists: bool
    records: tuple[Record, ...]

    @property
    def settled(self) -> set[EffectId]:
        """The effects with a recorded outcome. Replay returns the outcome."""
        return {record.id for record in self.records if isinstance(record, EffectSettled)}

    @property
    def begun(self) -> set[EffectId]:
        """The effects that had started and not settled."""
        return {record.id for record in self.records if isinstance(record, EffectStarted)} - self.settled


async def remains(store: Path, session: str) -> Remains:
    """Read a store that no worker uses. The store may not exist yet if the worker died early."""
    async with Runtime(f"sqlite:///{store}", worker=False) as rt:
        opened = rt.get_session(session)
        if await core_of(rt).store.stream(ref_of(opened).stream) is None:
            return Remains(False, ())
        return Remains(True, tuple(row.record for row in await opened.journal()))


@dataclass(frozen=True, slots=True)
class BookingReport:
    """The way a booking recovered, and all problems found."""

    recovery: str
    verdict: str | None
    problems: tuple[str, ...]


async def aftermath(store: Path, ledger: DemoLedger, outbox: Mailbox, session: str, left: Remains) -> BookingReport:
    """Judge a booking after its last worker has finished."""
    async with Runtime(f"sqlite:///{store}", worker=False) as rt:
        opened = rt.get_session(session)
        records = tuple(row.record for row in await opened.journal())
        verdict = _probed(records)
        outside = (*_ledger(ledger), *_outbox(outbox))
        problems = (
            *outside,
            *_approved(records),
            *_answered(records),
            *_paired(await opened.messages()),
            *await _settled(opened),
        )
        return BookingReport(_recovery(left, verdict), verdict, problems)


def _recovery(left: Remains, verdict: str | None) -> str:
    if not left.exists:
        return "input sent again"
    if len(left.records) == 1:  # only the append that opened the session
        return "input kept"
    if verdict:
        return f"probe: {verdict.replace('_', ' ')}"
    if any(isinstance(record, TurnEnded) for record in left.records):
        return "all replayed"
    return f"{len(left.settled)} replayed, {'re-run' if left.begun else 'resumed'}"


def _probed(records: Sequence[Record]) -> str | None:
    """Return the last answer of a probe."""
    answer: str | None = None
    for record in records:
        match record:
            case EffectSettled(outcome=DurableStepOutcome(value={"verdict": str(verdict)})):
                answer = verdict
            case _:
                pass
    return answer


def _ledger(ledger: DemoLedger) -> Iterator[str]:
    lines = len(ledger.charges())
    if lines != 1:
        yield f"the ledger has {lines} charges, expected 1"


def _outbox(outbox: Mailbox) -> Iterator[str]:
    lines = len(outbox.emails())
    if lines != 1:
        yield f"the outbox has {lines} e-mails, expected 1"


def _approved(records: Sequence[Record]) -> Iterator[str]:
    """Check that one approval was requested and given, and that the e-mail started only after it."""
    outcomes = [record.outcome for record in records if isinstance(record, EffectSettled)]
    decisions = [decision_of(one.resolution) for one in outcomes if isinstance(one, AwaitEventOutcome)]
    if [decision.verdict if decision else None for decision in decisions] != ["approve"]:
        yield f"decisions in the log: {decisions}, expected one approval"
    starts = [record.id for record in records if isinstance(record, EffectStarted)]
    if starts.count(QUESTION) != 1 or EMAIL not in starts or starts.index(EMAIL) < starts.index(QUESTION):
        yield f"expected one approval request before the e-mail, found: {starts}"


def _answered(records: Sequence[Record]) -> Iterator[str]:
    inputs = [record for record in records if isinstance(record, InputAdmitted)]
    ends = [record for record in records if isinstance(record, TurnEnded)]
    if len(inputs) != 1:
        yield f"{len(inputs)} inputs in the log, expected 1"
    if [end.status for end in ends] != ["finished"]:
        yield f"turns ended as {[end.status for end in ends]}, expected one finished"
    elif inputs and ends[0].turn != inputs[0].turn:
        yield "the ended turn is not the input's turn"


def _paired(history: Sequence[Message]) -> Iterator[str]:
    """Check that every call has a result and every result a call. Providers refuse other conversations."""
    roles = [message.role for message in history]
    if roles != ["user", "assistant", "tool", "assistant", "tool", "assistant", "tool", "assistant"]:
        yield f"unexpected message roles: {' '.join(roles)}"
    for said, answer in zip(history, [*history[1:], None], strict=True):
        calls = [part.id for part in said.parts if isinstance(part, ToolCall)]
        results = [part.call for part in answer.parts if isinstance(part, ToolResultPart)] if answer else []
        if calls != results and (calls or said.role == "assistant"):
            yield f"calls {calls} have results {results}"
        if not said.parts:
            yield f"an empty {said.role} message"


async def _settled(session: Session) -> list[str]:
    store = ref_of(session).runtime.store
    info = await store.stream(ref_of(session).stream)
    why = await session.why()
    problems: list[str] = []
    if why.status != "idle":
        problems.append(f"the session is {why.status}: {why.summary}")
    if why.queued or (info and info.waiting_inputs):
        problems.append(f"{why.queued} inputs are still queued")
    if info:
        problems += verify(info, await session.journal(), await store.load(ref_of(session).stream, code=CODE)).problems
    return problems
