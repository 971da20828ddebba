"""Requests of a running program, answered by the tools of its turn, the recorded clock, or the log.

Every pause with a request has a number, under which it is recorded. The program's state is stored before a call is
made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from perdure.codemode.answers import Functions, answer_of, pause, wish_of
from perdure.codemode.kept import Packed
from perdure.codemode.limits import MAX_PACKED_BYTES, MAX_PACKED_IN_ALL, ProgramLimits
from perdure.codemode.pauses import (
    Answer,
    FunctionCall,
    Later,
    Lookup,
    NoSuchThing,
    Pause,
    ProgramEnded,
    Raises,
    Returns,
    Wish,
)
from perdure.codemode.promised import IssuedCall, Promised
from perdure.effects.controller import Begun, DispatchPolicy
from perdure.errors import Code, Error
from perdure.tools.clients.dispatch import ChildCall
from perdure.tools.context import dispatch_of, programs_of
from perdure.tools.durable import body_of
from perdure.vocab.effects import Checkpoint
from perdure.vocab.outcomes import CheckpointOutcome

if TYPE_CHECKING:
    from perdure.codemode.machine import Machine
    from perdure.tools.context import ToolContext


class ProgramEntry:
    """Answers for one entry of a program. `n` is the number of its last pause, `called` the functions it has called."""

    def __init__(
        self,
        ctx: ToolContext[object],
        functions: Functions,
        limits: ProgramLimits,
        machine: Machine,
        promised: Promised,
    ) -> None:
        self.n = 0
        self.called: dict[str, None] = {}
        self._ctx = ctx
        self._body = body_of(ctx)
        self._functions = functions
        self._limits = limits
        self._machine = machine
        self._promised = promised
        self._room = MAX_PACKED_IN_ALL

    def resume(self, packed: Packed) -> None:
        """Restore the state of an earlier entry, with its calls in flight."""
        self.n = packed.n - 1
        self.called = dict.fromkeys(packed.called)
        self._promised.resume(packed.choices)
        for asked in packed.asked:
            self._begin(asked)

    async def answer(self, pause: Pause) -> Answer | Later:
        """Return the answer to a pause."""
        match pause:
            case Lookup(name=name):
                return Returns(None) if self._functions.has(name) else NoSuchThing()
            case FunctionCall(name=name) if not self._functions.has(name):
                return Raises(f"name {name!r} is not defined", "NameError")
            case FunctionCall(name=name):
                await self._count(keep=True)
                self.called[name] = None
                made = self._functions.call(pause)
                if not isinstance(made, ChildCall):
                    return made
                return await self._promise(IssuedCall(pause.number, self.n, made.name, made.args), pause.awaited)
            case Wish() if (wish := wish_of(pause)) is not None:
                await self._count(keep=wish.seconds is not None)
                if wish.seconds is None:
                    return await wish.grant(self._ctx, self.n)
                return await self._promise(IssuedCall(pause.number, self.n, seconds=wish.seconds), pause.awaited)
            case _:
                return NoSuchThing()

    async def first(self, numbers: Iterable[int]) -> tuple[int, Answer]:
        """Return the next answer that the program gets, of several in flight."""
        return await self._promised.first(numbers)

    async def _promise(self, asked: IssuedCall, awaited: bool) -> Answer | Later:
        self._begin(asked)
        return Later() if awaited else await self._promised.get(asked.number)

    def _begin(self, asked: IssuedCall) -> None:
        self._promised.begin(asked, self._call(asked) if asked.tool else pause(self._ctx, asked.n, asked.seconds))

    async def _call(self, asked: IssuedCall) -> Answer:
        try:
            result = await dispatch_of(self._ctx).call(ChildCall(asked.tool, asked.args), step=f"call:{asked.n}")
        except Error as problem:
            if problem.code is not Code.INPUT_TOO_LARGE:
                raise
            return Raises(problem.message, "ValueError")
        return answer_of(result.output)

    async def _count(self, *, keep: bool) -> None:
        """Count a pause, and store the program's state if `keep` is set and it is useful."""
        self.n += 1
        if self.n > self._limits.calls:
            raise ProgramEnded("limit", f"The program was stopped: it reached the limit of {self._limits.calls} calls.")
        name = str(self.n)
        known = self._body.outcome_of("checkpoint", name) or self._body.outcome_of("step", f"call:{name}")
        if not keep or known is not None or self._room <= 0:
            return
        state = await self._machine.save()
        self._room = self._room - len(state) if len(state) <= MAX_PACKED_BYTES else 0
        if self._room > 0:
            begun = self._body.open_part(
                "checkpoint", name, Checkpoint(checkpoint="in_code"), DispatchPolicy(effect="pure")
            )
            if isinstance(begun, Begun):
                kept = programs_of(self._ctx).keep(msgspec.msgpack.encode(self._packed(state)))
                self._body.close_part(begun, CheckpointOutcome(delivery=kept))

    def _packed(self, state: bytes) -> Packed:
        machine, promised = self._machine, self._promised
        return Packed(
            call=self._ctx.call_id,
            version=machine.version,
            n=self.n,
            printed=machine.printed,
            state=state,
            texts=machine.texts,
            asked=tuple(promised.asked),
            choices=promised.choices,
            called=tuple(self.called),
        )
