"""The tools an agent has at a moment. Being in it is the only fact about availability."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from perdure.codec import Json
from perdure.tools.context import ToolContext
from perdure.tools.verdicts import Verdict
from perdure.vocab.outcomes import Failure
from perdure.vocab.tools import MATERIALIZE, Composition, ProjectionPolicy, ToolContract, ToolManifest


class Runnable(Protocol):
    """A tool that can run: a function, or what a provider offers."""

    @property
    def name(self) -> str:
        """The name the model calls it by."""
        ...

    @property
    def contract(self) -> ToolContract:
        """What a turn captures of it."""
        ...

    @property
    def is_async(self) -> bool:
        """Whether it runs on the event loop, rather than in a thread."""
        ...

    @property
    def probe(self) -> Callable[[ToolContext], Verdict | Awaitable[Verdict]] | None:
        """Asks the outside system about a call in doubt."""
        ...

    def bind(self, args: Json) -> dict[str, object] | Failure:
        """Check a model's arguments."""
        ...

    def invoke(self, ctx: ToolContext[object], arguments: Mapping[str, object]) -> object:
        """Run it, with checked arguments."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """A tool in a catalog. Without a contract nobody can call it: its arguments are not known."""

    manifest: ToolManifest
    tool: Runnable | None


class Catalog:
    """Tools by name, in the order they were given."""

    def __init__(self, members: Iterable[Member]) -> None:
        self.members: Mapping[str, Member] = {member.manifest.name: member for member in members}
        self.contracts: tuple[ToolContract, ...] = tuple(
            member.tool.contract for member in self.members.values() if member.tool and is_callable(member.manifest)
        )

    def get(self, name: str) -> Runnable | None:
        """The tool of that name, if it can run."""
        member = self.members.get(name)
        return member.tool if member and is_callable(member.manifest) else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names a model may call."""
        return tuple(contract.name for contract in self.contracts)

    def without_contract(self, name: str) -> bool:
        """Whether there is such a tool, and nobody knows its arguments."""
        member = self.members.get(name)
        return member is not None and member.tool is None and is_callable(member.manifest)


def is_callable(manifest: ToolManifest) -> bool:
    """Whether the tool is for callers at all."""
    return manifest.activation == "callable"


@dataclass(frozen=True, slots=True)
class ActiveCatalog:
    """The tools of one turn: those of the composition it captured, whatever has been deployed since."""

    composition: Composition

    def callable_tool_manifest(self, name: str) -> ToolManifest | None:
        """The manifest of a tool this turn may call."""
        contract = self.composition.tool(name)
        return contract.manifest if contract else None

    def callable_tool_manifest_by_id(self, tool_id: str) -> ToolManifest | None:
        """The same, by the tool's id."""
        return next((one.manifest for one in self.composition.tools if one.tool_id == tool_id), None)

    def projection_policy(self, name: str) -> ProjectionPolicy:
        """What becomes of references in a tool's arguments; those of a tool nobody knows are materialized."""
        contract = self.composition.tool(name)
        return contract.projection if contract else MATERIALIZE

    def is_serial(self, name: str) -> bool:
        """Whether calls of a tool run one at a time, after the parallel ones. Those of an unknown tool do not."""
        contract = self.composition.tool(name)
        return contract is not None and contract.durability.serial
