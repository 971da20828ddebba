"""An agent: a name, a model, instructions and tools. Configuration only; the durable part is a session."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from perdure.codec import Json, check_text, encode, to_json
from perdure.commit.plan import Blob, blob_of
from perdure.errors import Code, Error
from perdure.ids import SessionId
from perdure.models.protocol import Model, ModelError, ModelEvent, ModelRequest
from perdure.models.registry import resolve
from perdure.runtime.instructions import Instructions
from perdure.runtime.usage_limits import UsageLimits, nano_of
from perdure.runtime.work import check_place
from perdure.services.files.shapes import InitialFile
from perdure.services.files.tree import Tree
from perdure.store.shapes import Placement
from perdure.tools.context import NOT_GIVEN
from perdure.tools.durations import to_ms
from perdure.tools.outputs import Output, OutputProblem, OutputType, output_of, plain, schema_problem_of
from perdure.tools.toolbox import Toolbox, ToolSource
from perdure.vocab.outcomes import LlmError
from perdure.vocab.records import Limits
from perdure.vocab.tools import Composition, ToolContract

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def check_agent_name(name: object) -> str:
    """Return a valid agent name as plain text.

    Raises:
        Error: `agent_invalid`.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Error(
            Code.AGENT_INVALID,
            f"invalid agent name {name!r:.120}",
            because="expected 1 to 100 letters, digits, dots, dashes or underscores",
        )
    return str.__str__(name)


DEFAULT_VIEW_BYTES = 1_000_000

DEFAULT = "default"
"""The model of an agent that names none: the default of the host."""


@dataclass(frozen=True, slots=True)
class Agent:
    """The configuration of the sessions that run it: model, instructions, tools, limits.

    - `model` is required: a name, an object, or None for the default of the host (`Runtime(model_sources=…)`).
    - `instructions` may be a function, plain or async, of an `InstructionsContext`. Perdure calls it once when a turn
      opens; its result holds for that turn, across restarts and deploys.
    - `output_type` is the type of the final reply (a pydantic model, dataclass, TypedDict, msgspec Struct …). A reply
      that does not match is requested again, at most twice.
    - `tool_timeout` applies to tools without a timeout of their own, except resumable and client-side tools, which may
      wait for days.
    - `max_iterations` limits the model calls of one turn. After it the model is called once more, without tools.
    - `max_calls_per_reply` and `max_calls_per_turn` limit the tool calls of the model. A call above is not run, and the
      model is told to ask again.
    - `view_bytes` limits the part of the conversation that the model sees: whole turns, newest first.
    - `batch_inputs` lets the next turn answer all inputs that were queued while a turn ran, instead of one turn each.
    - `locale` is the language of tool answers, as a BCP 47 tag such as `uk-UA`.
    - `limits` bounds the tokens and the money of a turn and of its session: `UsageLimits(turn_tokens=200_000)`.
    - `stall_timeout` is the longest pause in a model's output. Then the call is aborted and retried; None disables it.
    - `on_cut_reply` decides about a reply that breaks off in its text: "restart" repeats the call, "keep" keeps the
      partial text, marked as partial, without another call.
    - `initial_files` are the files of each session, created when the files of the session are first used.
    - `queue` and `priority` order sessions that wait for a worker; a higher priority comes first.

    Raises:
        Error: `agent_invalid`, `model_unknown`, `tool_invalid`, `invalid_text`, or the error of an initial file, if the
            configuration is invalid.
    """

    name: str
    if TYPE_CHECKING:
        model: str | Model | None
    else:  # required; a forgotten model gets an error with a hint instead of a bare TypeError
        model: str | Model | None = NOT_GIVEN
    instructions: Instructions = ""
    tools: Iterable[ToolSource] = ()
    model_settings: Json = None
    max_iterations: int = 50
    max_calls_per_reply: int = 64
    max_calls_per_turn: int = 1_000
    view_bytes: int = DEFAULT_VIEW_BYTES
    locale: str | None = None
    output_type: OutputType = None
    tool_timeout: float | str | None = None
    batch_inputs: bool = False
    queue: str = "default"
    priority: int = 0
    initial_files: Iterable[InitialFile] = ()
    limits: UsageLimits = field(default_factory=UsageLimits)
    stall_timeout: float | str | None = 120
    on_cut_reply: Literal["restart", "keep"] = "restart"
    _setup: AgentSetup = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", check_agent_name(self.name))
        if self.model is NOT_GIVEN:
            raise Error(
                Code.AGENT_INVALID,
                f"agent {self.name!r} has no model",
                hint='model="openai:gpt-5.2", or offline model="sim:echo"; model=None takes the default of the host',
            )
        for name in ("max_iterations", "max_calls_per_reply", "max_calls_per_turn"):
            _check_count(name, getattr(self, name))
        if not isinstance(self.limits, UsageLimits):  # pyright: ignore[reportUnnecessaryIsInstance] - any input
            kind = type(self.limits).__name__
            raise Error(Code.AGENT_INVALID, f"limits must be UsageLimits, not {kind}", hint="UsageLimits(turn_usd=1)")
        _check_tools(self.tools)
        if not isinstance(self.instructions, str) and not callable(self.instructions):
            raise Error(
                Code.AGENT_INVALID,
                f"instructions must be text or a function, not {type(self.instructions).__name__}",
            )
        if isinstance(self.instructions, str):
            object.__setattr__(self, "instructions", check_text(self.instructions, where="instructions"))
        if self.tool_timeout is not None and to_ms(self.tool_timeout) is None:
            raise Error(
                Code.AGENT_INVALID,
                f"tool_timeout={self.tool_timeout!r} is not a duration",
                hint='seconds as a number, or "500ms", "30s", "2m"',
            )
        if self.on_cut_reply not in ("restart", "keep"):
            raise Error(Code.AGENT_INVALID, f'on_cut_reply must be "restart" or "keep", not {self.on_cut_reply!r:.40}')
        if self.stall_timeout is not None and not to_ms(self.stall_timeout):
            raise Error(
                Code.AGENT_INVALID,
                f"stall_timeout={self.stall_timeout!r:.40} is not a duration",
                hint='seconds as a number, or "500ms", "30s", "2m"; None disables the timeout',
            )
        check_place(self.queue, self.priority)
        object.__setattr__(self, "_setup", self._set_up())
        object.__setattr__(self, "initial_files", tuple(self.initial_files))
        Tree(SessionId("any")).seeding(
            tuple(self.initial_files), "any"
        )  # refuses initial files that could not be created

    def _set_up(self) -> AgentSetup:
        model = MissingModel(DEFAULT, "the agent names no model") if self.model is None else resolve(self.model)
        to_json(self.model_settings, where="settings")
        return AgentSetup(
            agent=self.name,
            model=model,
            toolbox=Toolbox(self.tools),
            limits=self._limits(),
            place=Placement(self.queue, self.priority),
            model_settings=self.model_settings,
            output_as=output_of(self.output_type) if self.output_type is not None else None,
            tool_timeout_ms=None if self.tool_timeout is None else to_ms(self.tool_timeout),
        )

    def _limits(self) -> Limits:
        """Return the limits of one turn."""
        return Limits(
            max_iterations=self.max_iterations,
            calls_per_reply=self.max_calls_per_reply,
            calls_per_turn=self.max_calls_per_turn,
            turn_tokens=self.limits.turn_tokens,
            turn_cost_nano=nano_of("turn_usd", self.limits.turn_usd),
            session_tokens=self.limits.session_tokens,
            session_cost_nano=nano_of("session_usd", self.limits.session_usd),
            partial_replies="finalize" if self.on_cut_reply == "keep" else "restart",
            stall_ms=None if self.stall_timeout is None else to_ms(self.stall_timeout),
        )


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """An agent as the runtime uses it: its options checked, its model and tools resolved."""

    agent: str
    model: Model
    toolbox: Toolbox
    limits: Limits
    place: Placement
    """The queue and priority of sessions that have none of their own."""
    model_settings: Json
    output_as: Output | None
    tool_timeout_ms: int | None

    def composition(
        self, instructions: str, *, without: Collection[str] = (), model: str = "", output: Json = None
    ) -> Composition:
        """Return everything of this agent that a turn depends on, as configured now.

        The arguments are specific to the turn: its instructions, the model and output that the input requests, and the
        tools that its session lacks (`without`).
        """
        return Composition(
            agent=self.agent,
            model=model or self.model.name,
            instructions=instructions,
            tools=tuple(self._timed(one) for one in self.toolbox.contracts() if one.name not in without),
            settings=self.model_settings,
            output=(self.output_as.spec if self.output_as else None) if output is None else output,
            asked=output is not None,
        )

    def _timed(self, contract: ToolContract) -> ToolContract:
        """Apply the agent's timeout to a tool without one of its own."""
        durability = contract.durability
        if self.tool_timeout_ms is None or durability.timeout_ms is not None or durability.effect == "resumable":
            return contract
        if contract.client_side:
            return contract
        return replace(contract, durability=replace(durability, timeout_ms=self.tool_timeout_ms))


def setup_of(agent: Agent) -> AgentSetup:
    """Return an agent as the runtime uses it. Users see its options only."""
    return agent._setup  # pyright: ignore[reportPrivateUsage] - the one door


def _check_count(name: str, given: object) -> None:
    if not isinstance(given, int) or given < 1:
        raise Error(Code.AGENT_INVALID, f"{name} must be an integer >= 1, not {given!r:.40}")


def _check_tools(tools: object) -> None:
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        kind = type(tools).__name__
        raise Error(Code.AGENT_INVALID, f"tools must be a list of tools, not {kind}", hint="tools=[look]")


def find_model(name: str, agents: Iterable[Agent]) -> Model:
    """Return the model of that name: that of an agent, or one from the registry.

    Raises:
        Error: `model_unknown`.
    """
    models = (setup_of(agent).model for agent in agents)
    return next((model for model in models if model.name == name), None) or resolve(name)


def model_of(agent: Agent, name: str, others: Iterable[Agent] = ()) -> Model:
    """Return the model a turn began with: the agent's own if the name still matches, else any model of that name.

    Raises nothing: an unknown model answers every request with an error.
    """
    try:
        return find_model(name, (agent, *others))
    except Error as problem:
        return MissingModel(name, problem.message)


def output_check(agent: Agent, composition: Composition) -> Callable[[str], Awaitable[OutputProblem | None]] | None:
    """Return the check of a turn's final reply, or None if it needs none.

    The agent's current output type checks the reply; without a type, any JSON passes.
    """
    if composition.output is None:
        return None
    if composition.asked:
        return partial(schema_problem_of, composition.output)
    output_as = setup_of(agent).output_as

    async def check(text: str) -> OutputProblem | None:
        try:
            value: object = plain(text) if output_as is None else output_as.parse(text)
        except Error as problem:
            return OutputProblem(f"it is not JSON: {problem.because}")
        return value if isinstance(value, OutputProblem) else None

    return check


class MissingModel:
    """A model that is not available any more, although a turn needs it."""

    def __init__(self, name: str, reason: str, hint: str = "") -> None:
        self.name = name
        self.reason = reason
        self.hint = hint

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Raise a `ModelError` of kind `invalid`."""
        message = f"the turn began with the model {self.name}, which this runtime does not have: {self.reason}"
        raise ModelError(LlmError(kind="invalid", message=message, hint=self.hint))
        yield  # pyright: ignore[reportUnreachable] - makes this a stream


def composition_blob(composition: Composition) -> Blob:
    """Return a composition as a blob."""
    return blob_of(encode(composition), "application/json")
