"""Configuration of MCP servers: the usual `mcpServers` JSON, with the trust an application puts in them.

Values of `env` and `headers`, `args` and `url` may refer to the environment, `"Bearer ${API_TOKEN}"`, so that the file
contains no secret. Values of such references are redacted from the server's output.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

import msgspec

from perdure.codec import Json, encode
from perdure.errors import Code, Error
from perdure.tools.steps import StepEffect

NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_REFERENCE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")


class ToolRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The application's rule for one tool. Overrides the server's own hints."""

    effect: StepEffect | None = None
    approve: bool | None = None
    hidden: bool = False


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"type_": "type"}):
    """One server: a command to run, or a URL. Times in seconds.

    `trust`: the server's hints (read-only, idempotent) are believed. Without trust, only hints that restrict a tool
    count. `elicit`: the server may ask people through the approvals; its tools are then resumable. `refresh`: maximum
    age of a tool list when a turn begins, before it is requested again. Servers that report changes need no refresh.
    """

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    url: str = ""
    headers: dict[str, str] = {}
    type_: str = ""
    protocol: Literal["auto", "legacy"] = "auto"
    disabled: bool = False
    trust: bool = False
    elicit: bool = False
    approve: Literal["destructive", "always", "never"] = "destructive"
    tools: dict[str, ToolRule] = {}
    start_timeout: float = 10.0
    call_timeout: float = 60.0
    refresh: float = 60.0

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError("either a command or a url is required")
        if self.type_ not in ("", "stdio", "http", "streamable-http", "streamableHttp"):
            raise ValueError(f"the transport {self.type_!r} is not supported")
        if self.start_timeout <= 0 or self.call_timeout <= 0:
            raise ValueError("timeouts must be > 0")


def parse(config: Mapping[str, Json] | str | Path) -> dict[str, ServerConfig]:
    """Parse a configuration, from a file or a mapping. Disabled servers are omitted.

    Raises:
        Error: `invalid_argument` naming the server and the problem, but no values.
    """
    read: Json = config
    if isinstance(config, str | Path):
        try:
            read = json.loads(Path(config).read_text())
        except (OSError, ValueError) as problem:
            raise _wrong(f"{config} cannot be read", type(problem).__name__) from None
    whole: Mapping[str, Json] = cast("Mapping[str, Json]", read) if isinstance(read, Mapping) else {"mcpServers": None}
    servers: Json = whole.get("mcpServers", whole)
    if not isinstance(servers, Mapping):
        raise _wrong("the configuration of MCP servers must be an object", 'one entry per server under "mcpServers"')
    found: dict[str, ServerConfig] = {}
    for name, given in cast("Mapping[str, Json]", servers).items():
        if not NAME.fullmatch(name):
            raise _wrong(f"invalid server name {name!r}", "a name has 1 to 32 letters, digits, _ and -")
        try:
            one = given if isinstance(given, ServerConfig) else msgspec.convert(given, ServerConfig)
            encode(one)
        except (msgspec.ValidationError, UnicodeEncodeError) as problem:
            raise _wrong(f"invalid configuration of the MCP server {name!r}", str(problem)) from None
        if not one.disabled:
            found[name] = one
    return found


def effect_of(rule: ToolRule | None, *, trusted: bool, reads: bool | None, repeats: bool | None) -> StepEffect:
    """Return the effect class of a tool: by the application's rule, else by a trusted server's hints, else `once`."""
    if rule is not None and rule.effect is not None:
        return rule.effect
    if trusted and reads:
        return "pure"
    return "idempotent" if trusted and repeats else "once"


class Expanded:
    """Expander of references in configuration values. Collects the expanded values as secrets."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.secrets: set[str] = set()

    def values(self, given: Mapping[str, str]) -> dict[str, str]:
        """Expand the values of a mapping.

        Raises:
            Error: `invalid_argument` naming a variable that is not set.
        """
        return {name: self.value(value) for name, value in given.items()}

    def value(self, given: str) -> str:
        """Expand one value.

        Raises:
            Error: `invalid_argument` naming a variable that is not set.
        """
        return _REFERENCE.sub(self._one, given)

    def _one(self, found: re.Match[str]) -> str:
        name = found.group(1)
        value = os.environ.get(name)
        if value is None:
            raise _wrong(f"the MCP server {self._server!r} has an undefined reference", f"{name} is not set")
        self.secrets.add(value)
        return value


def _wrong(what: str, because: str) -> Error:
    return Error(Code.INVALID_ARGUMENT, what, because=because, hint="see docs/guides/mcp.md")
