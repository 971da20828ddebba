"""An agent: a name, a model, instructions and tools. Pure configuration; the durable part is a session."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Literal

from msgspec.structs import replace

from perdure.codec import Json, check_text, encode, to_json
from perdure.commit.plan import Blob, blob_of
from perdure.errors import Code, Error
from perdure.ids import SessionId
from perdure.models.protocol import Model, ModelError, ModelEvent, ModelRequest
from perdure.models.registry import resolve
from perdure.runtime.instructions import Instructions
from perdure.runtime.work import check_place
from perdure.services.files.shapes import InitialFile
from perdure.services.files.tree import Tree
from perdure.store.shapes import Place
from perdure.tools.durations import to_ms
from perdure.tools.outputs import Output, OutputProblem, OutputType, output_of, plain, schema_problem_of
from perdure.tools.toolbox import Toolbox, ToolSource
from perdure.vocab.outcomes import LlmError
from perdure.vocab.records import Limits
from perdure.vocab.tools import Composition, ToolContract
from perdure.vocab.usage import NANO

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def check_agent_name(name: object) -> str:
    """What an agent can be called.

    Raises:
        Error: `agent_invalid`.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Error(
            Code.AGENT_INVALID,
            f"{name!r:.120} cannot be the name of an agent",
            because="it must be 1 to 100 letters, digits, dots, dashes or underscores",
        )
    return str.__str__(name)


DEFAULT_VIEW_BYTES = 1_000_000

DEFAULT = "default"
"""The model of an agent that names none: whatever its host says."""


@dataclass(frozen=True, slots=True)
class Agent:
    """What a session runs.

    `model` is a name, an object, or None for the default of the host (`Runtime(models=…)`).
    `instructions` may be a function, plain or async, of an `InstructionsContext`: it is asked once when a turn opens,
    and what it says holds for that turn, whatever is deployed or restarted meanwhile. `output` is the type of the final
    reply (a pydantic model, dataclass, TypedDict, msgspec Struct …); one that is not of it is asked for again, twice at
    most. `tool_timeout` holds for tools that set none themselves, except resumable and client-side ones, which
    may wait for days.
    `max_iterations` bounds the model calls of one turn; after it the model is asked once more, without tools.
    `view_bytes` bounds how much of the conversation the model is shown, whole turns at a time, newest first.
    `drain` says what becomes of inputs that wait for a turn to end: each gets a turn of its own ("one"), or all of them
    are answered together by the next ("together").
    `locale` is the language tools should answer in, as a BCP 47 tag such as `uk-UA`.
    `max_turn_tokens` and `max_turn_usd` bound what one turn may buy from models, `max_session_tokens` and
    `max_session_usd` what its session may, sub-agents included; they are looked at before each model call. Where the
    price of a call is unknown, a limit in money ends the turn before the next one.
    A model that writes nothing for `stall_timeout` is given up, and asked again; None waits for ever.
    `partial_replies` says what becomes of a reply that breaks off in the middle of its text: "restart" asks again,
    "finalize" takes what there is, marked as partial, and buys nothing more.
    `files` are those that each of its sessions begins with; they are laid down when its files are first used.
    Its sessions wait for a worker in the queue of that name, those with a higher `priority` first.

    Raises:
        Error: `agent_invalid`, `model_unknown`, `tool_invalid`, `invalid_text`, or what is refused of a file, for a
            configuration that cannot work.
    """

    name: str
    model: str | Model | None = "sim:echo"
    instructions: Instructions = ""
    tools: Iterable[ToolSource] = ()
    settings: Json = None
    max_iterations: int = 50
    view_bytes: int = DEFAULT_VIEW_BYTES
    locale: str | None = None
    output: OutputType = None
    tool_timeout: float | str | None = None
    drain: Literal["one", "together"] = "one"
    queue: str = "default"
    priority: int = 0
    files: Iterable[InitialFile] = ()
    max_turn_tokens: int | None = None
    max_turn_usd: float | str | Decimal | None = None
    max_session_tokens: int | None = None
    max_session_usd: float | str | Decimal | None = None
    stall_timeout: float | str | None = 120
    partial_replies: Literal["restart", "finalize"] = "restart"
    output_as: Output | None = field(init=False, repr=False)
    toolbox: Toolbox = field(init=False, repr=False)
    resolved: Model = field(init=False, repr=False)
    limits: Limits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", check_agent_name(self.name))
        _check_shape(self.max_iterations, self.tools)
        if self.drain not in ("one", "together"):
            raise Error(Code.AGENT_INVALID, f'drain must be "one" or "together", not {self.drain!r:.40}')
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
        if self.partial_replies not in ("restart", "finalize"):
            raise Error(
                Code.AGENT_INVALID, f'partial_replies must be "restart" or "finalize", not {self.partial_replies!r:.40}'
            )
        if self.stall_timeout is not None and not to_ms(self.stall_timeout):
            raise Error(
                Code.AGENT_INVALID,
                f"stall_timeout={self.stall_timeout!r:.40} is not a duration",
                hint='seconds as a number, or "500ms", "30s", "2m"; None waits for ever',
            )
        check_place(self.queue, self.priority)
        object.__setattr__(self, "output_as", output_of(self.output) if self.output is not None else None)
        object.__setattr__(self, "toolbox", Toolbox(self.tools))
        model = MissingModel(DEFAULT, "it has no model of its own") if self.model is None else resolve(self.model)
        object.__setattr__(self, "resolved", model)
        to_json(self.settings, where="settings")
        object.__setattr__(self, "limits", self._limits())
        object.__setattr__(self, "files", tuple(self.files))
        Tree(SessionId("any")).seeding(self.initial_files, "any")  # what could not be laid down is refused here

    @property
    def initial_files(self) -> tuple[InitialFile, ...]:
        """The files that each of its sessions begins with."""
        return tuple(self.files)

    @property
    def place(self) -> Place:
        """Where its sessions stand that have no place of their own."""
        return Place(self.queue, self.priority)

    def _limits(self) -> Limits:
        """How far one turn may go."""
        return Limits(
            max_iterations=self.max_iterations,
            turn_tokens=_tokens("max_turn_tokens", self.max_turn_tokens),
            turn_cost_nano=_nano("max_turn_usd", self.max_turn_usd),
            session_tokens=_tokens("max_session_tokens", self.max_session_tokens),
            session_cost_nano=_nano("max_session_usd", self.max_session_usd),
            partial_replies=self.partial_replies,
            stall_ms=None if self.stall_timeout is None else to_ms(self.stall_timeout),
        )

    def composition(
        self, instructions: str, *, without: Collection[str] = (), model: str = "", output: Json = None
    ) -> Composition:
        """Everything of this agent that a turn depends on, as it is now: with the instructions that hold for the turn,
        on the model and for the output that were asked for, `without` the tools its session lacks.
        """
        return Composition(
            agent=self.name,
            model=model or self.resolved.name,
            instructions=instructions,
            tools=tuple(self._timed(one) for one in self.toolbox.contracts() if one.name not in without),
            settings=self.settings,
            output=(self.output_as.spec if self.output_as else None) if output is None else output,
            asked=output is not None,
        )

    def _timed(self, contract: ToolContract) -> ToolContract:
        """A tool's own timeout wins; without one, the agent's holds."""
        durability = contract.durability
        if self.tool_timeout is None or durability.timeout_ms is not None or durability.effect == "resumable":
            return contract
        if contract.client_side:
            return contract
        return replace(contract, durability=replace(contract.durability, timeout_ms=to_ms(self.tool_timeout)))


def _check_shape(max_iterations: object, tools: object) -> None:
    if not isinstance(max_iterations, int) or max_iterations < 1:
        shown = f"{max_iterations!r:.40}"
        raise Error(Code.AGENT_INVALID, f"max_iterations must be a whole number of at least 1, not {shown}")
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        kind = type(tools).__name__
        raise Error(Code.AGENT_INVALID, f"tools must be a list of tools, not {kind}", hint="tools=[look]")


def _tokens(name: str, given: object) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise Error(Code.AGENT_INVALID, f"{name} must be a whole number of at least 1, not {given!r:.40}")
    return given


def _nano(name: str, given: object) -> int | None:
    """US dollars in billionths."""
    if given is None:
        return None
    try:
        amount = Decimal(str(given)) if isinstance(given, int | float | str | Decimal) else Decimal("nan")
    except InvalidOperation:
        amount = Decimal("nan")
    if isinstance(given, bool) or not amount.is_finite() or amount <= 0:
        raise Error(Code.AGENT_INVALID, f"{name} must be an amount of US dollars, such as 0.50, not {given!r:.40}")
    return round(amount * NANO)


def find_model(name: str, agents: Iterable[Agent]) -> Model:
    """The model of that name: one that an agent here has, or one that exists anyway.

    Raises:
        Error: `model_unknown`.
    """
    return next((agent.resolved for agent in agents if agent.resolved.name == name), None) or resolve(name)


def model_of(agent: Agent, name: str, others: Iterable[Agent] = ()) -> Model:
    """The model a turn was begun on: the agent's own while it still has that name, else whatever has it.

    Raises nothing: a model nobody knows any more answers every request with an error that says so.
    """
    try:
        return find_model(name, (agent, *others))
    except Error as problem:
        return MissingModel(name, problem.message)


def output_check(agent: Agent, composition: Composition) -> Callable[[str], OutputProblem | None] | None:
    """What a final reply of a turn must pass. The type that checks is today's; without one, any JSON will do."""
    if composition.output is None:
        return None
    if composition.asked:
        return partial(schema_problem_of, composition.output)
    output_as = agent.output_as

    def check(text: str) -> OutputProblem | None:
        try:
            value: object = plain(text) if output_as is None else output_as.parse(text)
        except Error as problem:
            return OutputProblem(f"it is not JSON: {problem.because}")
        return value if isinstance(value, OutputProblem) else None

    return check


class MissingModel:
    """Stands for a model that was removed while a turn needed it."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Refuse."""
        message = f"the turn was begun on the model {self.name}, which this runtime does not have: {self.reason}"
        raise ModelError(LlmError(kind="invalid", message=message))
        yield  # pyright: ignore[reportUnreachable] - makes this a stream


def composition_blob(composition: Composition) -> Blob:
    """A composition as stored bytes."""
    return blob_of(encode(composition), "application/json")
