"""Credentials of providers: from the application, then the environment, then `perdure.toml`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from perdure.errors import Code, Error
from perdure.models.providers.names import Provider
from perdure.services.llm import ProviderCredentials
from perdure.services.secrets import Secret

FILE = "perdure.toml"


class LocalCredentials:
    """Credentials of this process: from its environment, then from `perdure.toml` in its working directory.

    Both are read on demand, so a key that is set later is found.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, file: Path | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._file = file

    def of(self, provider: Provider) -> ProviderCredentials:
        """Return the known credentials of a provider."""
        section = self._section(provider.family)
        key = next((key for _, key in self._keys(provider, section) if key), None)
        base_url = self._said(provider.base_url_variable) or section.get("base_url", "").strip()
        return ProviderCredentials(Secret(key) if key else None, base_url or None)

    def key_from(self, provider: Provider) -> str | None:
        """Return the source of a provider's key, the name of a variable or of the file, or None."""
        return next((place for place, key in self._keys(provider, self._section(provider.family)) if key), None)

    def _keys(self, provider: Provider, section: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yield every possible source of a key and its value, in order of precedence."""
        for name in provider.keys:
            yield name, self._said(name)
        yield FILE, section.get("api_key", "").strip()
        named = section.get("api_key_env", "")
        yield named, self._said(named)

    def _said(self, name: str) -> str:
        """Return the value of a variable, without the trailing newline that a key from a file often has."""
        return self._environment.get(name, "").strip()

    def _section(self, family: str) -> dict[str, str]:
        file = self._file or Path(FILE)
        try:
            found = tomllib.loads(file.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
            raise Error(Code.INVALID_ARGUMENT, f"{file} cannot be read", because=str(problem)) from None
        providers = found.get("providers")
        section = cast("dict[str, object]", providers).get(family) if isinstance(providers, dict) else None
        if not isinstance(section, dict):
            return {}
        said = cast("dict[str, object]", section)
        return {name: value for name, value in said.items() if isinstance(value, str)}


def key_missing(provider: Provider) -> Error:
    """Return the error for a provider without a key."""
    return Error(
        Code.MODEL_KEY_MISSING,
        f'no API key for provider "{provider.family}"',
        because=f"{' or '.join(provider.keys)} is not set and {FILE} has no [providers.{provider.family}]",
        hint=f"export {provider.keys[0]}=…   or stay offline: --model sim:echo",
        provider=provider.family,
    )


def address_missing(provider: Provider) -> Error:
    """Return the error for a compatible server without an address."""
    return Error(
        Code.MODEL_KEY_MISSING,
        f'no address for provider "{provider.family}"',
        because=f"{provider.base_url_variable} is not set and {FILE} has no [providers.{provider.family}]",
        hint=f"export {provider.base_url_variable}=http://127.0.0.1:11434/v1   or --base-url",
        provider=provider.family,
    )


def package_missing(provider: Provider, package: str) -> Error:
    """Return the error for a model whose SDK is not installed."""
    return Error(
        Code.MODEL_PACKAGE_MISSING,
        f'the provider "{provider.name}" needs packages that are not installed',
        because=f"{package} cannot be imported",
        hint=f"pip install 'perdure[{provider.extra}]'   or stay offline: --model sim:echo",
        provider=provider.name,
    )
