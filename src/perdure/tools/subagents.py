"""Other agents, as the body of a tool or of a process sees them: asked, waited for, or left to work.

A child is a session of its own, named by the call that starts it: whoever enters the body again finds it, and starts
none twice. The body is parked while a child works.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar, cast, overload

from perdure.codec import Json
from perdure.effects.promises import TurnScope
from perdure.errors import Code, Error
from perdure.ids import SessionId, TurnId
from perdure.tools.body import Body
from perdure.tools.durations import duration_ms
from perdure.tools.errors import ToolError
from perdure.tools.outputs import Output, OutputProblem, OutputType, output_of
from perdure.vocab.promises import Cancelled, Err, Ok, Resolution, TimedOut
from perdure.vocab.wire import Value

T = TypeVar("T")


class SubagentFailed(ToolError):
    """A sub-agent ended without an answer. `session` is where to look."""

    session: SessionId = SessionId("")


class Order(Value, frozen=True):
    """What is asked of whom. `output` is what the answer must be, if anything: a name and a JSON schema."""

    agent: str
    prompt: str
    session: SessionId
    turn: TurnId
    output: Json = None
    background: bool = False


class Spawner(Protocol):
    """Who starts children for one body."""

    def scope(self, name: str) -> TurnScope:
        """Where the child of that name answers."""
        ...

    async def spawn(self, name: str, order: Order) -> None:
        """Start a child, once; durable when this returns.

        Raises:
            ToolError: there is no such agent, or no room for a child.
        """
        ...

    def cancel(self, child: TurnScope, reason: str) -> None:
        """Nobody waits for a child any more."""
        ...

    def of_call(self, call: str) -> Spawner:
        """Who starts children for the body of another call, inside this one."""
        ...


@dataclass(frozen=True, slots=True)
class Subagent:
    """A child that works by itself: its session, and the turn in which it answers."""

    agent: str
    session: SessionId
    turn: TurnId


@dataclass(frozen=True, slots=True)
class AgentClient:
    """Another agent: `ctx.agent("writer")`."""

    body: Body
    agent: str

    @overload
    async def ask(
        self, prompt: str, *, output: None = None, name: str | None = None, timeout: float | str | None = None
    ) -> str: ...

    @overload
    async def ask(
        self, prompt: str, *, output: type[T], name: str | None = None, timeout: float | str | None = None
    ) -> T: ...

    async def ask(
        self,
        prompt: str,
        *,
        output: OutputType = None,
        name: str | None = None,
        timeout: float | str | None = None,
    ) -> object:
        """Have it answer, in a session of its own; the text of its answer, or a value of the type `output`.

        Which of several is meant follows from their order; where branches run at the same time, give each a name. If
        it does not answer within `timeout`, its turn is cancelled. So it is when the caller's turn ends first.

        Raises:
            SubagentFailed: it was stopped or cancelled, or took too long, or gave no such output; or there was no
                room for it. The `code` says which.
        """
        wanted = _output(output)
        name = self.body.nth(self.agent) if name is None else name
        limit = None if timeout is None else duration_ms(timeout, what=f"the timeout of agent {self.agent!r}")
        scope = await self._start(name, prompt, wanted, background=False)
        told = await self.body.end_of_turn(name, scope, limit)
        if isinstance(told, TimedOut):
            self._spawner.cancel(scope, f"no answer within {timeout}")
        return _value(_text(self.agent, scope, told), wanted, self.agent, scope)

    async def start(self, prompt: str, *, output: OutputType = None, name: str | None = None) -> Subagent:
        """Set it to work in a session of its own, and go on. It outlives the call, and the turn.

        Its end is said to the calling session: in the turn that runs then, or in one of its own.
        """
        name = self.body.nth(self.agent) if name is None else name
        scope = await self._start(name, prompt, _output(output), background=True)
        return Subagent(self.agent, scope.session, scope.turn)

    async def _start(self, name: str, prompt: str, output: Output | None, *, background: bool) -> TurnScope:
        if not isinstance(prompt, str):  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a tool gives
            kind = type(prompt).__name__
            raise Error(Code.INVALID_ARGUMENT, f"what {self.agent!r} is asked must be text, not {kind}")
        spawner = self._spawner
        scope = spawner.scope(name)
        order = Order(
            agent=self.agent,
            prompt=self.body.veiled(prompt),
            session=scope.session,
            turn=scope.turn,
            output=output.spec if output else None,
            background=background,
        )
        await self.body.start(name, order, lambda: spawner.spawn(name, order))
        return scope

    @property
    def _spawner(self) -> Spawner:
        if self.body.spawner is None:
            raise Error(Code.DURABLE_EFFECTS_UNAVAILABLE, "there is nobody here who could start another agent")
        return cast("Spawner", self.body.spawner)


def _output(type: OutputType) -> Output | None:
    """What the answer must be: a type, or what was made of one."""
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
        case Err(message=message):
            raise _failed(Code.SUBAGENT_GONE, message, scope)
        case TimedOut():
            raise _failed(Code.SUBAGENT_TIMEOUT, f"{agent} did not answer in time; its turn is cancelled", scope)
        case Cancelled() | Ok():
            raise _failed(Code.SUBAGENT_CANCELLED, f"nobody waits for {agent} any more", scope)


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
