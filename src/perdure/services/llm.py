"""Stores of models and credentials that a host may give to a runtime.

Laws: a key is a `Secret` wherever it is held, and enters no record, event or message. A tenant without a key in its own
store has none; keys of others are never used instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from perdure.services.secrets import Secret


@dataclass(frozen=True, slots=True)
class ProviderCredentials:
    """Credentials of a provider: a key, and a base URL if it differs from the default.

    `key_variable` names the environment variable that holds the key. Without it, an SDK gets nothing else from the
    environment for this base URL.
    """

    api_key: Secret | None = None
    base_url: str | None = None
    key_variable: str = ""


@dataclass(frozen=True, slots=True)
class ModelWithProvider:
    """A model of a host: its name at the provider, the provider, and optional credentials.

    `provider_type` is the part before the colon in a model name, such as `openai` or `anthropic`. Without a key, the
    provider's key is used.
    """

    model: str
    provider_type: str
    api_key: Secret | None = None
    base_url: str | None = None


class LlmProviderStore(Protocol):
    """The models of a host, by its own ids."""

    async def get_model_with_provider(self, model_id: str) -> ModelWithProvider | None:
        """Return the model with this id, or None."""
        ...

    async def get_default_model(self) -> ModelWithProvider | None:
        """Return the default model, or None."""
        ...


class ProviderCredentialStore(Protocol):
    """The credentials of a host, by provider. Tools never read the environment for them."""

    async def get_default_provider_credentials(self, provider_type: str) -> ProviderCredentials | None:
        """Return the credentials for this provider, or None."""
        ...
