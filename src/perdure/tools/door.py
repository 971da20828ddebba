"""The door to tool bodies: the only module that admits a call, and the only one that enters a body.

Law: before a body runs, one function has seen that the call is visible, that its arguments match the schema, and that
its approval policy was applied. Every caller of a tool passes it: the model, tools, programs, background runs, and
direct calls of a registry. The intent of an admitted call is recorded before `enter`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, cast, runtime_checkable

from perdure.codec import Json
from perdure.services.background import BackgroundEventSink, BackgroundOutcome
from perdure.tools.context import ToolContext
from perdure.tools.decorator import Tool
from perdure.tools.objects import SomeTool, context_for
from perdure.tools.read_result import read_result
from perdure.tools.toolbox import Prepared
from perdure.vocab.outcomes import FailureDetail
from perdure.vocab.registrations import EventType
from perdure.vocab.tools import Composition, ToolContract
from perdure.vocab.wire import Value

_KEY: Final = object()
"""Held by this module only: no other code can make an admitted call."""

Consent: TypeAlias = Literal["not_needed", "predicate_declined", "given", "begun_before"]
"""How the approval policy of a call was met.

The tool has no policy, its predicate required no approval, a person approved, or an earlier attempt began under the
policy of that time.
"""


@runtime_checkable
class BackgroundExecutableTool(Protocol):
    """A tool that can run in the background. Its hints must include `supports_background=True`."""

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        """Run the tool, reporting progress to `sink`.

        Raises:
            ToolError: the run failed; the session reads the message. Any other error is hidden.
        """
        ...


def executor_of(tool: SomeTool | None) -> BackgroundExecutableTool | None:
    """Return the background executor of a tool, or None."""
    found = tool.written_as if isinstance(tool, Tool) else tool
    return found if isinstance(found, BackgroundExecutableTool) else None


class AdmittedCall:
    """A checked call whose body may be entered once. Only the door makes one."""

    __slots__ = ("_entered", "prepared")

    def __init__(self, key: object, prepared: Prepared) -> None:
        _check(key)
        self.prepared = prepared
        self._entered = False

    def enter(self, ctx: ToolContext[object]) -> object:
        """Run the tool's body. A sync body runs in the calling thread."""
        self._once()
        return self.prepared.tool.invoke(ctx, self.prepared.arguments)

    async def enter_in_background(self, ctx: ToolContext[object], sink: BackgroundEventSink) -> BackgroundOutcome:
        """Run the tool's background body."""
        self._once()
        executor = executor_of(cast("SomeTool", self.prepared.tool))
        assert executor is not None  # checked before the run was admitted
        arguments = cast("dict[str, Json]", self.prepared.arguments["arguments"])
        return await executor.execute_background(arguments, context_for(executor, ctx), sink)

    def _once(self) -> None:
        if self._entered:
            raise RuntimeError(f"the call of {self.prepared.contract.name} was admitted once and is entered twice")
        self._entered = True


class RunAdmission(Value, frozen=True):
    """The admission of a background run, stored with the run: the agent and the contract of its turn, and the consent.

    `event_types` are the events that the tool declares.
    Any worker starts the run by it, whatever was deployed meanwhile.
    """

    agent: str
    contract: ToolContract
    consent: Consent
    event_types: tuple[EventType, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmittedRun:
    """A background run that may be registered. Only the door makes one."""

    key: object
    tool: str
    arguments: dict[str, Json]
    admission: RunAdmission

    def __post_init__(self) -> None:
        _check(self.key)


def admit(prepared: Prepared, composition: Composition, consent: Consent) -> AdmittedCall | FailureDetail:
    """Admit one attempt of a call that a turn makes, or return why it may not run."""
    return _refusal(prepared, composition, consent) or AdmittedCall(_KEY, prepared)


def admit_direct(prepared: Prepared) -> AdmittedCall | FailureDetail:
    """Admit a direct call of the application, which belongs to no turn and can request no approval."""
    return admit(prepared, Composition(agent="", model="", tools=(prepared.contract,)), "not_needed")


def admit_run(prepared: Prepared, composition: Composition, consent: Consent) -> AdmittedRun | FailureDetail:
    """Admit a background run that a turn starts. Before its body runs, `admit_begun_run` checks it again."""
    if refusal := _refusal(prepared, composition, consent):
        return refusal
    arguments = cast("dict[str, Json]", prepared.arguments["arguments"])
    events: tuple[EventType, ...] = getattr(executor_of(cast("SomeTool", prepared.tool)), "process_events", ())
    admission = RunAdmission(
        agent=composition.agent, contract=prepared.contract, consent=consent, event_types=tuple(events)
    )
    return AdmittedRun(_KEY, prepared.contract.name, arguments, admission)


def admit_begun_run(prepared: Prepared, admission: RunAdmission) -> AdmittedCall | FailureDetail:
    """Admit the body of a registered run, or return why the current code may not run it."""
    turn = Composition(agent=admission.agent, model="", tools=(admission.contract,))
    return _refusal(prepared, turn, admission.consent) or AdmittedCall(_KEY, prepared)


def _refusal(prepared: Prepared, composition: Composition, consent: Consent) -> FailureDetail | None:
    """Return why a call may not run, or None."""
    name = prepared.contract.name
    if not _is_visible(prepared.contract, composition):  # threat: S1, T-TOOL-02
        return _invalid("tool_unavailable", f"{name} is not a tool of this turn; it was not run")
    if prepared.contract.client_side:
        message = f"{name} is run by the client, and nothing here can wait for that"
        return _invalid("pending_tool_not_supported_here", message)
    if prepared.unchecked is not None:  # threat: S1
        return _invalid("invalid_tool_args", f"the arguments of {name} were not checked; it was not run")
    declined = consent == "predicate_declined" and not prepared.always_asks
    if prepared.may_need_leave and consent not in ("given", "begun_before") and not declined:  # threat: S1, T-TOOL-01
        message = f"{name} needs a person's approval, which was not requested; it was not run"
        return _invalid("approval_required", message)
    return None


def _is_visible(contract: ToolContract, composition: Composition) -> bool:
    """Return True if a call with this contract belongs to the turn. `read_result` belongs to every turn."""
    return (composition.tool(contract.name) or read_result.contract) == contract


def _invalid(code: str, message: str) -> FailureDetail:
    return FailureDetail(code=code, message=message, failure_class="invalid")


def _check(key: object) -> None:
    if key is not _KEY:  # threat: S1, T-TOOL-01
        raise TypeError("only the door admits a call: perdure.tools.door")
