"""Other agents, for the body of a tool or of a process: ask, wait, or start.

A child is a separate session whose id is derived from the call that starts it. Re-entry finds the existing child. The
body is parked while a child works.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast, overload

from perdure.codec import Json
from perdure.effects.promises import TurnScope
from perdure.errors import Code, Error
from perdure.ids import SessionId, TurnId
from perdure.tools.body import Body
from perdure.tools.durations import duration_ms
from perdure.tools.errors import ToolError
from perdure.tools.outputs import Output, OutputProblem, OutputType, output_of
from perdure.vocab.promises import Cancelled, Failure, Ok, Resolution, TimedOut
from perdure.vocab.wire import Value

T = TypeVar("T")


class SubagentFailed(ToolError):
    """A sub-agent ended without an answer. `session` is the child's session."""

    session: SessionId = SessionId("")


class Order(Value, frozen=True):
    """A request to a sub-agent. `output` is the required form of the answer, a name and a JSON schema, or None."""

    agent: str
    prompt: str
    session: SessionId
    turn: TurnId
    output: Json = None
    background: bool = False


class Spawner(Protocol):
    """Starts children for one body."""

    def scope(self, name: str) -> TurnScope:
        """Return the turn in which the child of that name answers."""
        ...

    async def spawn(self, name: str, order: Order) -> None:
        """Start a child once; durable on return.

        Raises:
            ToolError: unknown agent, or child limit reached.
        """
        ...

    def cancel(self, child: TurnScope, reason: str) -> None:
        """Cancel a child that no caller waits for."""
        ...

    def of_call(self, call: str) -> Spawner:
        """Return the spawner for the nested body of another call."""
        ...


@dataclass(frozen=True, slots=True)
class Subagent:
    """A background child: its session, and the turn in which it answers."""

    agent: str
    session: SessionId
    turn: TurnId


@dataclass(frozen=True, slots=True)
class AgentClient:
    """Client of another agent: `ctx.agent("writer")`."""

    _body: Body = field(repr=False)
    agent: str

    @overload
    async def ask(
        self, content: str, *, output: None = None, name: str | None = None, timeout: float | str | None = None
    ) -> str: ...

    @overload
    async def ask(
        self, content: str, *, output: type[T], name: str | None = None, timeout: float | str | None = None
    ) -> T: ...

    async def ask(
        self,
        content: str,
        *,
        output: OutputType = None,
        name: str | None = None,
        timeout: float | str | None = None,
    ) -> object:
        """Ask the agent in a child session and return its text, or a value of type `output`.

        Unnamed requests are matched by order; concurrent branches need names. After `timeout`, or when the caller's
        turn ends, the child's turn is cancelled.

        Raises:
            SubagentFailed: the child was stopped, was cancelled, timed out, returned no valid output, or exceeded
                the child limit. The `code` tells which.
        """
        wanted = _output(output)
        name = self._body.nth(self.agent) if name is None else name
        limit = None if timeout is None else duration_ms(timeout, what=f"the timeout of agent {self.agent!r}")
        scope = await self._start(name, content, wanted, background=False)
        told = await self._body.end_of_turn(name, scope, limit)
        if isinstance(told, TimedOut):
            self._spawner.cancel(scope, f"no answer within {timeout}")
        return _value(_text(self.agent, scope, told), wanted, self.agent, scope)

    async def start(self, content: str, *, output: OutputType = None, name: str | None = None) -> Subagent:
        """Start the agent in a child session without waiting. The child outlives the call and the turn.

        Its end is reported to the calling session: in the turn that runs then, or in a new one.
        """
        name = self._body.nth(self.agent) if name is None else name
        scope = await self._start(name, content, _output(output), background=True)
        return Subagent(self.agent, scope.session, scope.turn)

    async def _start(self, name: str, content: str, output: Output | None, *, background: bool) -> TurnScope:
        if not isinstance(content, str):  # pyright: ignore[reportUnnecessaryIsInstance] - tools pass any type
            kind = type(content).__name__
            raise Error(Code.INVALID_ARGUMENT, f"the input for {self.agent!r} must be text, not {kind}")
        spawner = self._spawner
        scope = spawner.scope(name)
        order = Order(
            agent=self.agent,
            prompt=content,
            session=scope.session,
            turn=scope.turn,
            output=output.spec if output else None,
            background=background,
        )
        await self._body.start(name, order, lambda: spawner.spawn(name, order))
        return scope

    @property
    def _spawner(self) -> Spawner:
        if self._body.spawner is None:
            raise Error(Code.DURABLE_EFFECTS_UNAVAILABLE, "sub-agents are not available here")
        return cast("Spawner", self._body.spawner)


def _output(type: OutputType) -> Output | None:
    """Return the required form of the answer for a type."""
    return type if type is None or isinstance(type, Output) else output_of(type)


def _text(agent: str, scope: TurnScope, told: Resolution) -> str:
    match told:
        case Ok(value={"status": "finished", "text": str(text)}):
            return text
        case Ok(value={"reason": "cancelled", "message": message}):
            raise _failed(Code.SUBAGENT_CANCELLED, f"{agent} was cancelled: {message}", scope)
        case Ok(value={"reason": reason, "message": message}):
            code = Code.SUBAGENT_OUTPUT_INVALID if reason == "output_invalid" else Code.SUBAGENT_FAILED
            raise _failed(code, f"{agent} was stopped ({reason}): {message}", scope)
        case Failure(message=message):
            raise _failed(Code.SUBAGENT_GONE, message, scope)
        case TimedOut():
            raise _failed(Code.SUBAGENT_TIMEOUT, f"{agent} timed out; its turn is cancelled", scope)
        case Cancelled() | Ok():
            raise _failed(Code.SUBAGENT_CANCELLED, f"the wait for {agent} was cancelled", scope)


def _value(text: str, wanted: Output | None, agent: str, scope: TurnScope) -> object:
    if wanted is None:
        return text
    value = wanted.parse(text)
    if isinstance(value, OutputProblem):
        message = f"the answer of {agent} is not a {wanted.name}: {value.message}"
        raise _failed(Code.SUBAGENT_OUTPUT_INVALID, message, scope)
    return value


def _failed(code: Code, message: str, scope: TurnScope) -> SubagentFailed:
    failed = SubagentFailed(f"{message}. Its session is {scope.session}", code=code.value)
    failed.session = scope.session
    return failed
