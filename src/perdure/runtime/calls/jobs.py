"""Provider jobs: work that a provider does in the background, and its cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from perdure.codec import Json
from perdure.effects.journal import EffectJournal
from perdure.ids import EffectId
from perdure.models.protocol import CancelsJobs, Model
from perdure.turn.state import AwaitingReply, Turn
from perdure.vocab.outcomes import DirectOutcome
from perdure.vocab.refs import EffectRef

log = logging.getLogger("perdure.runtime")

CANCEL_S = 5.0


@dataclass(frozen=True, slots=True)
class ProviderJob:
    """A background job of a provider, with the effect that it serves and the model that was called."""

    effect: EffectId
    model: str
    job: Json


def own(turn: Turn) -> tuple[ProviderJob, ...]:
    """Return the provider job of the turn's own model call, if any."""
    phase = turn.phase
    if not isinstance(phase, AwaitingReply) or phase.job is None:
        return ()
    return (ProviderJob(EffectRef(turn.iteration, None, phase.attempt).id, turn.composition.model, phase.job),)


def asked_for(journal: EffectJournal) -> tuple[ProviderJob, ...]:
    """Return the provider jobs of unfinished model calls made by tools."""
    begun = ((one, journal.job(one.id)) for one in journal.unsettled())
    return tuple(
        ProviderJob(one.id, one.estimated_usage.model, job)
        for one, job in begun
        if one.estimated_usage is not None and job is not None
    )


def not_answered(jobs: Iterable[ProviderJob], journal: EffectJournal) -> tuple[ProviderJob, ...]:
    """Return those of the jobs that still have no answer."""
    found: list[ProviderJob] = []
    for job in jobs:
        outcome = journal.outcome(job.effect)
        if outcome is None or (isinstance(outcome, DirectOutcome) and outcome.lost):
            found.append(job)
    return tuple(found)


async def give_up(jobs: Iterable[tuple[Model | None, ProviderJob]]) -> None:
    """Cancel these jobs at their providers, all at once.

    Best effort: a job may be over, and a provider may have no cancellation or be unreachable.
    """
    async with asyncio.TaskGroup() as telling:
        for model, job in jobs:
            if isinstance(model, CancelsJobs):
                telling.create_task(_give_up(model, job))


async def _give_up(model: CancelsJobs, job: ProviderJob) -> None:
    try:
        async with asyncio.timeout(CANCEL_S):
            await model.cancel(job.job)
    except Exception as problem:  # provider error, or timeout
        log.warning("provider job not cancelled: %s", problem, exc_info=True, extra={"effect": job.effect})
