"""The tools of an agent, and the synchronous part of the way from a model's call to its dispatch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from perdure.errors import Code, Error
from perdure.tools.catalog import Catalog, Member, Runnable, is_callable
from perdure.tools.decorator import AnyTool, Tool
from perdure.tools.objects import SomeTool, ToolObject, as_tool
from perdure.tools.provider import Connects, ProvidedTool, ToolProvider, check_manifest, check_provider, has_hook
from perdure.tools.read_result import read_result
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.messages import ToolCall
from perdure.vocab.outcomes import Failure
from perdure.vocab.tools import Durability, ToolContract, ToolManifest

if TYPE_CHECKING:
    from perdure.tools.registry import ToolRegistry

_SHOWN_CHARS = 400

logger = logging.getLogger("perdure.tools")

ToolSource: TypeAlias = SomeTool | ToolProvider
"""What an agent's `tools=` takes."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that may be dispatched: today's function, with the durability its turn began with."""

    tool: Runnable
    arguments: dict[str, object]
    contract: ToolContract
    readable: bool = True
    """Whether the model can go on reading a result that is too long to be shown whole."""

    @property
    def has_predicate(self) -> bool:
        """Whether the tool's own code says which calls need a person's leave."""
        return getattr(self.tool, "approve", None) is not None

    @property
    def may_need_leave(self) -> bool:
        """Whether a person may have to allow this call, as its turn knows the tool or as it is now."""
        return self.has_predicate or self.contract.predicate or self.always_asks

    @property
    def always_asks(self) -> bool:
        """Whether a person has to allow this call whatever its arguments are. A deploy in the middle of a turn can
        only add to that: a predicate that the turn began with, and that is gone, leaves nobody who could say no.
        """
        gone = self.contract.predicate and not self.has_predicate
        return gone or self.contract.always_asks or self.tool.contract.always_asks

    @property
    def durability(self) -> Durability:
        """The promises that govern this call, whatever has been deployed since."""
        return self.contract.durability


class Toolbox:
    """Tools and providers of tools, in the order they were given."""

    def __init__(self, sources: Iterable[ToolSource] = ()) -> None:
        self._sources: tuple[AnyTool | ToolProvider, ...] = tuple(_as_source(source) for source in sources)
        seen: set[str] = set()
        for source in self._sources:
            for name in _names(source):
                if name in seen:
                    raise Error(
                        Code.TOOL_INVALID,
                        f"two tools are called {name}",
                        hint='rename one of them: @tool(name="...")',
                        tool=name,
                    )
                seen.add(name)

    @property
    def catalog(self) -> Catalog:
        """The tools as they are now. Providers are asked again every time."""
        return Catalog(self._members()) if self._providers else self._fixed

    @cached_property
    def registry(self) -> ToolRegistry:
        """The tools of this program, without those of providers, for those who look at their siblings."""
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
        """The providers that are to be connected before work is taken."""
        return tuple(one for one in self._providers if isinstance(one, Connects))

    @cached_property
    def _reads_on(self) -> bool:
        """Whether the application has its own tool of the name by which a model reads on in long results."""
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
                    logger.error("%s offers a second tool %s", type(source).__name__, name)
                    continue
                seen.add(name)
                yield member

    def __iter__(self) -> Iterator[Runnable]:
        return (member.tool for member in self.catalog.members.values() if member.tool)

    @property
    def has_hooks(self) -> bool:
        """Whether a provider here prepares calls, and so must be asked before they begin."""
        return any(has_hook(provider) for provider in self._providers)

    def __len__(self) -> int:
        return len(self.catalog.members)

    def get(self, name: str) -> Runnable | None:
        """The tool of that name, if it can be called."""
        return self._find(name)[0]

    def _find(self, name: str) -> tuple[Runnable | None, bool]:
        """The tool of that name, and whether a provider that could have it failed to say so."""
        if own := self._own.get(name):
            return own, False
        failed = False
        for provider in self._providers:
            try:
                manifest = provider.resolve_manifest(name)
                member = _member(provider, manifest) if manifest else None
            except Exception:
                logger.exception("%s cannot say whether it has the tool %s", type(provider).__name__, name)
                failed = True
            else:
                if member is not None:
                    return (member.tool if is_callable(member.manifest) else None), failed
        return None, failed

    def contracts(self) -> tuple[ToolContract, ...]:
        """What a turn captures.

        Raises:
            Error: `tool_invalid` if a tool's arguments have no JSON schema.
        """
        return self.catalog.contracts

    def prepare(
        self,
        call: ToolCall,
        captured: ToolContract | None,
        sealed: PreparedToolCall | None = None,
        *,
        visible: Sequence[str] | None = None,
    ) -> Prepared | Failure:
        """Everything that can be known about a call before it is dispatched. A `Failure` answers it instead.

        `sealed` is the call as a provider's hook prepared it, now or before a crash: its arguments count. `visible` are
        the tools that whoever called has been shown, if not all: no answer names another.
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
            return Failure(
                code="tool_removed",
                message=f"{call.name}: the tool was removed while this call was owed; it was not run",
                failure_class="unavailable",
            )
        if current.contract.tool_id != captured.tool_id or (sealed and sealed.tool_id != captured.tool_id):
            return _other_id(captured, current.contract)
        if current.contract.client_side != captured.client_side:
            return _moved(call.name)
        bound = current.bind(sealed.args if sealed else call.args)
        if not isinstance(bound, Failure):
            return Prepared(tool=current, arguments=bound, contract=captured, readable=not self._reads_on)
        if bound.code == "invalid_tool_args" and captured.arguments_digest != current.contract.arguments_digest:
            return Failure(
                code="tool_contract_changed",
                message=f"The arguments of {call.name} changed while this call was owed; it was not run. "
                + bound.message,
                failure_class="invalid",
            )
        return bound


def _as_source(source: ToolSource) -> AnyTool | ToolProvider:
    if isinstance(source, Tool | ToolObject):
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
    """Whatever it is said to be: an undecorated function, or a class instead of its instance."""
    if isinstance(given, type) or not isinstance(given, ToolProvider):
        shown = getattr(given, "__name__", type(given).__name__)
        hint = "pass an instance of it" if isinstance(given, type) else "decorate it with @tool"
        raise Error(Code.TOOL_INVALID, f"{shown} is not a tool", hint=hint)


def _members_of(source: AnyTool | ToolProvider) -> Iterator[Member]:
    if isinstance(source, Tool):
        yield Member(source.contract.manifest, source)
        return
    # Other people's code, while a turn begins: a provider that fails costs its own tools and nothing else.
    try:
        manifests = tuple(source.tool_manifests())
    except Exception:
        logger.exception("%s cannot list its tools; they are missing for now", type(source).__name__)
        return
    for manifest in manifests:
        try:
            yield _member(source, manifest)
        except Exception:
            logger.exception("the tool %s is left out for now", manifest.name)


def _member(provider: ToolProvider, manifest: ToolManifest) -> Member:
    contract = check_manifest(provider, manifest)
    return Member(manifest, ProvidedTool(provider, manifest, contract) if contract else None)


def _provider_failed(name: str) -> Failure:
    return Failure(
        code="tool_provider_failed",
        message=f"The tool {name} cannot be reached at the moment; it was not run",
        failure_class="unavailable",
        retry_safe=True,
    )


def _unavailable(name: str, names: Sequence[str]) -> Failure:
    return Failure(
        code="tool_unavailable",
        message=f"There is no tool {name!r}; nothing was run. The tools are: {', '.join(names) or 'none'}",
        failure_class="unavailable",
    )


def _no_contract(name: str) -> Failure:
    return Failure(
        code="tool_contract_unavailable",
        message=f"The arguments of the tool {name!r} are not known at the moment; nothing was run",
        failure_class="unavailable",
    )


def _other_id(captured: ToolContract, current: ToolContract) -> Failure:
    return Failure(
        code="prepared_tool_id_mismatch",
        message=f"{captured.name} was the tool {captured.tool_id} when this turn began and is {current.tool_id} now; "
        "it was not run",
        failure_class="unavailable",
    )


def _moved(name: str) -> Failure:
    """What the client was to run must not select code here, nor the other way round."""
    return Failure(
        code="tool_contract_changed",
        message=f"Who runs {name} changed while this call was owed; it was not run",
        failure_class="unavailable",
    )


def _malformed(call: ToolCall, available: Sequence[str]) -> Failure:
    raw = call.malformed or ""
    shown = raw if len(raw) <= _SHOWN_CHARS else f"{raw[:_SHOWN_CHARS]}…"
    if call.name:
        message = f"The arguments are not one JSON object; the tool was not run. Given: {shown}"
    else:
        message = f"The call names no tool; nothing was run. The tools are: {', '.join(available) or 'none'}"
    return Failure(code="invalid_tool_args", message=message, failure_class="invalid")
