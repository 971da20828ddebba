"""Answers to a program's requests, from the tools of its turn or from the log of an earlier run."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, cast

from perdure.codec import Json, to_json
from perdure.codemode.pauses import Answer, FunctionCall, Later, Lookup, NoSuchThing, Pause, Raises, Returns, Wish
from perdure.errors import Error
from perdure.tools.clients.dispatch import ChildCall
from perdure.tools.clients.programs import PastProgram
from perdure.tools.durable import body_of
from perdure.tools.nested import outcome_of_call
from perdure.tools.step_arguments import refuse_unordered
from perdure.vocab.outcomes import DurableStepOutcome, Failed, InDoubt, NotRun, Outcome, Success, ToolOutput
from perdure.vocab.refs import PartKind
from perdure.vocab.tools import ToolDefinition

if TYPE_CHECKING:
    from perdure.tools.context import ToolContext

MAX_RANDOM_BYTES = 4096


class Lost(Exception):
    """The log lacks an answer that an old program needs, so the program cannot run again."""


# --- tools ------------------------------------------------------------------------------------------------------


class Functions:
    """The tools of a turn as functions of a program. Characters invalid in Python names become underscores."""

    def __init__(self, ctx: ToolContext[object]) -> None:
        self._by_name: dict[str, ToolDefinition] = {}
        for one in ctx.services.tool_definitions or ():
            if one.name != ctx.tool_name:
                self._by_name.setdefault(function_name(one.name), one)

    def has(self, name: str) -> bool:
        """Return True if a program can call this function."""
        return name in self._by_name

    def call(self, pause: FunctionCall) -> ChildCall | Answer:
        """Convert a function call to a tool call, or return the error for the program."""
        tool = self._by_name[pause.name]
        names = _parameters(tool)
        given = dict(zip(names, pause.args, strict=False))
        if len(pause.args) > len(names) or given.keys() & pause.kwargs.keys():
            accepted = ", ".join(names) or "no arguments"
            return Raises(f"{pause.name}() takes {accepted}, each once; pass them by name", "TypeError")
        try:
            refuse_unordered(args := {**given, **pause.kwargs}, f"{pause.name}()")
            return ChildCall(tool.name, to_json(args, where=f"{pause.name}()"))
        except Error as problem:
            return Raises(
                f"{problem.message}; pass only JSON: text, numbers, lists, dicts with text as keys", "TypeError"
            )


def function_name(tool: str) -> str:
    """Return the function name of a tool in a program."""
    name = re.sub(r"\W", "_", tool, flags=re.ASCII)
    return f"_{name}" if name[:1].isdigit() else name


def _parameters(tool: ToolDefinition) -> list[str]:
    schema = cast("dict[str, Json]", tool.parameters or {})
    return list(cast("dict[str, Json]", schema.get("properties") or {}))


def answer_of(output: ToolOutput) -> Answer:
    """Convert the outcome of a call to a value, or to an error that the program can catch."""
    match output:
        case Success(value=value):
            return Returns(value)
        case Failed(failure=failure):
            return Raises(f"{failure.code}: {failure.message}")
        case InDoubt(message=message):
            why = f" ({message})" if message else ""
            return Raises(f"outcome_unknown: this call may or may not have taken effect, so do not repeat it{why}")
        case NotRun(reason=reason):
            return Raises(f"not_run: {reason}")


# --- requests to the host ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    """A supported request, with a recorded answer: the program gets the same answer on every run."""

    grant: Callable[[ToolContext[object], int], Awaitable[Answer]]
    value: Callable[[Mapping[str, Outcome], int], Answer]
    seconds: float | None = None


def wish_of(wish: Wish) -> Granted | None:
    """Return the implementation of a request, or None if it is not supported."""
    match wish.what, wish.args:
        case (
            ("time.sleep" | "asyncio.sleep" | "system.sleep" | "system.async_sleep"),
            (float() | int() as seconds, *_),
        ):
            return _nap(float(seconds))
        case "os.urandom", (int(size),) if 0 <= size <= MAX_RANDOM_BYTES:
            return _value("random", lambda: base64.b64encode(os.urandom(size)).decode(), base64.b64decode)
        case "time.time", _:
            return _value("now", None, lambda text: datetime.fromisoformat(text).timestamp())
        case "date.today", _:
            return _value("now", None, lambda text: datetime.fromisoformat(text).date())
        case "datetime.now", (None, *_) | ():
            return _value("now", None, lambda text: datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None))
        case "datetime.now", (tzinfo() as zone, *_):
            return _value("now", None, lambda text: datetime.fromisoformat(text).astimezone(zone))
        case _:
            return None


def _nap(seconds: float) -> Granted:
    async def sleep(ctx: ToolContext[object], n: int) -> Answer:
        return await pause(ctx, n, seconds)

    return Granted(sleep, lambda _parts, _n: Returns(None), seconds)


async def pause(ctx: ToolContext[object], n: int, seconds: float) -> Answer:
    """Sleep as the n-th request of a program."""
    try:
        await ctx.sleep(f"program:{n}", seconds)
    except Error as problem:
        return Raises(problem.message, "ValueError")
    return Returns(None)


def _value(kind: str, make: Callable[[], str] | None, read: Callable[[str], object]) -> Granted:
    async def ask(ctx: ToolContext[object], n: int) -> Answer:
        body = body_of(ctx)
        return Returns(read(body.value(kind, make or body.now, str(n))))

    def known(parts: Mapping[str, Outcome], n: int) -> Answer:
        outcome = parts.get(f"value:{kind}:{n}")
        if not isinstance(outcome, DurableStepOutcome) or not isinstance(outcome.value, str):
            raise Lost(f"the {kind} of pause {n} is not in the log")
        return Returns(read(outcome.value))

    return Granted(ask, known)


# --- replay from the log ----------------------------------------------------------------------------------------


class Past:
    """The recorded answers to an old program, pause by pause. Raises `Lost` if one is missing."""

    def __init__(self, past: PastProgram, called: Collection[str], functions: Functions) -> None:
        self._past = past
        self._called = called
        self._functions = functions
        self._n = 0
        self._choices = 0
        self._promised: dict[int, tuple[int, Answer]] = {}

    async def answer(self, pause: Pause) -> Answer | Later:
        """Return the recorded answer to this pause."""
        match pause:
            case Lookup(name=name):
                return Returns(None) if name in self._called or self._functions.has(name) else NoSuchThing()
            case FunctionCall(name=name) if name not in self._called:  # undefined in the earlier run
                return Raises(f"name {name!r} is not defined", "NameError")
            case FunctionCall():
                return self._answer_of(pause)
            case Wish() if (wish := wish_of(pause)) is not None:
                self._n += 1
                answer = wish.value(self._past.parts, self._n)
                return self._later(pause.number, answer) if pause.awaited else answer
            case _:
                return NoSuchThing()

    async def first(self, numbers: Iterable[int]) -> tuple[int, Answer]:
        """Return the answer that the program received next, of several."""
        open = {self._promised[number][0]: number for number in numbers if number in self._promised}
        if len(open) > 1:
            self._choices += 1
            chosen = self._past.parts.get(f"gather:{self._choices}")
            n = chosen.value if isinstance(chosen, DurableStepOutcome) else None
        else:
            [n] = open
        if n not in open:
            raise Lost(f"the choice {self._choices} among several calls is not in the log")
        return open[n], self._promised.pop(open[n])[1]

    def _answer_of(self, pause: FunctionCall) -> Answer | Later:
        self._n += 1
        output = outcome_of_call(self._recorded, f"call:{self._n}")
        if output is None:
            made = self._functions.call(pause) if self._functions.has(pause.name) else None
            if isinstance(made, Raises):
                return made  # rejected before it became a call
            raise Lost(f"the outcome of call {self._n} ({pause.name}) is not in the log")
        answer = answer_of(output)
        return self._later(pause.number, answer) if pause.awaited else answer

    def _later(self, number: int, answer: Answer) -> Later:
        self._promised[number] = (self._n, answer)
        return Later()

    def _recorded(self, kind: PartKind, name: str) -> Outcome | None:
        return self._past.parts.get(f"{kind}:{name}")
