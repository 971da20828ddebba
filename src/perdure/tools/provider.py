"""Tool providers: a source of tools that are not functions of this program, such as those of a server or a plugin."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol, cast, runtime_checkable

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.tools.context import ToolContext
from perdure.tools.errors import ToolError
from perdure.tools.json_schema import problem_of, violations
from perdure.tools.prepare import Answer, ToolPrepareContext
from perdure.tools.verdicts import Unknown, Verdict
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.outcomes import Failure
from perdure.vocab.tools import ToolContract, ToolManifest


@runtime_checkable
class ToolProvider(Protocol):
    """Gives an agent tools: `Agent(tools=[refund, MyProvider()])`.

    Subclass it and write `tool_manifests`, `resolve_contract` and `execute`; the rest follows from them. The manifest
    of a tool says its effect class and policies; an unmarked one is `once`. Manifests are read when a turn begins.
    """

    @abstractmethod
    def tool_manifests(self) -> Sequence[ToolManifest]:
        """All tools, in the order a model shall see them. Called often: keep it quick."""
        ...

    @abstractmethod
    def resolve_contract(self, name: str) -> ToolContract | None:
        """The contract of a tool: `manifest.contract(schema)`. None while there is none; then it cannot be called."""
        ...

    @abstractmethod
    async def execute(self, name: str, args: Json, ctx: ToolContext[object]) -> object:
        """Run one attempt: return a JSON value, or raise `ToolError` or `OutcomeUnknown` like any tool."""
        ...

    def resolve_manifest(self, name: str) -> ToolManifest | None:
        """The manifest of that name."""
        return next((manifest for manifest in self.tool_manifests() if manifest.name == name), None)

    def resolve_manifest_by_id(self, tool_id: str) -> ToolManifest | None:
        """The manifest of that id."""
        return next((manifest for manifest in self.tool_manifests() if manifest.tool_id == tool_id), None)

    def resolve_contract_by_id(self, tool_id: str) -> ToolContract | None:
        """The contract of the tool of that id."""
        manifest = self.resolve_manifest_by_id(tool_id)
        return self.resolve_contract(manifest.name) if manifest else None

    def prepare_tool_call(self, ctx: ToolPrepareContext, call: PreparedToolCall) -> Answer:
        """Look at a call before anything of it is recorded; may be `async`.

        Return the call, with a sealed `prepared_payload` perhaps, or `Success` or `Failed` to answer it without running
        anything. An exception is a known failure.
        """
        return call

    async def execute_by_id(self, tool_id: str, args: Json, ctx: ToolContext[object]) -> object:
        """Run one attempt of the tool of that id."""
        manifest = self.resolve_manifest_by_id(tool_id)
        if manifest is None:
            raise ToolError(f"Unknown tool id: {tool_id}")
        return await self.execute(manifest.name, args, ctx)

    async def probe(self, tool_id: str, ctx: ToolContext[object]) -> Verdict:
        """Say whether a call in doubt took effect; for tools whose manifest says `doubt="probe"`."""
        return Unknown("its provider has no probe")


@runtime_checkable
class Connects(Protocol):
    """A provider that must reach somebody before it has tools. A runtime with a worker sees to it while it is open."""

    async def connect(self) -> None:
        """Be ready, or trying; several may ask for it."""
        ...

    async def disconnect(self) -> None:
        """One of them does not need it any more."""
        ...


def has_hook(provider: ToolProvider) -> bool:
    """Whether it prepares calls at all."""
    own = getattr(provider.prepare_tool_call, "__func__", provider.prepare_tool_call)
    return own is not ToolProvider.prepare_tool_call


def check_provider(provider: ToolProvider) -> None:
    """Refuse a provider that could only fail later.

    Raises:
        Error: `tool_invalid`.
    """
    name = type(provider).__name__
    for method in ("execute", "execute_by_id"):
        if not inspect.iscoroutinefunction(getattr(provider, method, None)):
            raise Error(
                Code.TOOL_INVALID,
                f"{name}.{method} is not async",
                because="a provider runs on the event loop of its worker",
                hint="make it `async def`, and call what blocks through asyncio.to_thread",
            )
    for manifest in provider.tool_manifests():
        check_manifest(provider, manifest)


def check_manifest(provider: ToolProvider, manifest: ToolManifest) -> ToolContract | None:
    """The contract of a manifest, if both make sense together.

    Raises:
        Error: `tool_invalid` saying what does not.
    """
    where = f"the tool {manifest.name} of {type(provider).__name__}"
    if not manifest.tool_id.strip() or (manifest.id and not manifest.id.strip()):
        raise _invalid(where, "has a blank id", "leave it out, and it is tool:{name}")
    durability = manifest.durability
    if durability.effect == "once" and durability.retry.kind == "idempotent":
        raise _invalid(where, "is once and retried as if it were idempotent", 'use kind="safe"')
    own = getattr(getattr(provider, "probe", None), "__func__", None)
    if durability.doubt == "probe" and own in (None, ToolProvider.probe):
        raise _invalid(where, "is to be probed, and its provider has no probe", "write `async def probe`")
    contract = provider.resolve_contract(manifest.name)
    if contract is None:
        return None
    if problem := problem_of(contract.definition.parameters):
        raise _invalid(where, f"has arguments that cannot be checked: {problem}", "give a JSON schema of type object")
    if (contract.name, contract.tool_id, contract.durability) != (manifest.name, manifest.tool_id, durability):
        raise _invalid(where, "has a contract that says otherwise", "make it with manifest.contract(schema)")
    return contract


def _invalid(where: str, what: str, hint: str) -> Error:
    return Error(Code.TOOL_INVALID, f"{where} {what}", hint=hint)


class ProvidedTool:
    """One tool of a provider, as a toolbox holds it."""

    is_async = True

    def __init__(self, provider: ToolProvider, manifest: ToolManifest, contract: ToolContract) -> None:
        self.provider = provider
        self.manifest = manifest
        self.contract = contract
        self.name = manifest.name
        self.probe = partial(_probe, provider, manifest.tool_id) if manifest.durability.doubt == "probe" else None

    @property
    def prepares(self) -> bool:
        """Whether its provider wants to see a call before it is recorded."""
        return has_hook(self.provider)

    def prepare(self, ctx: ToolPrepareContext, call: PreparedToolCall) -> Answer:
        """Ask the provider's hook."""
        return self.provider.prepare_tool_call(ctx, call)

    def bind(self, args: Json) -> dict[str, object] | Failure:
        """Check a model's arguments against the schema; they are passed on as they are."""
        if problems := violations(self.contract.definition.parameters, args):
            return Failure(code="invalid_tool_args", message=problems, failure_class="invalid")
        return {"args": args}

    def invoke(self, ctx: ToolContext[object], arguments: Mapping[str, object]) -> object:
        """Run it."""
        return self.provider.execute_by_id(self.manifest.tool_id, cast("Json", arguments["args"]), ctx)


async def _probe(provider: ToolProvider, tool_id: str, ctx: ToolContext[object]) -> Verdict:
    return await provider.probe(tool_id, ctx)
