"""The models available to a runtime: installed packages, sources of keys, users, prices.

Law: the survey tells whether a key exists and where it comes from, never the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from perdure.errors import Error
from perdure.models.protocol import KnowsPrices, Model
from perdure.models.providers.credentials import LocalCredentials
from perdure.models.providers.names import PROVIDERS, Provider
from perdure.models.providers.provided import ProviderModel
from perdure.models.registry import SIMULATED
from perdure.runtime.agent import DEFAULT, Agent, MissingModel, setup_of
from perdure.runtime.models import NO_DEFAULT, Models
from perdure.vocab.usage import NANO, Usage

HOST = "the application"
MILLION = 1_000_000
_SAMPLE = 1_000
"""Few enough tokens that no provider charges the price of long requests."""

Status: TypeAlias = Literal["ready", "no key", "no address", "not installed", "refused", "unknown"]
Lacking: TypeAlias = Literal["package", "address", "key"] | None
_STATUS: Mapping[Lacking, Status] = {
    None: "ready",
    "package": "not installed",
    "address": "no address",
    "key": "no key",
}
Origin: TypeAlias = Literal["agent", "host", "nobody", ""]


@dataclass(frozen=True, slots=True)
class ProviderState:
    """The state of a provider. `key_from` names the variable, the file or the application that has the key."""

    name: str
    status: Status
    extra: str
    installed: bool
    key_from: str | None
    keyless: bool
    address: str | None
    hint: str

    @property
    def ready(self) -> bool:
        """True if its models can be called."""
        return self.status == "ready"


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens; None if unknown."""

    input: Decimal | None = None
    output: Decimal | None = None


@dataclass(frozen=True, slots=True)
class ModelState:
    """A model, the agent that uses it, and the origin of that choice. `hint` is what to do if it cannot be called."""

    name: str
    status: Status
    agent: str
    origin: Origin
    prices: Prices
    hint: str = ""


async def providers(models: Models) -> tuple[ProviderState, ...]:
    """Return the state of every provider."""
    return tuple([await _provider(models, provider) for provider in PROVIDERS.values()])


async def _provider(models: Models, provider: Provider) -> ProviderState:
    try:
        return await _usable(models, provider)
    except Error as problem:
        return ProviderState(
            name=provider.name,
            status="refused",
            extra=provider.extra,
            installed=True,
            key_from=None,
            keyless=provider.keyless,
            address=None,
            hint=problem.hint or problem.because,
        )


async def _usable(models: Models, provider: Provider) -> ProviderState:
    credentials = await models.credentials_of(provider)
    given = models.sources.credentials is not None
    lacking = await ProviderModel(provider.name, provider, "", models.credentials_of).lacks()
    key_from = HOST if given else LocalCredentials().key_from(provider)
    return ProviderState(
        name=provider.name,
        status=_STATUS[lacking],
        extra=provider.extra,
        installed=lacking != "package",
        key_from=key_from if credentials.api_key is not None else None,
        keyless=provider.keyless,
        address=_shown(credentials.base_url or provider.base_url),
        hint=_hint(provider, lacking, given=given),
    )


async def redirected(models: Models, agents: Mapping[str, Agent]) -> tuple[str, ...]:
    """Return a line for each provider in use whose address is not its own, with the source of the address."""
    if models.sources.providers is not None or models.sources.credentials is not None:
        return ()  # the host knows its addresses
    local, found = LocalCredentials(), dict[str, str]()
    for real in (setup_of(agent).model for agent in agents.values()):
        if isinstance(real, ProviderModel):
            try:
                source, address = local.address_from(real.provider), await real.address()
            except Error:
                continue  # the model tells it when it is called
            if source is not None and address == local.of(real.provider).base_url:
                found[real.provider.name] = f"provider={real.provider.name} address={_shown(address)} source={source}"
    return tuple(found.values())


async def in_use(models: Models, agents: Mapping[str, Agent]) -> tuple[ModelState, ...]:
    """Return the models of the agents, the host's utility model, and the simulated models."""
    found: list[ModelState] = []
    for agent in agents.values():
        name = await models.chosen(agent, "")
        origin: Origin = "agent" if setup_of(agent).model.name != DEFAULT else "host" if name != DEFAULT else "nobody"
        found.append(await state_of(models.of(agent, name), models, agent=agent.name, origin=origin))
    if models.utility is not None:
        found.append(await state_of(models.utility, models, origin="host", agent="(utility)"))
    used = {one.name for one in found}
    return (*found, *[await state_of(make(), models) for name, make in SIMULATED.items() if name not in used])


async def state_of(model: Model, models: Models, *, agent: str = "", origin: Origin = "") -> ModelState:
    """Return the state of one model."""
    if origin == "nobody":
        return ModelState("", "unknown", agent, origin, Prices(), NO_DEFAULT)
    real = await models.behind(model)
    if isinstance(real, MissingModel):
        return ModelState(model.name, "unknown", agent, origin, Prices(), real.reason)
    try:
        lacking = await real.lacks() if isinstance(real, ProviderModel) else None
    except Error as problem:
        return ModelState(model.name, "refused", agent, origin, Prices(), problem.hint or problem.because)
    hint = ""
    if isinstance(real, ProviderModel):
        hint = _hint(real.provider, lacking, given=models.sources.credentials is not None)
    return ModelState(model.name, _STATUS[lacking], agent, origin, await _prices(real), hint)


async def _prices(model: Model) -> Prices:
    if not isinstance(model, KnowsPrices):
        return Prices()
    return Prices(
        _per_million(await model.priced(Usage(input=_SAMPLE, calls=1))),
        _per_million(await model.priced(Usage(output=_SAMPLE, calls=1))),
    )


def _per_million(usage: Usage) -> Decimal | None:
    return Decimal(usage.cost_nano) * (MILLION // _SAMPLE) / NANO if usage.priced else None


def _hint(provider: Provider, lacking: Lacking, *, given: bool) -> str:
    """Return the command or the sentence that resolves the lack."""
    match lacking:
        case None:
            return ""
        case "package":
            return f"pip install 'perdure[{provider.extra}]'"
        case _ if given:
            return f"the application has no {lacking} for {provider.family}"
        case "key":
            return f"export {provider.keys[0]}=…"
        case "address":
            return f"export {provider.base_url_variable}=http://…"


def _shown(address: str | None) -> str | None:
    """Return an address without its user and password."""
    if address is None:
        return None
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
