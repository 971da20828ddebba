"""The tools of an agent, and the synchronous preparation of a model's call."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from perdure.errors import Code, Error
from perdure.tools.catalog import Catalog, Member, Runnable, is_callable
from perdure.tools.decorator import AnyTool, Tool
from perdure.tools.json_schema import SchemaCheck
from perdure.tools.objects import BaseTool, SomeTool, as_tool
from perdure.tools.provider import Connects, ProvidedTool, ToolProvider, check_manifest, check_provider, has_hook
from perdure.tools.read_result import read_result
from perdure.tools.schema import WideArguments
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.messages import ToolCall
from perdure.vocab.outcomes import FailureDetail
from perdure.vocab.tools import Durability, ToolContract, ToolManifest

if TYPE_CHECKING:
    from perdure.tools.registry import ToolRegistry

_SHOWN_CHARS = 400

logger = logging.getLogger("perdure.tools")

ToolSource: TypeAlias = SomeTool | ToolProvider
"""Anything that an agent accepts in `tools=`."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that may be dispatched: the current function, with the durability captured by the turn."""

    tool: Runnable
    arguments: dict[str, object]
    contract: ToolContract
    readable: bool = True
    """True if the model can read the rest of a truncated result."""
    unchecked: SchemaCheck | WideArguments | None = None
    """The check of the arguments that must still be made off the event loop, before the tool runs."""

    @property
    def is_as_captured(self) -> bool:
        """True if the current tool has the contract that the turn captured."""
        return self.tool.contract == self.contract

    @property
    def has_predicate(self) -> bool:
        """True if the tool has a predicate that decides which calls need approval."""
        return getattr(self.tool, "needs_approval", None) is not None

    @property
    def may_need_leave(self) -> bool:
        """True if this call may need approval, by the captured contract or by the current tool."""
        return self.has_predicate or self.contract.predicate or self.always_asks

    @property
    def always_asks(self) -> bool:
        """True if this call needs approval regardless of its arguments.

        A deploy during a turn can only add to that. If the captured predicate is gone, every call needs approval.
        """
        gone = self.contract.predicate and not self.has_predicate
        return gone or self.contract.always_asks or self.tool.contract.always_asks

    @property
    def durability(self) -> Durability:
        """The durability that governs this call, regardless of later deploys."""
        return self.contract.durability

    async def checked(self) -> Prepared | FailureDetail:
        """Return the call with checked arguments, or its failure. The rest of the check runs off the event loop."""
        if self.unchecked is None:
            return self
        return self.with_checked(await self.unchecked.bound(self.arguments))

    def with_checked(self, bound: dict[str, object] | FailureDetail) -> Prepared | FailureDetail:
        """Return the call with the result of its check."""
        return bound if isinstance(bound, FailureDetail) else replace(self, arguments=bound, unchecked=None)


class Toolbox:
    """Tools and tool providers, in registration order."""

    def __init__(self, sources: Iterable[ToolSource] = ()) -> None:
        self._sources: tuple[AnyTool | ToolProvider, ...] = tuple(_as_source(source) for source in sources)
        seen: set[str] = set()
        for source in self._sources:
            for name in _names(source):
                if name in seen:
                    raise Error(
                        Code.TOOL_INVALID,
                        f"duplicate tool name {name}",
                        hint='rename one of them: @tool(name="...")',
                        tool=name,
                    )
                seen.add(name)

    @property
    def catalog(self) -> Catalog:
        """The current tools. Providers are queried on each access."""
        return Catalog(self._members()) if self._providers else self._fixed

    @cached_property
    def registry(self) -> ToolRegistry:
        """The tools of this program, without those of providers."""
        from perdure.tools.registry import ToolRegistry

        return ToolRegistry(source for source in self._sources if isinstance(source, Tool))

    @cached_property
    def _own(self) -> Mapping[str, AnyTool]:
        return {source.name: source for source in self._sources if isinstance(source, Tool)}

    @cached_property
    def _providers(self) -> tuple[ToolProvider, ...]:
        return tuple(source for source in self._sources if not isinstance(source, Tool))

    @property
    def connects(self) -> tuple[Connects, ...]:
        """The providers that need a connection before work is claimed."""
        return tuple(one for one in self._providers if isinstance(one, Connects))

    @cached_property
    def _reads_on(self) -> bool:
        """True if the application has its own tool named `read_result`."""
        return read_result.name in self._own

    @cached_property
    def _fixed(self) -> Catalog:
        return Catalog(self._members())

    def _members(self) -> Iterator[Member]:
        seen: set[str] = set()
        for source in self._sources:
            for member in _members_of(source):
                name = member.manifest.name
                if name in seen or (name in self._own and member.tool is not self._own[name]):
                    logger.error("duplicate tool skipped provider=%s tool=%s", type(source).__name__, name)
                    continue
                seen.add(name)
                yield member

    def __iter__(self) -> Iterator[Runnable]:
        return (member.tool for member in self.catalog.members.values() if member.tool)

    @property
    def has_hooks(self) -> bool:
        """True if a provider here prepares calls before they start."""
        return any(has_hook(provider) for provider in self._providers)

    def __len__(self) -> int:
        return len(self.catalog.members)

    def get(self, name: str) -> Runnable | None:
        """Return the callable tool with this name, or None."""
        return self._find(name)[0]

    def _find(self, name: str) -> tuple[Runnable | None, bool]:
        """Return the tool with this name, and whether a provider failed during the lookup."""
        if own := self._own.get(name):
            return own, False
        failed = False
        for provider in self._providers:
            try:
                manifest = provider.resolve_manifest(name)
                member = _member(provider, manifest) if manifest else None
            except Exception:
                logger.exception("tool lookup failed provider=%s tool=%s", type(provider).__name__, name)
                failed = True
            else:
                if member is not None:
                    return (member.tool if is_callable(member.manifest) else None), failed
        return None, failed

    def contracts(self) -> tuple[ToolContract, ...]:
        """Return the contracts that a turn captures.

        Raises:
            Error: `tool_invalid` if a tool's arguments have no JSON schema.
        """
        return self.catalog.contracts

    def prepare(
        self,
        call: ToolCall,
        captured: ToolContract | None,
        prepared_call: PreparedToolCall | None = None,
        *,
        visible: Sequence[str] | None = None,
    ) -> Prepared | FailureDetail:
        """Check a call before its dispatch. A `Failure` is the output of a call that cannot run.

        `prepared_call` is the call as prepared by a provider's hook prepared it: its arguments apply. `visible`
        restricts the tool names that failure texts may contain; None means all.
        """
        names = self.catalog.names if visible is None else visible
        if call.malformed is not None:
            return _malformed(call, names)
        if captured is None and call.name == read_result.name:
            captured, current = read_result.contract, read_result
        elif captured is None:
            catalog = self.catalog
            return _no_contract(call.name) if catalog.without_contract(call.name) else _unavailable(call.name, names)
        else:
            current, failed = self._find(call.name)
            if failed and (current is None or current.contract != captured):
                return _provider_failed(call.name)
        if current is None:
            return FailureDetail(
                code="tool_removed",
                message=f"{call.name}: the tool was removed during this turn; it was not run",
                failure_class="unavailable",
            )
        if current.contract.tool_id != captured.tool_id or (
            prepared_call and prepared_call.tool_id != captured.tool_id
        ):
            return _other_id(captured, current.contract)
        if current.contract.client_side != captured.client_side:
            return _moved(call.name)
        args = prepared_call.args if prepared_call else call.args
        bound = current.bind(args)
        if not isinstance(bound, FailureDetail):
            return Prepared(current, bound, captured, not self._reads_on, current.unchecked(args))
        if bound.code == "invalid_tool_args" and captured.arguments_digest != current.contract.arguments_digest:
            return FailureDetail(
                code="tool_contract_changed",
                message=f"The arguments of {call.name} changed during this turn; it was not run. " + bound.message,
                failure_class="invalid",
            )
        return bound


def _as_source(source: ToolSource) -> AnyTool | ToolProvider:
    if isinstance(source, Tool | BaseTool):
        return as_tool(source)
    _refuse_others(source)
    return source


def _names(source: AnyTool | ToolProvider) -> tuple[str, ...]:
    if isinstance(source, Tool):
        return (source.name,)
    check_provider(source)
    try:
        return tuple(manifest.name for manifest in source.tool_manifests())
    except Exception as problem:
        kind, told = type(source).__name__, f"{type(problem).__name__}: {problem}"
        raise Error(Code.TOOL_INVALID, f"{kind} cannot list its tools", because=told[:200]) from problem


def _refuse_others(given: object) -> None:
    """Reject anything that is not a tool, such as an undecorated function or a class."""
    if isinstance(given, type) or not isinstance(given, ToolProvider):
        shown = getattr(given, "__name__", type(given).__name__)
        hint = "pass an instance of it" if isinstance(given, type) else "decorate it with @tool"
        raise Error(Code.TOOL_INVALID, f"{shown} is not a tool", hint=hint)


def _members_of(source: AnyTool | ToolProvider) -> Iterator[Member]:
    if isinstance(source, Tool):
        yield Member(source.contract.manifest, source)
        return
    # User code, while a turn begins: a provider that fails loses only its own tools.
    try:
        manifests = tuple(source.tool_manifests())
    except Exception:
        logger.exception("listing tools failed provider=%s", type(source).__name__)
        return
    for manifest in manifests:
        try:
            yield _member(source, manifest)
        except Exception:
            logger.exception("tool skipped tool=%s", manifest.name)


def _member(provider: ToolProvider, manifest: ToolManifest) -> Member:
    contract = check_manifest(provider, manifest)
    return Member(manifest, ProvidedTool(provider, manifest, contract) if contract else None)


def _provider_failed(name: str) -> FailureDetail:
    return FailureDetail(
        code="tool_provider_failed",
        message=f"The tool {name} is currently not reachable; it was not run",
        failure_class="unavailable",
        retry_safe=True,
    )


def _unavailable(name: str, names: Sequence[str]) -> FailureDetail:
    return FailureDetail(
        code="tool_unavailable",
        message=f"Unknown tool {name!r}; nothing was run. The tools are: {', '.join(names) or 'none'}",
        failure_class="unavailable",
    )


def _no_contract(name: str) -> FailureDetail:
    return FailureDetail(
        code="tool_contract_unavailable",
        message=f"The arguments of the tool {name!r} are currently unknown; nothing was run",
        failure_class="unavailable",
    )


def _other_id(captured: ToolContract, current: ToolContract) -> FailureDetail:
    return FailureDetail(
        code="prepared_tool_id_mismatch",
        message=f"{captured.name} had the id {captured.tool_id} when this turn began and has "
        f"the id {current.tool_id} now; it was not run",
        failure_class="unavailable",
    )


def _moved(name: str) -> FailureDetail:
    """Return the failure of a call whose tool moved between client and server during the turn."""
    return FailureDetail(
        code="tool_contract_changed",
        message=f"{name} moved between client and server during this turn; it was not run",
        failure_class="unavailable",
    )


def _malformed(call: ToolCall, available: Sequence[str]) -> FailureDetail:
    raw = call.malformed or ""
    shown = raw if len(raw) <= _SHOWN_CHARS else f"{raw[:_SHOWN_CHARS]}…"
    if call.name:
        message = f"The arguments are not one JSON object; the tool was not run. Given: {shown}"
    else:
        message = f"The call names no tool; nothing was run. The tools are: {', '.join(available) or 'none'}"
    return FailureDetail(code="invalid_tool_args", message=message, failure_class="invalid")
