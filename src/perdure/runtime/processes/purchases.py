"""The model calls of a process: their sum, the ends of those that a worker lost, and the charges to its session.

Law: a model call of a process that belongs to a session is charged to the session in the append that records the call's
end. A lost call is charged as estimated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from perdure.effects.journal import EffectJournal
from perdure.ids import EffectId, SessionId, Tenant, TurnId, session_stream
from perdure.inbox.admit import Delivery, delivery
from perdure.vocab.children import ChildEnded
from perdure.vocab.outcomes import DirectOutcome, LlmError
from perdure.vocab.records import EffectSettled, Record
from perdure.vocab.registrations import Registration
from perdure.vocab.usage import Usage

_LOST = LlmError(kind="worker_lost", message="the worker that asked the model is gone", retryable=True)


def charges(known: Registration, tenant: Tenant, records: Iterable[Record], at: int) -> Iterator[Delivery]:
    """Yield a charge to the session of a process for each model call that these records end."""
    if known.session is None:
        return
    owner = session_stream(tenant, known.session)
    for record in records:
        match record:
            case EffectSettled(id=id, outcome=DirectOutcome() as asked) if asked.bought != Usage():
                told = ChildEnded(
                    child=SessionId(known.process_id),
                    turn=TurnId(id),
                    status="failed" if asked.error else "finished",
                    usage=asked.bought,
                    source=asked.source,
                    model=asked.reply.model if asked.reply is not None else asked.model,
                )
                yield delivery(owner, f"bought:{known.process_id}:{id}", told, at=at)
            case _:
                pass


def bought(journal: EffectJournal, *, but: Collection[EffectId] = ()) -> Usage:
    """Return the usage of the recorded model calls, without those named in `but`."""
    outcomes = (journal.outcome(id) for id in journal.ids() if id not in but)
    return sum((one.bought for one in outcomes if isinstance(one, DirectOutcome)), Usage())


def lost_calls(journal: EffectJournal, *, over: bool) -> tuple[EffectSettled, ...]:
    """Return the ends of the model calls that have none.

    A call whose provider job still runs is continued, unless the process is `over`.
    """
    return tuple(
        EffectSettled(
            id=one.id,
            outcome=DirectOutcome(
                error=_LOST,
                source=one.estimated_usage.source,
                spent=one.estimated_usage.usage,
                model=one.estimated_usage.model,
            ),
        )
        for one in journal.unsettled()
        if one.estimated_usage is not None and (over or journal.job(one.id) is None)
    )
