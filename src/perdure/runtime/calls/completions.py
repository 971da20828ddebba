"""Model calls made by tools outside the conversation: `ctx.complete`.

Law: the log has the start and the end of each such call, so its usage is counted once, whatever crashes meanwhile. A
resumable body also stores the reply. Any other body that runs again calls the model again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from msgspec import structs

from perdure.codec import Json, digest, encode, to_json
from perdure.effects.controller import Begun, JournaledController, asking_policy
from perdure.errors import Error
from perdure.ids import EffectId
from perdure.models.estimating import completed, estimated
from perdure.models.protocol import Model, ModelError, ModelRequest, kept
from perdure.runtime.calls.clients import CallSite, check_argument, visibly
from perdure.runtime.calls.orphaned_calls import PartialReply, priced
from perdure.runtime.calls.perform import JOB_TIMEOUT_S, MAX_JOB_BYTES, MODEL_TIMEOUT_S
from perdure.runtime.calls.reading import ReplySink, StallPolicy, stream_reply
from perdure.runtime.turns.hydrate import Fetch, hydrated
from perdure.services.secrets import speaker
from perdure.tools.body import Body
from perdure.tools.body_scope import BodyScope
from perdure.tools.clients.completions import DirectRequest
from perdure.tools.errors import ToolError
from perdure.tools.step_outcomes import Parked
from perdure.vocab.effects import Direct, Envelope, Invocation, LlmRequestSpec
from perdure.vocab.messages import Message, Reply, Text
from perdure.vocab.outcomes import DirectOutcome, DirectUsage, LlmError
from perdure.vocab.records import EffectSettled, ModelJobBegun
from perdure.vocab.usage import Usage

log = logging.getLogger("perdure.runtime")

Ask = Callable[[EffectId | None], Awaitable[DirectOutcome]]

_STOPPED = LlmError(kind="cancelled", message="the answer was no longer awaited")


@dataclass(frozen=True, slots=True)
class AskedModels:
    """The models that a tool may call, its session's own and the utility model, and the permits that they need."""

    own: Model
    utility: Model | None
    within_limits: Callable[[EffectId, str], AbstractAsyncContextManager[None]]


class CompletionsClient:
    """`ctx.complete` of one call."""

    def __init__(self, body: Body | None, site: CallSite, models: AskedModels, fetch: Fetch) -> None:
        self._body = body
        self._site = site
        self._models = models
        self._fetch = fetch

    async def complete(self, request: DirectRequest | str, usage_source: str) -> Reply:
        """Return the reply of the session's own model, or of the utility model if the request says so."""
        self._site.check_running()
        asked = DirectRequest(request) if isinstance(request, str) else request
        check_argument("A direct completion", asked, DirectRequest)
        check_argument("The instructions of a direct completion", asked.instructions, str)
        check_argument("The key of a direct completion", asked.key, str)
        check_argument("The usage source of a direct completion", usage_source, str)
        speaker().check_names(usage_source)
        if not usage_source.strip():
            raise ToolError("A direct completion needs a usage source", code="invalid_argument")
        if asked.utility and self._models.utility is None:
            raise ToolError("The host has no utility model.", code="service_unavailable")
        messages = _messages(asked.messages)
        outcome = await self._answer(asked, messages, usage_source)
        if outcome.reply is None:
            raise _no_reply(outcome.error)
        return outcome.reply

    def _chosen(self, asked: DirectRequest) -> Model:
        return self._models.utility if asked.utility and self._models.utility is not None else self._models.own

    async def _answer(self, asked: DirectRequest, messages: tuple[Message, ...], source: str) -> DirectOutcome:
        model = self._chosen(asked).name
        said = (Message(role="system", parts=(Text(text=asked.instructions),)),) if asked.instructions else ()
        spec = LlmRequestSpec(model=model, messages=(*said, *messages), generation=asked.settings)
        estimate = DirectUsage(source=source, model=model, usage=estimated(asked.instructions, messages, (), 0))

        async def ask(effect: EffectId | None) -> DirectOutcome:
            return await self._ask(asked, messages, source, effect)

        if self._body is not None:
            return await self._body.direct(asked.key or digest(spec)[:16], spec, estimate, ask)
        if (place := self._site.place) is not None and (controller := self._site.controller) is not None:
            return await _noted(self._site, place, controller, Direct(request=spec, usage_source=source), estimate, ask)
        return _count(self._site, await ask(None), estimate)

    async def _ask(
        self, asked: DirectRequest, messages: tuple[Message, ...], source: str, effect: EffectId | None
    ) -> DirectOutcome:
        turn, controller = self._site.turn, self._site.controller
        if reached := self._site.spent_up():
            return DirectOutcome(error=LlmError(kind="quota", message=f"limit reached: {reached}"), source=source)
        messages, attachments = await hydrated(messages, self._fetch)
        model = self._chosen(asked)
        own = None if asked.utility else turn.composition.settings
        described = ModelRequest(
            model=model.name,
            instructions=asked.instructions,
            messages=messages,
            tools=(),
            tool_choice="none",
            settings=own if asked.settings is None else asked.settings,
            attachments=attachments,
            job=controller.journal.job(effect) if controller is not None and effect is not None else None,
        )
        said = PartialReply()
        limit_s = MODEL_TIMEOUT_S if described.job is None else JOB_TIMEOUT_S

        async def wait_longer(job: Json) -> None:
            nonlocal limit_s
            limit_s = JOB_TIMEOUT_S
            limit.reschedule(asyncio.get_running_loop().time() + limit_s)
            await self._job_begun(effect, job)

        try:
            async with self._models.within_limits(self._site.effect, f"model:{model.name}"):
                async with asyncio.timeout(limit_s) as limit:
                    said.asked = True
                    hearing, patience = (
                        ReplySink(said.on_text, wait_longer, said.cost),
                        StallPolicy(turn.limits.stall_ms),
                    )
                    reply = await stream_reply(model, described, hearing, patience)
            adopted = kept(reply, turn=turn.id, iteration=turn.iteration)
        except asyncio.CancelledError:
            await self._stopped(model, described, said, source, effect)
            raise
        except TimeoutError:
            error = LlmError(kind="stall", message=f"no complete reply within {limit_s} s", retryable=True)
            return DirectOutcome(error=error, source=source, spent=await priced(model, _estimate(described, said)))
        except ModelError as problem:
            spent = problem.spent
            if not spent.calls and (said.anything or problem.error.kind == "stall"):
                spent = await priced(model, _estimate(described, said))
            return DirectOutcome(error=problem.error, source=source, spent=spent)
        return DirectOutcome(reply=adopted, source=source)

    async def _job_begun(self, effect: EffectId | None, job: Json) -> None:
        """Record the provider job before anything else of the call.

        A later run of the body waits for it and buys no other.
        """
        controller = self._site.controller
        if controller is None or effect is None or controller.journal.job(effect) == job:
            return
        if len(encode(job)) > MAX_JOB_BYTES:
            log.warning("provider job too large to record", extra={"effect": effect})
            return
        controller.record(ModelJobBegun(id=effect, job=job))
        try:
            await controller.ledger.durable()
        except Error:
            raise Parked from None  # the current owner of the turn may have read of the job, or not

    async def _stopped(
        self, model: Model, asked: ModelRequest, said: PartialReply, source: str, effect: EffectId | None
    ) -> None:
        """Record the usage of a stopped model call: first without its price, because pricing may take time."""
        controller, left = self._site.controller, self._site.left
        usage = _estimate(asked, said) if said.asked else Usage()
        if controller is None or effect is None:
            self._site.spent.append(DirectUsage(source=source, model=model.name, usage=usage))
            return
        if controller.journal.job(effect) is not None and not controller.ledger.lease_live():
            return  # our worker is leaving: the next owner of the turn waits for the job
        left[effect] = DirectOutcome(error=_STOPPED, source=source, spent=usage, model=model.name)
        if said.asked:
            known = await priced(model, usage)
            if effect in left:
                left[effect] = structs.replace(left[effect], spent=known)
        _end(self._site, controller, effect)


def _end(site: CallSite, controller: JournaledController, effect: EffectId) -> None:
    """Record the end of a model call, unless its turn has done so or must: a stopped call writes nothing more."""
    if (ended := site.left.get(effect)) is None:
        return
    try:
        controller.record(EffectSettled(id=effect, outcome=ended))
    except Parked:
        return
    del site.left[effect]


async def _noted(
    site: CallSite, place: BodyScope, controller: JournaledController, command: Direct, estimate: DirectUsage, ask: Ask
) -> DirectOutcome:
    """Call a model for a body that stores no replies. The log gets the start, the end and the usage."""
    try:
        begun = _begun(site, place, controller, command, estimate)
    except Parked:
        raise ToolError("The call has ended: its result is no longer awaited", code="tool_cancelled") from None
    effect = EffectId(begun.envelope.id)
    outcome = await ask(effect)
    model = outcome.reply.model if outcome.reply is not None else estimate.model
    site.left[effect] = structs.replace(outcome, reply=None, spent=outcome.bought, model=model)
    _end(site, controller, effect)
    return outcome


def _begun(
    site: CallSite, place: BodyScope, controller: JournaledController, command: Direct, estimate: DirectUsage
) -> Begun:
    """Begin the next model call of this tool call, which may repeat a request.

    An unfinished one of a gone worker is continued, if the request is the same and its provider job still runs.
    """
    journal = controller.journal
    for n in itertools.count(1):
        id = place.part("asked", str(n))
        found = journal.started(id)
        if found is not None and (id in site.asked or journal.job(id) is None or journal.outcome(id) is not None):
            continue
        key = place.key("asked", str(n))
        described = Envelope(
            invocation=Invocation.effect(place.effect_scope, id, command.kind, key, place.cause), command=command
        )
        if found is not None and not described.fingerprint().startswith(found.fingerprint):
            continue  # that one had another request
        site.asked.add(id)
        begun = controller.begin(described, asking_policy(estimate))
        if isinstance(begun, Begun):
            return begun
    raise AssertionError("unreachable")


def _count(site: CallSite, outcome: DirectOutcome, estimate: DirectUsage) -> DirectOutcome:
    """Count unrecorded usage with the tool call."""
    if outcome.bought != Usage():
        model = outcome.reply.model if outcome.reply is not None else estimate.model
        site.spent.append(DirectUsage(source=estimate.source, model=model, usage=outcome.bought))
    return outcome


def _estimate(asked: ModelRequest, said: PartialReply) -> Usage:
    return completed(said.told, estimated(asked.instructions, asked.messages, (), said.chars))


def _messages(given: str | Sequence[Message]) -> tuple[Message, ...]:
    check_argument("The conversation of a direct completion", given, Sequence)
    for one in () if isinstance(given, str) else given:
        check_argument("A part of the conversation", one, Message)
    messages = (Message(role="user", parts=(Text(text=given),)),) if isinstance(given, str) else tuple(given)
    if isinstance(given, str) and not given.strip():
        raise ToolError("A direct completion must ask something", code="invalid_argument")
    if not messages or messages[-1].role != "user":
        raise ToolError("A direct completion must end with what the user says", code="invalid_argument")
    with visibly():
        to_json(messages, where="messages")
    return messages


def _no_reply(error: LlmError | None) -> ToolError:
    # Never `retry_safe`: the model may be called again, but the tool may have had effects before this call.
    why = f" ({error.kind}): {error.message}" if error else ""
    return ToolError(f"The model gave no reply{why}", code="direct_completion_failed")
