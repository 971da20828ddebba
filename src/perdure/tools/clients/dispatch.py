"""`ctx.dispatch`: running other tools of the same agent from inside a tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perdure.codec import Json
from perdure.vocab.approvals import Decision
from perdure.vocab.outcomes import Failed, InDoubt, NotRun, Success, ToolOutput
from perdure.vocab.tools import ToolManifest

MAX_BATCH_CALLS = 25


@dataclass(frozen=True, slots=True)
class ChildCall:
    """A call that a tool makes. `call_id` names it among its siblings; their place does if it is left out."""

    name: str
    args: Json = field(default_factory=dict[str, Json])
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class ChildResult:
    """What became of one child call."""

    call_id: str
    tool_name: str
    output: ToolOutput

    @property
    def value(self) -> Json:
        """The value of a success, else None."""
        return self.output.value if isinstance(self.output, Success) else None

    @property
    def error_code(self) -> str | None:
        """Why there is no value, else None."""
        match self.output:
            case Success():
                return None
            case Failed(failure=failure):
                return failure.code
            case InDoubt():
                return "outcome_unknown"
            case NotRun():
                return "cancelled"


class Dispatch(Protocol):
    """What a tool can do with the other tools of its turn."""

    def callable_tool_manifest(self, name: str) -> ToolManifest | None:
        """The manifest of a tool this turn may call; None if it has none of that name."""
        ...

    def callable_tool_manifest_by_id(self, tool_id: str) -> ToolManifest | None:
        """The same, by the tool's id."""
        ...

    async def batch(self, calls: Sequence[ChildCall]) -> tuple[ChildResult, ...]:
        """Run up to 25 other tools and answer in the order of the calls. A call that cannot run is answered as well.

        Parallel calls go first, serial ones after them and one at a time. `pure` tools run anywhere. What must not run
        twice needs a record of its own: inside a `resumable` body each child is a recorded step, `once` ones included;
        elsewhere a child that is not `pure` is answered with `nested_effect_not_recorded`, and so is a `resumable` one
        everywhere: see `call`. Outside a resumable body, one attempt each.

        Raises:
            ToolError: `nested_too_deep` in a body that another body has called.
        """
        ...

    async def ask(self, step: str, what: str, args: Json) -> Decision | None:
        """Ask people something through the approvals, as the part of that name of a resumable body. None: nobody
        answered in time, or nobody is asked any more."""
        ...

    async def call(self, call: ChildCall, *, step: str) -> ChildResult:
        """Run one other tool as the step of that name of a resumable body, with its class, approval and doubt policy;
        or answer it from the log. A `resumable` one has a body of its own, which is parked and entered again with this.

        Raises:
            Error: `durable_effects_unavailable` where the body is not resumable.
            ToolError: `nested_too_deep` in a body that another body has called.
        """
        ...
