"""What an application says about its MCP servers: the usual `mcpServers` JSON, and what it trusts them with.

Values of `env` and `headers`, `args` and `url` may refer to the environment, `"Bearer ${API_TOKEN}"`, so that no secret
stands in the file. What such a reference brings in is hidden from whatever the server says.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

import msgspec

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.tools.steps import StepEffect

NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_REFERENCE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")


class ToolRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the application says of one tool, whatever its server says."""

    effect: StepEffect | None = None
    approve: bool | None = None
    hidden: bool = False


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"type_": "type"}):
    """One server: a command to run, or an address. Times in seconds.

    `trust`: what the server says of its tools (that one only reads, or may be repeated) is believed. Without it, such
    words make nothing easier, and only those that make it harder count. `elicit`: it may ask people, through the
    approvals; its tools are then resumable. `refresh`: how old a list of tools may be when a turn begins before it is
    asked for again; servers that tell of changes need not be asked.
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
            raise ValueError("it has either a command or a url")
        if self.type_ not in ("", "stdio", "http", "streamable-http", "streamableHttp"):
            raise ValueError(f"the transport {self.type_!r} is not supported")
        if self.start_timeout <= 0 or self.call_timeout <= 0:
            raise ValueError("its timeouts must be more than nothing")


def parse(config: Mapping[str, Json] | str | Path) -> dict[str, ServerConfig]:
    """The servers of a configuration: a file, or what such a file has in it. Those that are disabled are left out.

    Raises:
        Error: `invalid_argument` saying what is wrong with which server; never with its values.
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
        raise _wrong("a configuration of MCP servers is an object", 'it has one entry for each under "mcpServers"')
    found: dict[str, ServerConfig] = {}
    for name, given in cast("Mapping[str, Json]", servers).items():
        if not NAME.fullmatch(name):
            raise _wrong(f"{name!r} is no name of a server", "it has 1 to 32 letters, digits, _ and -")
        try:
            one = given if isinstance(given, ServerConfig) else msgspec.convert(given, ServerConfig)
        except msgspec.ValidationError as problem:
            raise _wrong(f"the MCP server {name!r} cannot be used", str(problem)) from None
        if not one.disabled:
            found[name] = one
    return found


def effect_of(rule: ToolRule | None, *, trusted: bool, reads: bool | None, repeats: bool | None) -> StepEffect:
    """The class of a tool: what the application says; else what a trusted server says; else `once`."""
    if rule is not None and rule.effect is not None:
        return rule.effect
    if trusted and reads:
        return "pure"
    return "idempotent" if trusted and repeats else "once"


class Expanded:
    """Values with their references resolved, and what those have brought in: that must not be seen."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.secrets: set[str] = set()

    def values(self, given: Mapping[str, str]) -> dict[str, str]:
        """The same names, with what their values refer to.

        Raises:
            Error: `invalid_argument` naming what is not set.
        """
        return {name: self.value(value) for name, value in given.items()}

    def value(self, given: str) -> str:
        """A value, with what it refers to.

        Raises:
            Error: `invalid_argument` naming what is not set.
        """
        return _REFERENCE.sub(self._one, given)

    def _one(self, found: re.Match[str]) -> str:
        name = found.group(1)
        value = os.environ.get(name)
        if value is None:
            raise _wrong(f"the MCP server {self._server!r} cannot be reached", f"{name} is not set")
        self.secrets.add(value)
        return value


def _wrong(what: str, because: str) -> Error:
    return Error(Code.INVALID_ARGUMENT, what, because=because, hint="see docs/mcp.md")
