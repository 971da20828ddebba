"""The dispatcher behind `ctx.tools`: runs other tools of the same agent from inside a tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perdure.codec import Json
from perdure.services.tasks import CreateSessionTask
from perdure.vocab.approvals import Decision
from perdure.vocab.outcomes import Failed, FailureDetail, InDoubt, NotRun, Success, ToolOutput
from perdure.vocab.tools import ToolManifest

MAX_BATCH_CALLS = 25


@dataclass(frozen=True, slots=True)
class ChildCall:
    """A call made by a tool. `call_id` names it among its siblings; the default is its position."""

    name: str
    args: Json = field(default_factory=dict[str, Json])
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class ChildResult:
    """The result of one child call."""

    call_id: str
    tool_name: str
    output: ToolOutput

    @property
    def value(self) -> Json:
        """The value of a success, or None."""
        return self.output.value if isinstance(self.output, Success) else None

    @property
    def error_code(self) -> str | None:
        """The reason for a missing value, or None."""
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
    """Operations of a tool on the other tools of its turn."""

    def callable_tool_manifest(self, name: str) -> ToolManifest | None:
        """Return the manifest of a tool this turn may call, or None."""
        ...

    def callable_tool_manifest_by_id(self, tool_id: str) -> ToolManifest | None:
        """Return the manifest of the tool with this id, or None."""
        ...

    async def batch(self, calls: Sequence[ChildCall]) -> tuple[ChildResult, ...]:
        """Run up to 25 other tools and return results in the order of the calls. A call that cannot run gets a result
        too.

        Parallel calls run first, then serial ones, one at a time. `pure` tools run anywhere. Other tools need a record:
        inside a `resumable` body each child is a recorded step, including `once` ones. Elsewhere a child that is not
        `pure` results in `nested_effect_not_recorded`. So does a `resumable` child everywhere; use `call`. Outside a
        resumable body, each child has one attempt.

        Raises:
            ToolError: `nested_too_deep` in a body that another body has called.
        """
        ...

    async def ask(self, step: str, what: str, args: Json) -> Decision | None:
        """Request a decision through the approvals, as a named part of a resumable body.

        None means that the request timed out or was closed.
        """
        ...

    async def call(self, call: ChildCall, *, step: str) -> ChildResult:
        """Run one other tool as a named step of a resumable body, or replay it from the log.

        The tool's own class, approval and doubt policy apply. A `resumable` child has a nested body, which is parked
        and re-entered together with this one.

        Raises:
            Error: `durable_effects_unavailable` where the body is not resumable.
            ToolError: `nested_too_deep` in a body that another body has called.
        """
        ...

    async def refusal(self, call: ChildCall) -> FailureDetail | None:
        """Return why another tool would not run with these arguments, or None. Approval is not requested."""
        ...

    async def start_run(
        self, call: ChildCall, *, step: str, task: Callable[[dict[str, Json]], CreateSessionTask]
    ) -> ChildResult:
        """Start one other tool in the background as a named step of a resumable body.

        The checks and the approval of a direct call come first. `task` returns the task of the run for its arguments,
        which an approver may have edited. A started run returns `task_id` and `args`.

        Raises:
            Error: `durable_effects_unavailable` where the body is not resumable.
        """
        ...
