"""The tools of an agent. Membership alone decides availability."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from perdure.codec import Json
from perdure.tools.context import ToolContext
from perdure.tools.json_schema import SchemaCheck
from perdure.tools.schema import WideArguments
from perdure.tools.verdicts import Verdict
from perdure.vocab.outcomes import FailureDetail
from perdure.vocab.tools import MATERIALIZE, Composition, ProjectionPolicy, ToolContract, ToolManifest


class Runnable(Protocol):
    """An executable tool: a function, or a provider's tool."""

    @property
    def name(self) -> str:
        """Name by which the model calls the tool."""
        ...

    @property
    def contract(self) -> ToolContract:
        """The contract that a turn captures."""
        ...

    @property
    def is_async(self) -> bool:
        """True if the tool runs on the event loop, False if in a thread."""
        ...

    @property
    def probe(self) -> Callable[[ToolContext], Verdict | Awaitable[Verdict]] | None:
        """Function that checks a call in doubt in the external system."""
        ...

    def bind(self, args: Json) -> dict[str, object] | FailureDetail:
        """Check a model's arguments. If `unchecked` returns a check, they are valid only if it succeeds."""
        ...

    def unchecked(self, args: Json) -> SchemaCheck | WideArguments | None:
        """Return the check of the arguments that is left to a child process or a thread, or None."""
        ...

    def invoke(self, ctx: ToolContext[object], arguments: Mapping[str, object]) -> object:
        """Run the tool with checked arguments."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """A tool in a catalog. Without a contract its arguments are unknown and it cannot be called."""

    manifest: ToolManifest
    tool: Runnable | None


class Catalog:
    """Tools by name, in registration order."""

    def __init__(self, members: Iterable[Member]) -> None:
        self.members: Mapping[str, Member] = {member.manifest.name: member for member in members}
        self.contracts: tuple[ToolContract, ...] = tuple(
            member.tool.contract for member in self.members.values() if member.tool and is_callable(member.manifest)
        )

    def get(self, name: str) -> Runnable | None:
        """Return the executable tool of that name, or None."""
        member = self.members.get(name)
        return member.tool if member and is_callable(member.manifest) else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names a model may call."""
        return tuple(contract.name for contract in self.contracts)

    def without_contract(self, name: str) -> bool:
        """Return True if the tool exists but its arguments are unknown."""
        member = self.members.get(name)
        return member is not None and member.tool is None and is_callable(member.manifest)


def is_callable(manifest: ToolManifest) -> bool:
    """Return True if the tool can be called."""
    return manifest.activation == "callable"


@dataclass(frozen=True, slots=True)
class ActiveCatalog:
    """The tools of one turn: those of its captured composition, regardless of later deploys."""

    composition: Composition

    def callable_tool_manifest(self, name: str) -> ToolManifest | None:
        """Return the manifest of a tool this turn may call, or None."""
        contract = self.composition.tool(name)
        return contract.manifest if contract else None

    def callable_tool_manifest_by_id(self, tool_id: str) -> ToolManifest | None:
        """Return the manifest of the tool with this id, or None."""
        return next((one.manifest for one in self.composition.tools if one.tool_id == tool_id), None)

    def projection_policy(self, name: str) -> ProjectionPolicy:
        """Return the projection policy for references in a tool's arguments. Default: materialize."""
        contract = self.composition.tool(name)
        return contract.projection if contract else MATERIALIZE

    def is_serial(self, name: str) -> bool:
        """Return True if calls of a tool run one at a time, after the parallel ones. Unknown tools are parallel."""
        contract = self.composition.tool(name)
        return contract is not None and contract.durability.serial
