"""Which model answers: what an input asks for, else what was chosen for its session, else what its agent has, else the
default of the host.

A host that has models and keys of its own gives them as `ModelSources`. Then only these keys are used: what the host
does not have, its environment is not asked for.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import SessionId, TurnId
from perdure.models.protocol import CancelsJobs, KnowsPrices, Model, ModelEvent, ModelRequest
from perdure.models.providers.names import PROVIDERS, Provider, split
from perdure.models.providers.provided import ProviderModel, of_this_process
from perdure.models.registry import resolve
from perdure.runtime.agent import DEFAULT, Agent, MissingModel, find_model, model_of
from perdure.services.llm import LlmProviderStore, ModelWithProvider, ProviderCredentials, ProviderCredentialStore
from perdure.services.replies import PartialStreamStore, StreamHeartbeater
from perdure.vocab.usage import Usage

log = logging.getLogger("perdure.runtime")

NO_DEFAULT = "the agent names no model, and the host has no default"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSources:
    """The models and keys of a host. `utility` is its own model for small work: `ctx.complete(…, utility=True)`.
    `heartbeats` makes whoever is told how far the replies of a turn are, while they are written. `partial_streams` is
    asked for what there is of a reply whose worker died; without one, what the store has of it counts.
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
        self._agents = agents
        self._found: dict[str, tuple[ModelWithProvider, ProviderModel]] = {}
        self._utility = resolve(self.sources.utility) if self.sources.utility is not None else None

    async def named(self, name: str) -> str:
        """The name under which an input that asks for this model is recorded.

        Raises:
            Error: `model_unknown`.
        """
        if self.sources.providers is not None and await self.sources.providers.get_model_with_provider(name):
            return name
        return find_model(name, self._agents.values()).name

    async def chosen(self, agent: Agent, asked: str) -> str:
        """The model of a turn that is about to begin: the input's or the session's, the agent's, the host's."""
        if asked or agent.resolved.name != DEFAULT:
            return asked or agent.resolved.name
        found = await self._default()
        return DEFAULT if found is None else _name(found)

    async def _default(self) -> ModelWithProvider | None:
        if self.sources.providers is None:
            return None
        try:
            return await self.sources.providers.get_default_model()
        except Exception:
            log.exception("the host's default model cannot be found")
            return None

    def of(self, agent: Agent, name: str) -> Model:
        """The model of a turn that was begun. Raises nothing: one that nobody has says so when it is asked."""
        if name == DEFAULT:
            return MissingModel(name, NO_DEFAULT)
        if (own := _given_as_object((agent, *self._agents.values()), name)) is not None:
            return own
        if self.sources.providers is None and self.sources.credentials is None:
            return model_of(agent, name, self._agents.values())
        return _HostModel(name, self)

    async def for_anybody(self, name: str) -> Model:
        """The model that an input would get which asks for it by this name.

        Raises:
            Error: `model_unknown`.
        """
        await self.named(name)
        own = _given_as_object(self._agents.values(), name)
        return own if own is not None else await self.find(name)

    @property
    def utility(self) -> Model | None:
        """The host's own model."""
        if isinstance(self._utility, ProviderModel) and self.sources.credentials is not None:
            return self._with_keys(self._utility.name, self._utility.provider, self._utility.model)
        return self._utility

    async def find(self, name: str) -> Model:
        """A model of the host, with its keys.

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
            because = f"the host says {known.provider_type!r}; there are: {', '.join(PROVIDERS)}"
            raise Error(Code.MODEL_UNKNOWN, f"the model {name!r} has no provider", because=because)
        model = self._given(name, provider, known)
        self._found[name] = known, model
        return model

    async def behind(self, model: Model) -> Model:
        """What a model of this runtime comes down to when it is asked: one that the host is asked for is found."""
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
            return ProviderCredentials(found.api_key, known.base_url or found.base_url)

        return ProviderModel(name, provider, known.model, credentials)

    def _with_keys(self, name: str, provider: Provider, model: str) -> ProviderModel:
        return ProviderModel(name, provider, model, self.credentials_of)

    async def credentials_of(self, provider: Provider) -> ProviderCredentials:
        """What reaches a provider here."""
        if self.sources.credentials is None:
            return await of_this_process(provider)
        found = await self.sources.credentials.get_default_provider_credentials(provider.family)
        return found or ProviderCredentials()


def _name(known: ModelWithProvider) -> str:
    return f"{known.provider_type}:{known.model}"


def _given_as_object(agents: Iterable[Agent], name: str) -> Model | None:
    """A model that was given as an object is asked itself, whatever the host has under its name."""
    objects = (agent.resolved for agent in agents if not isinstance(agent.model, str | None))
    return next((model for model in objects if model.name == name), None)


class _HostModel:
    """A model that the host is asked for when it is needed, so that a key that was changed counts."""

    def __init__(self, name: str, models: Models) -> None:
        self.name = name
        self._models = models

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Find the model, and ask it."""
        model = await self._models.behind(self)
        async for event in model.stream(request):
            yield event

    async def priced(self, usage: Usage) -> Usage:
        """Find the model, and ask it."""
        model = await self._models.behind(self)
        return await model.priced(usage) if isinstance(model, KnowsPrices) else usage

    async def cancel(self, job: Json) -> None:
        """Find the model, and let it cancel its job."""
        model = await self._models.find(self.name)
        if isinstance(model, CancelsJobs):
            await model.cancel(job)
