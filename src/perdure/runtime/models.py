"""The choice of the model for a turn: that of the input, of the session, of the agent, or the default of the host.

A host with models and keys of its own passes them as `ModelSources`. Then only these keys are used; keys in the
environment are ignored.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import SessionId, TurnId
from perdure.models.protocol import CancelsJobs, KnowsPrices, Model, ModelEvent, ModelRequest
from perdure.models.providers.configuration import configuration
from perdure.models.providers.names import PROVIDERS, Provider, split
from perdure.models.providers.provided import ProviderModel, of_this_process
from perdure.models.registry import resolve
from perdure.runtime.agent import DEFAULT, Agent, MissingModel, find_model, model_of, setup_of
from perdure.services.llm import LlmProviderStore, ModelWithProvider, ProviderCredentials, ProviderCredentialStore
from perdure.services.replies import PartialStreamStore, StreamHeartbeater
from perdure.vocab.usage import Usage

log = logging.getLogger("perdure.runtime")

NO_DEFAULT = "the agent names no model, and the host has no default"

_GIVE_A_MODEL = "Runtime(..., model_sources=ModelSources(providers=...)), or Agent(..., model='openai:...')"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSources:
    """The models and keys of a host.

    `utility` is its model for small work: `ctx.complete(…, utility=True)`. `heartbeats` creates the heartbeater that
    receives the progress of a turn's replies. `partial_streams` supplies the partial text of a reply whose worker died;
    without one, the text in the store is used.
    """

    providers: LlmProviderStore | None = None
    credentials: ProviderCredentialStore | None = None
    utility: str | Model | None = None
    heartbeats: Callable[[SessionId, TurnId], StreamHeartbeater] | None = None
    partial_streams: PartialStreamStore | None = None


class Models:
    """The models of one runtime."""

    def __init__(self, sources: ModelSources | None, agents: Mapping[str, Agent]) -> None:
        self.sources = sources or ModelSources()
        configuration()  # read before any command of an agent can write it
        self._agents = agents
        self._found: dict[str, tuple[ModelWithProvider, ProviderModel]] = {}
        self._utility = resolve(self.sources.utility) if self.sources.utility is not None else None

    async def named(self, name: str) -> str:
        """Return the name under which an input that requests this model is recorded.

        Raises:
            Error: `model_unknown`.
        """
        if self.sources.providers is not None and await self.sources.providers.get_model_with_provider(name):
            return name
        return find_model(name, self._agents.values()).name

    async def chosen(self, agent: Agent, asked: str) -> str:
        """Return the model of a new turn: the one asked for by input or session, the agent's, or the host's default."""
        if asked or setup_of(agent).model.name != DEFAULT:
            return asked or setup_of(agent).model.name
        found = await self._default()
        return DEFAULT if found is None else _name(found)

    async def _default(self) -> ModelWithProvider | None:
        if self.sources.providers is None:
            return None
        try:
            return await self.sources.providers.get_default_model()
        except Exception:
            log.exception("default model lookup failed")
            return None

    def of(self, agent: Agent, name: str) -> Model:
        """Return the model of an open turn. Raises nothing: an unknown model reports its error when called."""
        if name == DEFAULT:
            return MissingModel(name, NO_DEFAULT, _GIVE_A_MODEL)
        if (own := _given_as_object((agent, *self._agents.values()), name)) is not None:
            return own
        if self.sources.providers is None and self.sources.credentials is None:
            return model_of(agent, name, self._agents.values())
        return _HostModel(name, self)

    async def for_anybody(self, name: str) -> Model:
        """Return the model of an input that requests this name.

        Raises:
            Error: `model_unknown`.
        """
        await self.named(name)
        own = _given_as_object(self._agents.values(), name)
        return own if own is not None else await self.find(name)

    @property
    def utility(self) -> Model | None:
        """The host's utility model, or None."""
        if isinstance(self._utility, ProviderModel) and self.sources.credentials is not None:
            return self._with_keys(self._utility.name, self._utility.provider, self._utility.model)
        return self._utility

    async def find(self, name: str) -> Model:
        """Return a model of the host, with its keys.

        Raises:
            Error: `model_unknown`.
        """
        known = await self._known(name)
        if known is None:
            spec = split(name)
            return self._with_keys(name, *spec) if spec else resolve(name)
        if known.provider_type == "sim":
            return resolve(_name(known))
        if (found := self._found.get(name)) and found[0] == known:
            return found[1]
        if (provider := PROVIDERS.get(known.provider_type)) is None:
            because = f"the host names {known.provider_type!r}; known providers: {', '.join(PROVIDERS)}"
            raise Error(Code.MODEL_UNKNOWN, f"the model {name!r} has no provider", because=because)
        model = self._given(name, provider, known)
        self._found[name] = known, model
        return model

    async def behind(self, model: Model) -> Model:
        """Return the model behind a handle that is looked up at each call; other models are returned unchanged."""
        if not isinstance(model, _HostModel):
            return model
        try:
            return await self.find(model.name)
        except Error as problem:
            return MissingModel(model.name, problem.message)

    async def _known(self, name: str) -> ModelWithProvider | None:
        if self.sources.providers is None:
            return None
        known = await self.sources.providers.get_model_with_provider(name)
        if known is None and (default := await self._default()) is not None and _name(default) == name:
            return default
        return known

    def _given(self, name: str, provider: Provider, known: ModelWithProvider) -> ProviderModel:
        async def credentials(provider: Provider) -> ProviderCredentials:
            if known.api_key is not None:
                return ProviderCredentials(known.api_key, known.base_url)
            found = await self.credentials_of(provider)
            return replace(found, base_url=known.base_url or found.base_url)

        return ProviderModel(name, provider, known.model, credentials)

    def _with_keys(self, name: str, provider: Provider, model: str) -> ProviderModel:
        return ProviderModel(name, provider, model, self.credentials_of)

    async def credentials_of(self, provider: Provider) -> ProviderCredentials:
        """Return the credentials of a provider."""
        if self.sources.credentials is None:
            return await of_this_process(provider)
        found = await self.sources.credentials.get_default_provider_credentials(provider.family)
        return found or ProviderCredentials()


def _name(known: ModelWithProvider) -> str:
    return f"{known.provider_type}:{known.model}"


def _given_as_object(agents: Iterable[Agent], name: str) -> Model | None:
    """Return the model that an agent was given as an object, which has precedence over a model of the host."""
    objects = (setup_of(agent).model for agent in agents if not isinstance(agent.model, str | None))
    return next((model for model in objects if model.name == name), None)


class _HostModel:
    """A model that is looked up at the host for each call, so that a changed key takes effect."""

    def __init__(self, name: str, models: Models) -> None:
        self.name = name
        self._models = models

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Look the model up, and stream its reply."""
        model = await self._models.behind(self)
        async for event in model.stream(request):
            yield event

    async def priced(self, usage: Usage) -> Usage:
        """Look the model up, and price the usage."""
        model = await self._models.behind(self)
        return await model.priced(usage) if isinstance(model, KnowsPrices) else usage

    async def cancel(self, job: Json) -> None:
        """Look the model up, and cancel its job."""
        model = await self._models.find(self.name)
        if isinstance(model, CancelsJobs):
            await model.cancel(job)
