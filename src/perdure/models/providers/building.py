"""Construction of Pydantic AI models from a name and credentials.

SDK retries are off; the runtime makes the attempts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from perdure.errors import Code, Error
from perdure.models.providers.clients import CONNECT_S, READ_S
from perdure.models.providers.credentials import address_missing, key_missing, package_missing
from perdure.models.providers.incoming import opaque_parts
from perdure.models.providers.names import Provider, Wire
from perdure.models.providers.profiles import profiles_of
from perdure.services.llm import ProviderCredentials

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI
    from pydantic_ai.models import Model

Client = TypeVar("Client")

_MODULES: Mapping[Wire, str] = {
    "responses": "pydantic_ai.models.openai",
    "chat": "pydantic_ai.models.openai",
    "anthropic": "pydantic_ai.models.anthropic",
    "google": "pydantic_ai.models.google",
    "bedrock": "pydantic_ai.models.bedrock",
}

_PACKAGES: Mapping[Wire, str] = {
    "responses": "openai",
    "chat": "openai",
    "anthropic": "anthropic",
    "google": "google.genai",
    "bedrock": "boto3",
}

_FOUND_BY_AWS = frozenset({"AWS_ACCESS_KEY_ID", "AWS_PROFILE"})

NO_KEY = "no-key"
"""The key sent to a server that needs none."""


def check(provider: Provider, credentials: ProviderCredentials) -> None:
    """Raise if a provider cannot be called.

    Raises:
        Error: `model_key_missing`.
    """
    match lacks(provider, credentials):
        case "address":
            raise address_missing(provider)
        case "key":
            raise key_missing(provider)
        case _:
            return


def lacks(provider: Provider, credentials: ProviderCredentials) -> Literal["address", "key"] | None:
    """Return the missing requirement of a provider, or None."""
    if provider.family == "openai-compatible" and credentials.base_url is None:
        return "address"
    return "key" if credentials.api_key is None and not provider.keyless else None


def load(provider: Provider) -> None:
    """Import a provider's modules and prepare the library's codecs. The first call takes seconds: use a thread.

    Raises:
        Error: `model_package_missing`.
    """
    try:
        import_module(_MODULES[provider.wire])
    except ImportError as problem:
        package = problem.name or getattr(problem.__cause__, "name", None) or "its SDK"
        raise package_missing(provider, package) from problem
    opaque_parts()


def is_installed(provider: Provider) -> bool:
    """Return True if the provider's packages can be found, without importing them."""
    try:
        return all(find_spec(package) for package in ("pydantic_ai", _PACKAGES[provider.wire]))
    except ModuleNotFoundError:  # the parent package is missing
        return False


def build(provider: Provider, name: str, credentials: ProviderCredentials, http: httpx2.AsyncClient) -> Model[Any]:
    """Return the model, using this HTTP client.

    Raises:
        Error: `model_key_missing`; `model_unknown` for an invalid name.
    """
    from pydantic_ai.exceptions import UserError

    check(provider, credentials)
    try:
        return _built(provider, name, credentials, http)
    except UserError as problem:
        because = problem.message.partition(". ")[0]
        raise Error(Code.MODEL_UNKNOWN, f"{provider.name} has no model {name!r}", because=because) from problem


def _built(provider: Provider, name: str, credentials: ProviderCredentials, http: httpx2.AsyncClient) -> Model[Any]:
    key = credentials.api_key.reveal() if credentials.api_key else NO_KEY
    base_url = credentials.base_url or provider.base_url
    ambient = credentials.base_url is None or bool(credentials.key_variable)
    match provider.wire:
        case "responses":
            from pydantic_ai.models.openai import OpenAIResponsesModel
            from pydantic_ai.providers.openai import OpenAIProvider

            openai = _openai(key, base_url, http, ambient=ambient)
            return OpenAIResponsesModel(name, provider=OpenAIProvider(openai_client=openai))
        case "chat":
            return _chat(provider, name, key, base_url, http, ambient=ambient)
        case "anthropic":
            from anthropic import AsyncAnthropic
            from pydantic_ai.models.anthropic import AnthropicModel
            from pydantic_ai.providers.anthropic import AnthropicProvider

            sdk = AsyncAnthropic if ambient else _isolated(AsyncAnthropic)
            anthropic = sdk(api_key=key, base_url=base_url, http_client=http)
            return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=anthropic))
        case "google":
            from pydantic_ai.models.google import GoogleModel
            from pydantic_ai.providers.google import GoogleProvider

            return GoogleModel(name, provider=GoogleProvider(api_key=key, base_url=base_url, http_client=http))
        case "bedrock":
            return _bedrock(name, credentials, base_url)


def _isolated(sdk: type[Client]) -> type[Client]:
    """Return a client class that takes no headers from the environment. Its copies take none either."""
    base: Any = sdk

    class Isolated(base):
        def __init__(self, *, default_headers: Mapping[str, str] | None = None, **options: object) -> None:
            base.__init__(self, default_headers=default_headers, **options)
            self._custom_headers = dict(default_headers or {})  # threat: S6
            self.organization, self.project = options.get("organization"), options.get("project")

    return cast("type[Client]", Isolated)


def _openai(key: str, base_url: str | None, http: httpx2.AsyncClient, *, ambient: bool) -> AsyncOpenAI:
    from openai import AsyncOpenAI

    sdk = AsyncOpenAI if ambient else _isolated(AsyncOpenAI)
    return sdk(api_key=key, base_url=base_url, http_client=http)


def _chat(
    provider: Provider, name: str, key: str, base_url: str | None, http: httpx2.AsyncClient, *, ambient: bool
) -> Model[Any]:
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    from perdure.models.providers.counting import ChatModel

    whole = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)  # else a cut stream counts as a reply
    if provider.family == "openai":
        openai = _openai(key, base_url, http, ambient=ambient)
        return ChatModel(name, provider=OpenAIProvider(openai_client=openai), profile=whole)
    assert base_url is not None  # `check` requires it where there is no default
    own = _openai(key, base_url, http, ambient=False)  # the variables of OpenAI are for no other provider
    compatible = OpenAICompatibleProvider(provider.family, openai_client=own, profile=profiles_of(provider.family))
    if provider.family == "openrouter":  # its replies contain thought signatures and files of its own format
        from pydantic_ai.models.openrouter import OpenRouterModel

        return OpenRouterModel(name, provider=compatible, profile=whole)
    return ChatModel(name, provider=compatible, profile=whole)


def _bedrock(name: str, credentials: ProviderCredentials, base_url: str | None) -> Model[Any]:
    """Return a Bedrock model. Its SDK finds the keys and profiles of AWS; every other key is a bearer token."""
    from pydantic_ai.models.bedrock import BedrockConverseModel
    from pydantic_ai.providers import bedrock as theirs

    boto3: Any = import_module("boto3")
    config: Any = import_module("botocore.config")
    region = os.environ.get("AWS_DEFAULT_REGION") or os.environ.get("AWS_REGION") or "us-east-1"
    options: dict[str, Any] = {"read_timeout": READ_S, "connect_timeout": CONNECT_S}
    options["retries"] = {"total_max_attempts": 1}
    key = credentials.api_key.reveal() if credentials.api_key else None
    if credentials.key_variable in _FOUND_BY_AWS:  # threat: S6
        session = boto3.Session(region_name=region)
    else:
        bearer = theirs._BearerTokenSession(key or NO_KEY)  # pyright: ignore[reportPrivateUsage] - SDK has no other way
        session = boto3.Session(botocore_session=bearer, region_name=region)
        options["signature_version"] = "bearer"
    client = session.client("bedrock-runtime", config=config.Config(**options), endpoint_url=base_url)
    return BedrockConverseModel(name, provider=theirs.BedrockProvider(bedrock_client=client))
