"""MCP servers as a provider of tools: `Agent(tools=[servers])`.

Laws: an unmarked tool is `once`. A server's hints can restrict a tool, but relax nothing unless the application trusts
the server. A tool with an invalid arguments schema is skipped; the others stay. A server killed during a `once` call
leaves the call in doubt. A turn keeps the tools that it began with.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.services.secrets import Redactor
from perdure.tools.errors import OutcomeUnknown, ToolError
from perdure.tools.json_schema import foreign_problem
from perdure.tools.mcp.calls import Target, call_durably, call_once
from perdure.tools.mcp.config import ServerConfig, effect_of, parse
from perdure.tools.mcp.connection import ConnectionLost, McpConnection, NotConnected
from perdure.tools.provider import ToolProvider
from perdure.tools.steps import StepEffect
from perdure.vocab.tools import Durability, RetryPolicy, ToolContract, ToolHints, ToolManifest

if TYPE_CHECKING:
    import mcp_types as types

    from perdure.tools.context import ToolContext

log = logging.getLogger("perdure.mcp")

MAX_NAME_CHARS = 64
SCHEMA: Json = {"type": "object"}


class McpServers(ToolProvider):
    """The tools of MCP servers: `Agent(tools=[McpServers("mcp.json")])`.

    A runtime with a worker connects when it is opened; `async with` connects earlier, to inspect the tools. Takes the
    usual `mcpServers` configuration, as a file or as a mapping. An unreachable server loses only its own tools and is
    retried. A tool list is refreshed when the server reports a change.

    Raises:
        Error: `invalid_argument` for an invalid configuration; `tool_package_missing` without `mcp`.
    """

    def __init__(self, config: Mapping[str, Json] | str | Path) -> None:
        if find_spec("mcp") is None:
            raise Error(
                Code.TOOL_PACKAGE_MISSING,
                "the package for MCP servers is not installed",
                because="mcp cannot be imported",
                hint="pip install 'perdure[mcp]'",
            )
        self._users = 0
        self._tools: dict[str, dict[str, _Offer]] = {}
        self._connections = {name: self._connection(name, one) for name, one in parse(config).items()}

    def _connection(self, name: str, config: ServerConfig) -> McpConnection:
        return McpConnection(name, config, lambda listed: self._listed(name, config, listed))

    def _offers(self) -> Iterable[dict[str, _Offer]]:
        """Return the tools of each server in the order of the configuration, so that all workers agree."""
        return (self._tools[name] for name in self._connections if name in self._tools)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        """Connect to every server, and return once each was tried. Runtimes with a worker do this automatically."""
        self._users += 1
        if self._users == 1:
            await asyncio.gather(*(one.start() for one in self._connections.values()))

    async def disconnect(self) -> None:
        """Release the connections; the last user ends them."""
        self._users -= 1
        if not self._users:
            for one in self._connections.values():
                await one.stop()

    @property
    def connected(self) -> dict[str, bool]:
        """Connection state by server name."""
        return {name: one.connected for name, one in self._connections.items()}

    # --- tool lists

    async def _listed(self, server: str, config: ServerConfig, tools: Sequence[types.Tool]) -> None:
        offers: dict[str, _Offer] = {}
        for tool in tools:
            rule = config.tools.get(tool.name)
            if rule is not None and rule.hidden:
                continue
            offer = _Offer(server, config, tool, self._connections[server].redactor)
            if problem := await foreign_problem(offer.contract.definition.parameters, arguments=True):
                log.warning("MCP tool skipped tool=%r server=%s problem=%s", tool.name[:80], server, problem[:200])
                continue
            offers.setdefault(offer.manifest.name, offer)
        self._tools[server] = offers

    def tool_manifests(self) -> Sequence[ToolManifest]:
        """Return all tools of all servers with a tool list, server by server."""
        if _in_loop():
            for connection in self._connections.values():
                connection.look()
        return [offer.manifest for offers in self._offers() for offer in offers.values()]

    def resolve_manifest(self, name: str) -> ToolManifest | None:
        """Return the manifest with this name, or None.

        Raises:
            NotConnected: a server that was never reached may have the tool.
        """
        offer = self._find(name)
        if offer is None:
            for server, one in self._connections.items():
                if server not in self._tools and name.startswith(f"mcp_{server}__"):
                    raise NotConnected(one.name)
        return offer.manifest if offer else None

    def resolve_contract(self, name: str) -> ToolContract | None:
        """Return the contract of a tool, with the schema of its server."""
        offer = self._find(name)
        return offer.contract if offer else None

    def _find(self, name: str) -> _Offer | None:
        return next((offers[name] for offers in self._offers() if name in offers), None)

    # --- calls

    async def execute(self, name: str, args: Json, ctx: ToolContext[object]) -> object:
        """Call a tool of a server."""
        offer = self._find(name)
        if offer is None:
            raise ToolError(f"{name} is currently not reachable; nothing was sent", code="mcp_not_connected")
        connection = self._connections[offer.server]
        try:
            target = Target(connection, offer.tool.name, offer.effect)
            return await (call_durably if offer.config.elicit else call_once)(target, args, ctx)
        except NotConnected:
            message = f"the MCP server {offer.server} is not reachable; nothing was sent"
            raise ToolError(message, code="mcp_not_connected", retry_safe=True) from None
        except ConnectionLost:
            raise OutcomeUnknown(f"the MCP server {offer.server} disconnected before it answered") from None


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Offer:
    """One tool of a server, with the application's rule applied."""

    def __init__(self, server: str, config: ServerConfig, tool: types.Tool, redactor: Redactor) -> None:
        self.server = server
        self.config = config
        self.tool = tool
        rule, said = config.tools.get(tool.name), tool.annotations
        reads, repeats = (said.read_only_hint, said.idempotent_hint) if said else (None, None)
        destroys = said.destructive_hint if said else None
        effect = effect_of(rule, trusted=config.trust, reads=reads, repeats=repeats)
        safe = effect != "once"
        self.effect: StepEffect = effect
        retry = RetryPolicy(kind="idempotent", max_attempts=2) if safe else RetryPolicy(kind="safe", max_attempts=2)
        self.manifest = ToolManifest(
            name=tool_name(server, tool.name),
            description=redactor.text(tool.description or tool.title or tool.name),
            id=f"mcp:{server}:{tool.name}",
            durability=Durability(
                effect="resumable" if config.elicit else effect,
                retry=RetryPolicy() if config.elicit else retry,
                timeout_ms=None if config.elicit else int(config.call_timeout * 1000),
            ),
            # An untrusted server's hints count only if they restrict the tool, as for the effect class.
            hints=ToolHints(
                readonly=True if effect == "pure" else None,
                idempotent=True if effect == "idempotent" else None,
                destructive=destroys if config.trust or destroys else None,
                open_world=True,
            ),
        )
        contract = self.manifest.contract(redactor.json(tool.input_schema) or SCHEMA)
        asks = rule.approve if rule is not None and rule.approve is not None else None
        if asks is None:
            asks = config.approve == "always" or (config.approve == "destructive" and destroys is True)
        policy = "requires_approval" if asks else "auto"
        self.contract = replace(contract, definition=replace(contract.definition, policy=policy))


def tool_name(server: str, tool: str) -> str:
    """Return `mcp_{server}__{tool}`, in letters and length that all model providers accept.

    An ambiguous name gets a hash.
    """
    name = f"mcp_{server}__{tool}"
    if "__" in server or server.endswith("_"):
        return _hashed(name, f"{server} {tool}", MAX_NAME_CHARS)
    return plain_name(name, MAX_NAME_CHARS)


def plain_name(name: str, most: int = 48) -> str:
    """Return a name in plain letters. A changed name ends with a hash, so that names stay distinct."""
    if re.fullmatch(r"[A-Za-z0-9_-]*", name) and len(name) <= most:
        return name
    return _hashed(name, name, most)


def _hashed(name: str, whose: str, most: int) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return f"{plain[: most - 9]}_{hashlib.sha256(whose.encode()).hexdigest()[:8]}"
