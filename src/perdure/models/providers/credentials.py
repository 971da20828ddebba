"""Credentials of providers: from the application, then the environment, then `perdure.toml`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from perdure.errors import Code, Error
from perdure.models.providers.configuration import FILE, Section, configuration
from perdure.models.providers.names import Provider
from perdure.services.llm import ProviderCredentials
from perdure.services.secrets import Secret

TRUST = "PERDURE_TRUST_CONFIG"
"""The variable that allows an address of the file for a key of the environment."""


class LocalCredentials:
    """Credentials of this process: from its environment, then from `perdure.toml` in its working directory.

    Law: a key goes only to the provider's own address, to one of the environment, or to the address beside it in the
    file. A variable that is set later is found; the file is read once.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, file: Path | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._config = configuration(file)

    def of(self, provider: Provider) -> ProviderCredentials:
        """Return the known credentials of a provider.

        Raises:
            Error: `config_untrusted` if a key of the environment would go to an address of the file.
        """
        section = self._config.section(provider.family)
        source, key = self._key(provider, section)
        base_url = self._variable(provider.base_url_variable)
        if not base_url and (base_url := self._address(section)) and key and source != FILE and not self._trusts():
            raise _untrusted(provider, source)  # threat: S6
        variable = source if key and source != FILE else ""
        return ProviderCredentials(Secret(key) if key else None, base_url or None, variable)

    def key_from(self, provider: Provider) -> str | None:
        """Return the source of a provider's key, the name of a variable or of the file, or None."""
        source, key = self._key(provider, self._config.section(provider.family))
        return source if key else None

    def address_from(self, provider: Provider) -> str | None:
        """Return the source of an address that is not the provider's own, or None."""
        if self._variable(provider.base_url_variable):
            return provider.base_url_variable
        return FILE if self._address(self._config.section(provider.family)) else None

    def _key(self, provider: Provider, section: Section) -> tuple[str, str]:
        """Return the source of the key and the key. An address of the file takes the key beside it first."""
        found = [(source, key) for source, key in self._keys(provider, section) if key]
        if self._address(section) and not self._variable(provider.base_url_variable):
            found.sort(key=lambda one: one[0] != FILE)
        return found[0] if found else ("", "")

    def _keys(self, provider: Provider, section: Section) -> Iterator[tuple[str, str]]:
        """Yield every possible source of a key and its value, in order of precedence."""
        for name in provider.keys:
            yield name, self._variable(name)
        yield FILE, section.get("api_key", "").strip()
        named = section.get("api_key_env", "")
        yield named, self._variable(named)

    def _address(self, section: Section) -> str:
        return section.get("base_url", "").strip()

    def _trusts(self) -> bool:
        return self._variable(TRUST) == "1"

    def _variable(self, name: str) -> str:
        """Return the value of a variable, without the trailing newline that a key from a file often has."""
        return self._environment.get(name, "").strip()


def _untrusted(provider: Provider, source: str) -> Error:
    return Error(
        Code.CONFIG_UNTRUSTED,
        f"the address of {FILE} is not used with the key of {source}",
        because=f"[providers.{provider.family}] has a base_url and no api_key of its own",
        hint=f"export {provider.base_url_variable}=…   or {TRUST}=1 if you wrote {FILE}",
        provider=provider.family,
    )


def key_missing(provider: Provider) -> Error:
    """Return the error for a provider without a key."""
    return Error(
        Code.MODEL_KEY_MISSING,
        f'no API key for provider "{provider.family}"',
        because=f"{' or '.join(provider.keys)} is not set and {FILE} has no [providers.{provider.family}]",
        hint=f"export {provider.keys[0]}=…; or stay offline with the model sim:echo",
        provider=provider.family,
    )


def address_missing(provider: Provider) -> Error:
    """Return the error for a compatible server without an address."""
    return Error(
        Code.MODEL_KEY_MISSING,
        f'no address for provider "{provider.family}"',
        because=f"{provider.base_url_variable} is not set and {FILE} has no [providers.{provider.family}]",
        hint=f"export {provider.base_url_variable}=http://127.0.0.1:11434/v1; or, on the command line, --base-url",
        provider=provider.family,
    )


def package_missing(provider: Provider, package: str) -> Error:
    """Return the error for a model whose SDK is not installed."""
    return Error(
        Code.MODEL_PACKAGE_MISSING,
        f'the provider "{provider.name}" needs packages that are not installed',
        because=f"{package} cannot be imported",
        hint=f"pip install 'perdure[{provider.extra}]'; or stay offline with the model sim:echo",
        provider=provider.name,
    )
