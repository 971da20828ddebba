"""Which models an application has and what it takes to reach them: the stores that a host may give to a runtime.

Laws: a key is a `Secret` wherever it is held, and enters no record, event or message. A tenant's store that has no key
has none: nobody else's is spent in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from perdure.services.secrets import Secret


@dataclass(frozen=True, slots=True)
class ProviderCredentials:
    """What reaches a provider: a key, and an address if it is not the provider's own."""

    api_key: Secret | None = None
    base_url: str | None = None


@dataclass(frozen=True, slots=True)
class ModelWithProvider:
    """A model as a host knows it: the name that its provider understands, which provider that is, and how to reach it.

    `provider_type` is what stands before the colon in the name of a model, such as `openai` or `anthropic`. Without a
    key, that of the provider is used.
    """

    model: str
    provider_type: str
    api_key: Secret | None = None
    base_url: str | None = None


class LlmProviderStore(Protocol):
    """The models of a host, by the ids that it gives them."""

    async def get_model_with_provider(self, model_id: str) -> ModelWithProvider | None:
        """The model of this id; None if there is none."""
        ...

    async def get_default_model(self) -> ModelWithProvider | None:
        """The model for whoever names none; None if the host has no such."""
        ...


class ProviderCredentialStore(Protocol):
    """The credentials of a host, by provider. Tools never read the environment for them."""

    async def get_default_provider_credentials(self, provider_type: str) -> ProviderCredentials | None:
        """What reaches this provider; None if the host has nothing for it."""
        ...
