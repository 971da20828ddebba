"""Tool providers: sources of tools that are not functions of this program, such as servers or plugins."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Protocol, Self, TypeVar, cast, runtime_checkable

import msgspec

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.tools.clients.turn import TurnContext
from perdure.tools.context import Deps, ToolContext
from perdure.tools.errors import ToolError
from perdure.tools.json_schema import SchemaCheck, checked_here, problem_of
from perdure.tools.prepare import Answer, ToolPrepareContext
from perdure.tools.verdicts import CannotTell, Verdict
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.outcomes import FailureDetail
from perdure.vocab.tools import ToolContract, ToolManifest

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, repr=False)
class ProviderContext(ToolContext[Deps]):
    """The context of a call of a provider's tool: a `ToolContext` with the prepared call."""

    @property
    def turn_context(self) -> TurnContext:
        """The turn of this call, and the host's plugin inputs for it."""
        return self._call.turn_context

    @property
    def prepared_payload(self) -> Json:
        """The payload that `prepare_tool_call` recorded with the call, or None."""
        return self._call.prepared_payload

    def decode_prepared_payload(self, type: type[T]) -> T:
        """Return the payload of preparation, as `type`.

        Raises:
            Error: `invalid_json` if it has another type.
        """
        return payload_as(self.prepared_payload, type)

    def prepared_call(self, call: PreparedToolCall) -> Self:
        """Return a copy for this prepared call, with its id and payload."""
        return replace(self, call_id=call.call_id, _call=replace(self._call, prepared_payload=call.prepared_payload))


def provider_context(ctx: ToolContext[object]) -> ProviderContext[object]:
    """Return this context as a provider sees it."""
    return ProviderContext(**{one.name: getattr(ctx, one.name) for one in fields(ctx)})


def payload_as(payload: Json, type: type[T]) -> T:
    """Return a prepared payload as `type`.

    Raises:
        Error: `invalid_json` if it has another type.
    """
    try:
        return msgspec.convert(payload, type)
    except msgspec.ValidationError as problem:
        raise Error(Code.INVALID_JSON, "the prepared payload has another type", because=str(problem)) from None


@runtime_checkable
class ToolProvider(Protocol):
    """A source of tools for an agent: `Agent(tools=[refund, MyProvider()])`.

    Subclasses implement `tool_manifests`, `resolve_contract` and `execute`; the rest follows. The manifest of a tool
    contains its effect class and policies; the default is `once`. Manifests are read when a turn begins.
    """

    @abstractmethod
    def tool_manifests(self) -> Sequence[ToolManifest]:
        """Return all tools, in the order shown to a model. Called often, so it must be fast."""
        ...

    @abstractmethod
    def resolve_contract(self, name: str) -> ToolContract | None:
        """Return the contract of a tool, `manifest.contract(schema)`. With None the tool cannot be called."""
        ...

    @abstractmethod
    async def execute(self, name: str, args: Json, ctx: ProviderContext[object]) -> object:
        """Run one attempt: return a JSON value, or raise `ToolError` or `OutcomeUnknown` like any tool."""
        ...

    def resolve_manifest(self, name: str) -> ToolManifest | None:
        """Return the manifest with this name, or None."""
        return next((manifest for manifest in self.tool_manifests() if manifest.name == name), None)

    def resolve_manifest_by_id(self, tool_id: str) -> ToolManifest | None:
        """Return the manifest with this id, or None."""
        return next((manifest for manifest in self.tool_manifests() if manifest.tool_id == tool_id), None)

    def resolve_contract_by_id(self, tool_id: str) -> ToolContract | None:
        """Return the contract of the tool with this id, or None."""
        manifest = self.resolve_manifest_by_id(tool_id)
        return self.resolve_contract(manifest.name) if manifest else None

    def prepare_tool_call(self, ctx: ToolPrepareContext, call: PreparedToolCall) -> Answer:
        """Inspect a call before its first record; may be `async`.

        Return the call, optionally with a `prepared_payload`, or `Success` or `Failed` as its output without a run. An
        exception is a known failure.
        """
        return call

    async def execute_by_id(self, tool_id: str, args: Json, ctx: ProviderContext[object]) -> object:
        """Run one attempt of the tool with this id."""
        manifest = self.resolve_manifest_by_id(tool_id)
        if manifest is None:
            raise ToolError(f"Unknown tool id: {tool_id}")
        return await self.execute(manifest.name, args, ctx)

    async def probe(self, tool_id: str, ctx: ProviderContext[object]) -> Verdict:
        """Check whether a call in doubt took effect, for tools whose manifest has the doubt policy "probe"."""
        return CannotTell("its provider has no probe")


@runtime_checkable
class Connects(Protocol):
    """A provider that needs a connection before it has tools. A runtime with a worker manages it."""

    async def connect(self) -> None:
        """Connect, or start trying. Several users may call it."""
        ...

    async def disconnect(self) -> None:
        """Release one user's connection."""
        ...


def has_hook(provider: ToolProvider) -> bool:
    """Return True if the provider prepares calls."""
    own = getattr(provider.prepare_tool_call, "__func__", provider.prepare_tool_call)
    return own is not ToolProvider.prepare_tool_call


def check_provider(provider: ToolProvider) -> None:
    """Reject a provider that could only fail later.

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
                hint="use `async def`, and asyncio.to_thread for blocking calls",
            )
    for manifest in provider.tool_manifests():
        check_manifest(provider, manifest)


def check_manifest(provider: ToolProvider, manifest: ToolManifest) -> ToolContract | None:
    """Return the contract of a manifest, if both are valid and consistent.

    Raises:
        Error: `tool_invalid` naming the inconsistency.
    """
    where = f"the tool {manifest.name} of {type(provider).__name__}"
    if not manifest.tool_id.strip() or (manifest.id and not manifest.id.strip()):
        raise _invalid(where, "has a blank id", "omit the id; the default is tool:{name}")
    durability = manifest.durability
    if durability.effect == "once" and durability.retry.kind == "idempotent":
        raise _invalid(where, "has effect once and the retry policy idempotent", 'use kind="safe"')
    own = getattr(getattr(provider, "probe", None), "__func__", None)
    if durability.doubt == "probe" and own in (None, ToolProvider.probe):
        raise _invalid(where, "has doubt='probe', but its provider has no probe", "write `async def probe`")
    contract = provider.resolve_contract(manifest.name)
    if contract is None:
        return None
    if problem := problem_of(contract.definition.parameters):
        raise _invalid(where, f"has an invalid arguments schema: {problem}", "use a JSON schema of type object")
    if (contract.name, contract.tool_id, contract.durability) != (manifest.name, manifest.tool_id, durability):
        raise _invalid(
            where, "has a contract that differs from its manifest", "create it with manifest.contract(schema)"
        )
    return contract


def _invalid(where: str, what: str, hint: str) -> Error:
    return Error(Code.TOOL_INVALID, f"{where} {what}", hint=hint)


class ProvidedTool:
    """One tool of a provider, as a member of a toolbox."""

    is_async = True

    def __init__(self, provider: ToolProvider, manifest: ToolManifest, contract: ToolContract) -> None:
        self.provider = provider
        self.manifest = manifest
        self.contract = contract
        self.name = manifest.name
        self.probe = partial(_probe, provider, manifest.tool_id) if manifest.durability.doubt == "probe" else None

    @property
    def prepares(self) -> bool:
        """True if the provider prepares calls before they are recorded."""
        return has_hook(self.provider)

    def prepare(self, ctx: ToolPrepareContext, call: PreparedToolCall) -> Answer:
        """Call the provider's hook."""
        return self.provider.prepare_tool_call(ctx, call)

    def bind(self, args: Json) -> dict[str, object] | FailureDetail:
        """Check a model's arguments against the schema, and pass them on unchanged.

        If `unchecked` returns a check, they are valid only if it succeeds.
        """
        found = checked_here(self.contract.definition.parameters, args)
        return found if isinstance(found, FailureDetail) else {"args": args}

    def unchecked(self, args: Json) -> SchemaCheck | None:
        """Return the check that `bind` leaves to a child process, or None."""
        found = checked_here(self.contract.definition.parameters, args)
        return found if isinstance(found, SchemaCheck) else None

    def invoke(self, ctx: ToolContext[object], arguments: Mapping[str, object]) -> object:
        """Run the tool."""
        return self.provider.execute_by_id(
            self.manifest.tool_id, cast("Json", arguments["args"]), provider_context(ctx)
        )


async def _probe(provider: ToolProvider, tool_id: str, ctx: ToolContext[object]) -> Verdict:
    return await provider.probe(tool_id, provider_context(ctx))
