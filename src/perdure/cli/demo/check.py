"""What must be true of a booking once it is over, whatever happened on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perdure.cli.demo.ledger import Ledger, Outbox
from perdure.ids import EffectId
from perdure.observe.verify import verify
from perdure.runtime.runtime import Runtime
from perdure.runtime.sessions.session import Session
from perdure.session.fold import CODE
from perdure.vocab.approvals import decision_of
from perdure.vocab.messages import Message, ToolCall, ToolResult
from perdure.vocab.outcomes import AwaitEventOutcome, DurableStepOutcome
from perdure.vocab.records import EffectSettled, EffectStarted, InputAdmitted, Record, TurnEnded

EMAIL, QUESTION = EffectId("c3.0.1"), EffectId("c3.0.1.approval")


@dataclass(frozen=True, slots=True)
class Remains:
    """What a dead worker left behind: whether the input had arrived, and the records that were durable."""

    exists: bool
    records: tuple[Record, ...]

    @property
    def settled(self) -> set[EffectId]:
        """Effects that will never be performed again."""
        return {record.id for record in self.records if isinstance(record, EffectSettled)}

    @property
    def begun(self) -> set[EffectId]:
        """Effects that were under way."""
        return {record.id for record in self.records if isinstance(record, EffectStarted)} - self.settled


async def remains(store: Path, session: str) -> Remains:
    """Look at a store nobody works on (and which a worker that died early may not have made yet)."""
    async with Runtime(f"sqlite:///{store}", worker=False) as rt:
        opened = rt.existing(session)
        if await rt.store.stream(opened.stream) is None:
            return Remains(False, ())
        return Remains(True, tuple(row.record for row in await opened.rows()))


@dataclass(frozen=True, slots=True)
class Aftermath:
    """A finished booking: how it was recovered, and everything that is wrong with it."""

    recovery: str
    verdict: str | None
    problems: tuple[str, ...]


async def aftermath(store: Path, ledger: Ledger, outbox: Outbox, session: str, left: Remains) -> Aftermath:
    """Judge a booking after the last worker has finished it."""
    async with Runtime(f"sqlite:///{store}", worker=False) as rt:
        opened = rt.existing(session)
        records = tuple(row.record for row in await opened.rows())
        verdict = _probed(records)
        outside = (*_ledger(ledger), *_outbox(outbox))
        problems = (
            *outside,
            *_approved(records),
            *_answered(records),
            *_paired(await opened.history()),
            *await _settled(opened),
        )
        return Aftermath(_recovery(left, verdict), verdict, problems)


def _recovery(left: Remains, verdict: str | None) -> str:
    if not left.exists:
        return "input sent again"
    if len(left.records) == 1:  # the session was opened with the input, and nothing else happened
        return "input kept"
    if verdict:
        return f"probe: {verdict.replace('_', ' ')}"
    if any(isinstance(record, TurnEnded) for record in left.records):
        return "all replayed"
    return f"{len(left.settled)} replayed, {'re-run' if left.begun else 'went on'}"


def _probed(records: Sequence[Record]) -> str | None:
    """The last answer of a probe."""
    answer: str | None = None
    for record in records:
        match record:
            case EffectSettled(outcome=DurableStepOutcome(value={"verdict": str(verdict)})):
                answer = verdict
            case _:
                pass
    return answer


def _ledger(ledger: Ledger) -> Iterator[str]:
    lines = len(ledger.charges())
    if lines != 1:
        yield f"the ledger has {lines} charges, expected 1"


def _outbox(outbox: Outbox) -> Iterator[str]:
    lines = len(outbox.emails())
    if lines != 1:
        yield f"the outbox has {lines} e-mails, expected 1"


def _approved(records: Sequence[Record]) -> Iterator[str]:
    """The person was asked once and allowed it, and the e-mail left only after that."""
    outcomes = [record.outcome for record in records if isinstance(record, EffectSettled)]
    decisions = [decision_of(one.resolution) for one in outcomes if isinstance(one, AwaitEventOutcome)]
    if [decision.verdict if decision else None for decision in decisions] != ["approve"]:
        yield f"decisions in the log: {decisions}, expected one approval"
    starts = [record.id for record in records if isinstance(record, EffectStarted)]
    if starts.count(QUESTION) != 1 or EMAIL not in starts or starts.index(EMAIL) < starts.index(QUESTION):
        yield f"the e-mail was not asked about once, and before it began: {starts}"


def _answered(records: Sequence[Record]) -> Iterator[str]:
    inputs = [record for record in records if isinstance(record, InputAdmitted)]
    ends = [record for record in records if isinstance(record, TurnEnded)]
    if len(inputs) != 1:
        yield f"{len(inputs)} inputs in the log, expected 1"
    if [end.status for end in ends] != ["finished"]:
        yield f"turns ended as {[end.status for end in ends]}, expected one finished"
    elif inputs and ends[0].turn != inputs[0].turn:
        yield "the turn that ended is not the one of the input"


def _paired(history: Sequence[Message]) -> Iterator[str]:
    """Providers refuse a conversation in which a call has no result, or a result no call."""
    roles = [message.role for message in history]
    if roles != ["user", "assistant", "tool", "assistant", "tool", "assistant", "tool", "assistant"]:
        yield f"the conversation goes {' '.join(roles)}"
    for said, answer in zip(history, [*history[1:], None], strict=True):
        calls = [part.id for part in said.parts if isinstance(part, ToolCall)]
        results = [part.call for part in answer.parts if isinstance(part, ToolResult)] if answer else []
        if calls != results and (calls or said.role == "assistant"):
            yield f"calls {calls} are answered by results {results}"
        if not said.parts:
            yield f"an empty {said.role} message"


async def _settled(session: Session) -> list[str]:
    store = session.runtime.store
    info = await store.stream(session.stream)
    why = await session.why()
    problems: list[str] = []
    if why.status != "idle":
        problems.append(f"the session is {why.status}: {why.summary}")
    if why.queued or (info and info.waiting_inputs):
        problems.append(f"{why.queued} inputs still wait")
    if info:
        problems += verify(info, await session.rows(), await store.load(session.stream, code=CODE)).problems
    return problems
