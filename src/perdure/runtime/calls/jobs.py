"""Jobs that providers work on by themselves, and that nobody waits for any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from perdure.codec import Json
from perdure.effects.journal import EffectJournal
from perdure.ids import EffectId
from perdure.models.protocol import CancelsJobs, Model
from perdure.turn.state import Asking, Turn
from perdure.vocab.outcomes import DirectOutcome
from perdure.vocab.refs import EffectRef

log = logging.getLogger("perdure.runtime")

CANCEL_S = 5.0


@dataclass(frozen=True, slots=True)
class Job:
    """What a provider works on by itself, for an effect that asked this model."""

    effect: EffectId
    model: str
    job: Json


def own(turn: Turn) -> tuple[Job, ...]:
    """What a provider works on for the turn itself."""
    phase = turn.phase
    if not isinstance(phase, Asking) or phase.job is None:
        return ()
    return (Job(EffectRef(turn.iteration, None, phase.attempt).id, turn.composition.model, phase.job),)


def asked_for(journal: EffectJournal) -> tuple[Job, ...]:
    """The jobs of what tools have asked models, and have no answer to yet."""
    begun = ((one, journal.job(one.id)) for one in journal.unsettled())
    return tuple(Job(one.id, one.asks.model, job) for one, job in begun if one.asks is not None and job is not None)


def not_answered(jobs: Iterable[Job], journal: EffectJournal) -> tuple[Job, ...]:
    """Those of them that were not answered meanwhile."""
    found: list[Job] = []
    for job in jobs:
        outcome = journal.outcome(job.effect)
        if outcome is None or (isinstance(outcome, DirectOutcome) and outcome.lost):
            found.append(job)
    return tuple(found)


async def give_up(jobs: Iterable[tuple[Model | None, Job]]) -> None:
    """Tell the providers that nobody wants these any more, all at once. Best effort: a job may be over, or its provider
    cannot be told, or not be reached."""
    async with asyncio.TaskGroup() as telling:
        for model, job in jobs:
            if isinstance(model, CancelsJobs):
                telling.create_task(_give_up(model, job))


async def _give_up(model: CancelsJobs, job: Job) -> None:
    try:
        async with asyncio.timeout(CANCEL_S):
            await model.cancel(job.job)
    except Exception as problem:  # of the provider, or that it takes too long
        log.warning("a job of the provider goes on: %s", problem, exc_info=True, extra={"effect": job.effect})
