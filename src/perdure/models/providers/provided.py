"""A provider's model as the runtime calls it: loaded on first call, one attempt per call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import structs

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.models.estimating import completed, estimated
from perdure.models.protocol import (
    ComesWhole,
    HiddenDelta,
    JobBegun,
    ModelError,
    ModelEvent,
    ModelReply,
    ModelRequest,
    TextPiece,
    ThinkingDelta,
    UsageSoFar,
)
from perdure.models.providers import building, clients
from perdure.models.providers.credentials import LocalCredentials
from perdure.models.providers.failures import failure_of, of_the_line
from perdure.models.providers.incoming import buckets_of, priced, reply_of, reported_usage
from perdure.models.providers.names import Provider, split
from perdure.models.providers.outgoing import Outgoing, settings_of
from perdure.services.llm import ProviderCredentials
from perdure.vocab.outcomes import LlmError
from perdure.vocab.usage import Usage

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai import messages as m
    from pydantic_ai.models import Model as TheirModel
    from pydantic_ai.models import StreamedResponse
    from pydantic_ai.usage import RequestUsage

log = logging.getLogger("perdure.models")

UNREADABLE = (TypeError, AttributeError, AssertionError, LookupError, ValueError)
"""Exceptions of the library for a malformed answer: SDKs do not validate what they read."""
MAX_PAUSES = 10
"""How often a provider may pause one reply. Each pause is charged, and needs another request to continue."""
LOOK_S = 0.02
"""Poll interval of a stream whose job id is not known yet."""

Credentials = Callable[[Provider], Awaitable[ProviderCredentials]]


async def of_this_process(provider: Provider) -> ProviderCredentials:
    """Return the credentials in the environment and `perdure.toml`."""
    return LocalCredentials().of(provider)


class ProviderModel:
    """A provider's model, such as `openai:gpt-5.2`. Construction needs no key, network or SDK; a call does.

    `model` is the provider's name of the model, `name` the one in records.
    """

    def __init__(self, name: str, provider: Provider, model: str, credentials: Credentials = of_this_process) -> None:
        self.name = name
        self.provider = provider
        self.model = model
        self._credentials = credentials
        self._built: tuple[httpx2.AsyncClient, ProviderCredentials, TheirModel[Any]] | None = None

    def at(self, base_url: str) -> ProviderModel:
        """Return the same model at another base URL."""

        async def credentials(provider: Provider) -> ProviderCredentials:
            return replace(await self._credentials(provider), base_url=base_url)

        return ProviderModel(self.name, self.provider, self.model, credentials)

    async def check(self) -> None:
        """Raise if the model cannot be called, as far as this process knows.

        Raises:
            Error: `model_key_missing`, `model_package_missing`.
        """
        await asyncio.to_thread(building.load, self.provider)
        building.check(self.provider, await self._credentials(self.provider))

    async def address(self) -> str | None:
        """Return the configured address of the provider, or None for the provider's own."""
        return (await self._credentials(self.provider)).base_url

    async def lacks(self) -> Literal["package", "address", "key"] | None:
        """Return the missing requirement of the model, found without imports, or None."""
        if not building.is_installed(self.provider):
            return "package"
        return building.lacks(self.provider, await self._credentials(self.provider))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Make one attempt. With the setting `stream` off, the reply comes whole."""
        try:
            theirs, secret = await self._ready()
        except Error as problem:
            message = f"{problem.message}: {problem.because}" if problem.because else problem.message
            kind = "invalid" if problem.code is Code.MODEL_UNKNOWN else "auth"
            raise ModelError(LlmError(kind=kind, message=message, hint=problem.hint)) from problem
        attempt = _Attempt(self.name, theirs, request, self._route(theirs))
        try:
            async for event in attempt.events():
                yield event
        except ModelError as problem:
            raise attempt.judged(problem) from problem
        except Exception as problem:
            if (failure := failure_of(problem, secret=secret, spent=attempt.spent)) is None:
                if not isinstance(problem, UNREADABLE):
                    raise
                log.exception("unreadable provider answer model=%s", self.name)
                message = "the provider's answer cannot be read; the log has the cause"
                spent = (
                    attempt.spent
                    if attempt.spent.calls
                    else await self.priced(completed(attempt.told, attempt.estimated(0)))
                )
                failure = ModelError(LlmError(kind="unavailable", message=message, retryable=True), spent)
            raise failure if of_the_line(problem) else attempt.judged(failure) from problem

    async def cancel(self, job: Json) -> None:
        """Cancel a job that was begun over the same route."""
        theirs, _ = await self._ready()
        if job.get("route") == self._route(theirs):
            await theirs.cancel_suspended_response(_loaded(job["response"]))

    async def priced(self, usage: Usage) -> Usage:
        """Return the usage of one call with its price, if the library knows it. Needs no key."""
        try:
            await asyncio.to_thread(building.load, self.provider)
        except Error:
            return usage
        price = priced(usage, self.model, self.provider.family)
        return structs.replace(usage, cost_nano=price, priced=1) if price is not None else usage

    def _route(self, theirs: TheirModel[Any]) -> str:
        return f"{self.provider.wire} {theirs.base_url} {self.model}"

    async def _ready(self) -> tuple[TheirModel[Any], str | None]:
        await asyncio.to_thread(building.load, self.provider)
        credentials = await self._credentials(self.provider)
        building.check(self.provider, credentials)
        http = clients.http_client()
        if self._built is None or self._built[0] is not http or self._built[1] != credentials:
            built = await asyncio.to_thread(building.build, self.provider, self.model, credentials, http)
            self._built = http, credentials, built
        return self._built[2], credentials.api_key.reveal() if credentials.api_key else None


class _Attempt:
    """One request and its continuations: a provider may pause, or answer in a background job."""

    def __init__(self, name: str, model: TheirModel[Any], request: ModelRequest, route: str) -> None:
        self._name = name
        self._model = model
        self._route = route
        self._request = request
        self._job = request.job
        self._begun: str | None = None  # the reported job
        self.spent = self.told = Usage()
        out = Outgoing(request, model, route)
        self._streamed = bool(settings_of(request.settings).get("stream", True))
        self._settings, self._parameters, self._messages = out.settings(), out.parameters(), out.messages()

    async def events(self) -> AsyncIterator[ModelEvent]:
        """Yield deltas, and at the end the reply."""
        self._messages = self._model.prepare_messages(self._messages, self._parameters)
        so_far, pauses = self._reattached(), 0
        if not self._streamed:
            yield ComesWhole()
        while True:
            messages = [*self._messages, so_far] if so_far is not None else self._messages
            told: list[m.ModelResponse] = []
            if self._streamed:
                async for delta in self._stream(messages, so_far, told):
                    yield delta
            else:
                told.append(await self._model.request(messages, self._settings, self._parameters))
            so_far = _joined(so_far, told[0], rest=self._streamed)
            if so_far.state != "suspended":
                break
            if so_far.usage.has_values():  # a pause is charged, with or without a reply
                self.spent = reported_usage(so_far, self._model.model_name)
                yield self._so_far(so_far)
            pauses += so_far.provider_response_id != self._begun
            if pauses > MAX_PAUSES:
                message = f"the provider paused the reply more than {MAX_PAUSES} times"
                spent = reported_usage(so_far, self._model.model_name)
                raise ModelError(LlmError(kind="unavailable", message=message), spent)
            if (begun := self._begin(so_far)) is not None:
                yield begun
            await asyncio.sleep(self._model.continuation_delay(so_far) or 0)
        reply = self._reply(so_far)
        untold = bool(reply.parts) and not so_far.usage.has_values()
        yield replace(reply, usage=self.estimated(_length(so_far))) if untold else reply

    def _so_far(self, response: m.ModelResponse) -> UsageSoFar:
        self.told = buckets_of(response.usage)
        return UsageSoFar(self.told)

    def estimated(self, written: int) -> Usage:
        """Return the estimated usage of a call without a usage report: tokens for the limits, and no price."""
        asked = self._request
        return estimated(asked.instructions, asked.messages, asked.tools, written)

    def _reply(self, response: m.ModelResponse) -> ModelReply:
        try:
            return reply_of(response, name=self._name, model=self._model.model_name, route=self._route)
        except ModelError as problem:
            if self._streamed and problem.error.kind == "stream_cut":  # the final usage report is missing too
                raise ModelError(problem.error) from problem
            raise

    async def _stream(
        self, messages: list[m.ModelMessage], before: m.ModelResponse | None, told: list[m.ModelResponse]
    ) -> AsyncIterator[ModelEvent]:
        cost: RequestUsage | None = None
        async with self._model.request_stream(messages, self._settings, self._parameters) as stream:
            try:
                async for event in self._heard(stream):
                    if stream.usage.has_values() and stream.usage != cost:
                        cost = copy(stream.usage)
                        yield self._so_far(_joined(before, stream.get(), rest=True))
                    if isinstance(event, JobBegun):
                        yield event
                    elif (delta := _delta(event)) is not None:
                        yield delta
            except Exception:
                self.spent = Usage()  # the cost of the rest is unknown; the caller has the reported usage
                raise
            told.append(stream.get())

    async def _heard(self, stream: StreamedResponse) -> AsyncIterator[m.ModelResponseStreamEvent | JobBegun]:
        """Yield the events of a stream, and for a background job its `JobBegun` as soon as the job has an id."""
        events = aiter(stream)
        while stream.state == "suspended" and self._begun is None:
            first = asyncio.ensure_future(anext(events, None))
            try:
                while stream.provider_response_id is None and not first.done():
                    await asyncio.wait([first], timeout=LOOK_S)
                if (begun := self._begin(stream.get())) is not None:
                    yield begun
                event = await first
            finally:
                first.cancel()
            if event is None:
                return
            yield event
        async for event in events:
            yield event

    def _begin(self, response: m.ModelResponse) -> JobBegun | None:
        """Return the `JobBegun` of a job once, else None."""
        name = response.provider_response_id or ""
        if response.state != "suspended" or name == self._begun:
            return None
        self._begun = name
        return JobBegun({"route": self._route, "response": _dumped(response)})

    def judged(self, problem: ModelError) -> ModelError:
        """Return the failure of an attempt; that of a background job becomes `job_lost`, since its answer will never
        come.
        """
        error = problem.error
        if self._begun is None or not error.retryable or error.kind == "job_lost":
            return problem
        message = f"the provider's job {self._begun} gave no reply, so the reply is requested again: {error.message}"
        return ModelError(structs.replace(error, kind="job_lost", message=message), problem.spent)

    def _reattached(self) -> m.ModelResponse | None:
        """Return the response of the job that an earlier attempt began, or None.

        Raises:
            ModelError: `job_lost` if the job belongs to another route or its stored state is unreadable.
        """
        job: Json = self._job
        if job is None:
            return None
        if job.get("route") != self._route:
            message = "the reply was requested over another route and cannot be retrieved; it is requested again"
            raise ModelError(LlmError(kind="job_lost", message=message, retryable=True))
        try:
            response = _loaded(job["response"])
        except ValueError as problem:
            message = "the stored state of the provider's job is unreadable; the reply is requested again"
            raise ModelError(LlmError(kind="job_lost", message=message, retryable=True)) from problem
        self._begun = response.provider_response_id or ""
        return response


def _delta(event: m.ModelResponseStreamEvent) -> TextPiece | ThinkingDelta | HiddenDelta | None:
    """Return the delta of an event that contains model output, or None. Signatures and ids alone are not output."""
    from pydantic_ai import messages as m

    match event:
        case m.PartStartEvent(part=m.TextPart(content=text)) if text:
            return TextPiece(text)
        case m.PartStartEvent(part=m.ThinkingPart(content=text)) if text:
            return ThinkingDelta(text)
        case m.PartStartEvent(part=m.ThinkingPart(provider_details={"raw_content": _})):
            return HiddenDelta(1)
        case m.PartStartEvent(part=m.TextPart() | m.ThinkingPart()):
            return None
        case m.PartStartEvent(part=m.FilePart(content=file)) if file.data:
            return HiddenDelta(len(file.data))
        case m.PartStartEvent(part=part) if name := getattr(part, "tool_name", ""):
            return HiddenDelta(len(name))
        case m.PartDeltaEvent(delta=m.TextPartDelta(content_delta=text)) if text:
            return TextPiece(text)
        case m.PartDeltaEvent(delta=m.ThinkingPartDelta(content_delta=text)) if text:
            return ThinkingDelta(text)
        case m.PartDeltaEvent(delta=m.ThinkingPartDelta(provider_details=details)) if callable(details):
            return HiddenDelta(1)  # a hidden thought grows
        case m.PartDeltaEvent(delta=m.ToolCallPartDelta(args_delta=args, tool_name_delta=name)) if args or name:
            return HiddenDelta(len(str(args or "")) + len(name or ""))
        case _:
            return None


def _joined(before: m.ModelResponse | None, now: m.ModelResponse, *, rest: bool) -> m.ModelResponse:
    """Join a paused response and its continuation.

    A re-attached job answers anew, or (`rest`) streams what followed the last received event.
    """
    if before is None:
        return now
    heard_until = (before.provider_details or {}).get("last_sequence_number")
    known = before.provider_response_id
    same = bool(known) and now.provider_response_id in (None, known)
    if same and not (rest and heard_until is not None):
        return now
    return replace(
        now,
        parts=_gone_on(before.parts, now.parts) if same else [*before.parts, *now.parts],
        usage=now.usage if same else before.usage + now.usage,
        provider_details={**(before.provider_details or {}), **(now.provider_details or {})},
        provider_response_id=now.provider_response_id or known,
    )


def _gone_on(before: Sequence[m.ModelResponsePart], now: Sequence[m.ModelResponsePart]) -> list[m.ModelResponsePart]:
    """Join the parts of one stream received in two pieces: a text continues, any other repeated part is replaced."""
    from pydantic_ai import messages as m

    if before and now:
        match before[-1], now[0]:
            case (m.TextPart() as begun, m.TextPart() as more) if begun.id == more.id:
                whole = replace(more, content=begun.content + more.content)
                return [*before[:-1], whole, *now[1:]]
            case (m.ThinkingPart() as begun, m.ThinkingPart() as more) if begun.id == more.id:
                whole = replace(more, content=begun.content + more.content)
                return [*before[:-1], whole, *now[1:]]
            case _:
                pass
    again = {_name(part) for part in now} - {None}
    return [*(part for part in before if _name(part) not in again), *now]


def _name(part: m.ModelResponsePart) -> tuple[str, str] | None:
    call = getattr(part, "tool_call_id", None)
    return (part.part_kind, call) if call else None


def _length(response: m.ModelResponse) -> int:
    """Return the number of characters that the model has written in a response."""
    from pydantic_ai import messages as m

    texts = [part.content for part in response.parts if isinstance(part, m.TextPart | m.ThinkingPart)]
    calls = [str(part.args or "") for part in response.parts if isinstance(part, m.ToolCallPart)]
    return sum(map(len, (*texts, *calls)))


def _loaded(dumped: Json) -> m.ModelResponse:
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return cast("m.ModelResponse", ModelMessagesTypeAdapter.validate_python([dumped])[0])


def _dumped(response: m.ModelResponse) -> Json:
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]


@cache
def provider_model(spec: str) -> ProviderModel | None:
    """Return the model named by `provider:model`, with this process's credentials, or None for an unknown provider."""
    found = split(spec)
    return ProviderModel(spec, *found) if found else None
