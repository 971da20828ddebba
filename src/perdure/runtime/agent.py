"""An agent: a name, a model, instructions and tools. Pure configuration; the durable part is a session."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass, field

from perdure.codec import Json, encode, to_json
from perdure.commit.plan import Blob, blob_of
from perdure.errors import Code, Error
from perdure.models.protocol import Model, ModelError, ModelEvent, ModelRequest
from perdure.models.registry import resolve
from perdure.tools.toolbox import Toolbox, ToolSource
from perdure.vocab.outcomes import LlmError
from perdure.vocab.records import Limits
from perdure.vocab.tools import Composition

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
DEFAULT_VIEW_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Agent:
    """What a session runs.

    `max_iterations` bounds the model calls of one turn; after it the model is asked once more, without tools.
    `view_bytes` bounds how much of the conversation the model is shown, whole turns at a time, newest first.
    `locale` is the language tools should answer in, as a BCP 47 tag such as `uk-UA`.

    Raises:
        Error: `agent_invalid`, `model_unknown` or `tool_invalid` for a configuration that cannot work.
    """

    name: str
    model: str | Model = "sim:echo"
    instructions: str = ""
    tools: Iterable[ToolSource] = ()
    settings: Json = None
    max_iterations: int = 50
    view_bytes: int = DEFAULT_VIEW_BYTES
    locale: str | None = None
    toolbox: Toolbox = field(init=False, repr=False)
    resolved: Model = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise Error(
                Code.AGENT_INVALID,
                f"{self.name!r} cannot be the name of an agent",
                because="it must be 1 to 100 letters, digits, dots, dashes or underscores",
            )
        if self.max_iterations < 1:
            raise Error(Code.AGENT_INVALID, f"max_iterations must be at least 1, not {self.max_iterations}")
        object.__setattr__(self, "toolbox", Toolbox(self.tools))
        object.__setattr__(self, "resolved", resolve(self.model))
        to_json(self.settings, where="settings")

    @property
    def limits(self) -> Limits:
        """How far one turn may go."""
        return Limits(max_iterations=self.max_iterations)

    def composition(self, *, without: Collection[str] = ()) -> Composition:
        """Everything of this agent that a turn depends on, as it is now, `without` the tools its session lacks."""
        return Composition(
            agent=self.name,
            model=self.resolved.name,
            instructions=self.instructions,
            tools=tuple(one for one in self.toolbox.contracts() if one.name not in without),
            settings=self.settings,
        )


def model_of(agent: Agent, name: str) -> Model:
    """The model a turn was begun on: the agent's own while it still has that name, else whatever has it.

    Raises nothing: a model nobody knows any more answers every request with an error that says so.
    """
    if agent.resolved.name == name:
        return agent.resolved
    try:
        return resolve(name)
    except Error as problem:
        return MissingModel(name, problem.message)


class MissingModel:
    """Stands for a model that was removed while a turn needed it."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Refuse."""
        message = f"the turn was begun on the model {self.name}, which this runtime does not have: {self._reason}"
        raise ModelError(LlmError(kind="invalid", message=message))
        yield  # pyright: ignore[reportUnreachable] - makes this a stream


def composition_blob(composition: Composition) -> Blob:
    """A composition as stored bytes."""
    return blob_of(encode(composition), "application/json")
