"""One program, durably: it runs, pauses at each call, is kept there, and goes on from there whatever happens between.

The truth is its source and what was recorded of its calls. What is kept of the interpreter is a cache: if it cannot be
read (another version, gone, damaged), the program runs again from the top and its calls are answered from the log. A
program that then asks for something else than it did is stopped loudly, as `replay_mismatch`, before anything is run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import msgspec

from perdure.codec import Json, as_stored
from perdure.codemode.answers import Functions, Lost, Past
from perdure.codemode.asking import Asking
from perdure.codemode.kept import Environment, Packed, environment_of
from perdure.codemode.limits import MAX_TOLD_BYTES, Limits
from perdure.codemode.pauses import (
    Answer,
    Broken,
    Finished,
    Later,
    Pause,
    ProgramEnded,
    Returns,
    Unloadable,
    Waiting,
)
from perdure.codemode.promised import Promised
from perdure.effects.controller import Begun, Care
from perdure.errors import Error
from perdure.tools.clients.programs import PastProgram
from perdure.tools.nested import outcome_of_call
from perdure.vocab.approvals import approved
from perdure.vocab.effects import ExecCode, SyncExecutionEnvironment
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    CheckpointOutcome,
    ExecCodeOutcome,
    InDoubt,
    SyncOutcome,
    into_exec_code,
)

if TYPE_CHECKING:
    from perdure.codemode.machine import Machine
    from perdure.tools.context import ToolContext

log = logging.getLogger("perdure.codemode")

_CODES: dict[Broken, str] = {
    "failed": "program_failed",
    "limit": "program_limit_exceeded",
    "crashed": "interpreter_crashed",
}
_SHOWN_CHARS = 2000
_SHOWN_OF_REST = 200


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the model is told of a program. The names are those that it reads."""

    result: Json = None
    printed: str = ""
    note: str = ""


class Failure(msgspec.Struct, frozen=True):
    """Why a program did not come to its end, for the model."""

    code: str
    message: str


class Host(Protocol):
    """Whoever a program asks: the tools of its turn, or the log."""

    async def answer(self, pause: Pause) -> Answer | Later:
        """What it is told at a pause."""
        ...

    async def first(self, numbers: Iterable[int]) -> tuple[int, Answer]:
        """Which of several things that it was promised it gets next."""
        ...


async def drive(machine: Machine, pause: Pause, host: Host) -> Finished:
    """Answer a program from pause to pause until it ends."""
    while not isinstance(pause, Finished):
        match pause:
            case Waiting(numbers=numbers):
                pause = await machine.deliver(*await host.first(numbers))
            case _:
                pause = await machine.answer(await host.answer(pause))
    return pause


class Program:
    """One entry of one program: a call of the model, in a resumable body."""

    def __init__(self, ctx: ToolContext[object], code: str, limits: Limits) -> None:
        self._ctx = ctx
        self._code = code
        self._limits = limits
        self._body = ctx.durable_effects()
        self._functions = Functions(ctx)
        self._after = ""
        self._trusts = True
        self._notes: list[str] = []
        self._n = 0

    async def run(self) -> Told | Failure:
        """Run the program to its end, or tell how it ended before."""
        care = Care(effect="pure", record_start=True, keep_command=False)
        begun = self._body.open_part("code", "program", ExecCode(code=self._code), care)
        if not isinstance(begun, Begun):
            return _told(into_exec_code(begun))
        try:
            outcome, left = await self._executed()
        except Unloadable as problem:
            log.warning("what was kept of a program cannot be read; it runs again: %s", problem, extra=self._where)
            self._trusts = False
            outcome, left = await self._executed()
        self._ctx.programs.forget(self._outlived(left))
        if left is not None:
            sync = self._body.open_part("environment", "left", SyncExecutionEnvironment(), Care(effect="pure"))
            if isinstance(sync, Begun):
                self._body.close_part(sync, SyncOutcome(sync=msgspec.to_builtins(left)))
        self._body.close_part(begun, outcome)
        return _told(outcome)

    @property
    def _where(self) -> dict[str, object]:
        return {"session": self._ctx.session_id, "call": self._ctx.call_id}

    async def _executed(self) -> tuple[ExecCodeOutcome, Environment | None]:
        from perdure.codemode.machine import Machine

        async with Machine(self._limits) as machine, Promised(self._body) as promised:
            asking = Asking(self._ctx, self._functions, self._limits, machine, promised)
            try:
                finished = await drive(machine, await self._enter(machine, asking), asking)
            except ProgramEnded as ended:
                # A limit stops the interpreter in the middle of something: its variables are not worth keeping.
                left = await self._left(machine, asking) if ended.how == "failed" else None
                await self._wait_for_the_rest(promised)
                self._n = asking.n
                printed = f"\nIt had printed:\n{machine.printed[-_SHOWN_CHARS:]}" if machine.printed else ""
                message = ended.message[: MAX_TOLD_BYTES // 4] + printed
                failure = Failure(_CODES[ended.how], " ".join((message, *self._edited())))
                return ExecCodeOutcome(error=msgspec.json.encode(failure).decode()), left
            left = await self._left(machine, asking)
            await self._wait_for_the_rest(promised)
            self._n = asking.n
            result = self._plain(finished.value)
            told = Told(result, machine.printed, " ".join(self._told_besides()))
            return ExecCodeOutcome(response=msgspec.to_builtins(told)), left

    async def _wait_for_the_rest(self, promised: Promised) -> None:
        """What a program has called goes on to its end, also if the program does not wait for it."""
        for asked, answer in await promised.rest():
            if asked.tool:
                became = answer.value if isinstance(answer, Returns) else getattr(answer, "message", "")
                shown = str(became)[:_SHOWN_OF_REST]
                self._notes.append(f"Call {asked.n} ({asked.tool}) was made and not awaited; it ended with: {shown}.")

    # --- where it begins

    async def _enter(self, machine: Machine, asking: Asking) -> Pause:
        """Stand where the program stood, or at its beginning with the variables of those before it."""
        self._notes = []
        last = environment_of(self._ctx.programs.environment())
        self._after = last.call if last else ""
        if self._trusts and (pause := await self._stood(machine, asking)) is not None:
            return pause
        if last is not None:
            packed = await self._unpacked(last.hash, machine) if self._trusts else None
            if packed:
                await machine.load_variables(packed.state)
                machine.texts = packed.texts
            else:
                await self._rebuild(machine, last)
        return await machine.run(self._code)

    async def _stood(self, machine: Machine, asking: Asking) -> Pause | None:
        """Where an earlier entry stood last, if that was kept and can be read."""
        n = max(self._kept_at(), default=0)
        kept = self._checkpoint(n)
        if kept is None or not isinstance(kept.delivery, str):
            return None
        packed = await self._unpacked(kept.delivery, machine)
        if packed is None or packed.n != n:
            return None
        machine.texts = packed.texts
        pause = await machine.load_program(packed.state, packed.printed)
        asking.resume(packed)
        return pause

    def _kept_at(self) -> list[int]:
        begins = self._body.place.part("checkpoint", "")
        return [int(id.removeprefix(begins)) for id in self._body.controller.journal.ids() if id.startswith(begins)]

    def _checkpoint(self, n: int) -> CheckpointOutcome | None:
        kept = self._body.outcome_of("checkpoint", str(n)) if n else None
        return kept if isinstance(kept, CheckpointOutcome) else None

    def _outlived(self, left: Environment | None) -> list[str]:
        """What was kept and is of no use once the program has ended: where it stood, and the variables before it."""
        hashes = [outcome.delivery for n in self._kept_at() if (outcome := self._checkpoint(n)) is not None]
        before = environment_of(self._ctx.programs.environment()) if left is not None else None
        return [*(hash for hash in hashes if isinstance(hash, str)), *([before.hash] if before else [])]

    async def _unpacked(self, hash: str, machine: Machine) -> Packed | None:
        """What was kept under a hash, if this interpreter can read it: it does not check that itself."""
        data = await self._ctx.programs.fetch(hash) if hash else None
        try:
            packed = msgspec.msgpack.decode(data, type=Packed) if data else None
        except msgspec.MsgspecError:
            return None
        return packed if packed and packed.version == machine.version else None

    async def _rebuild(self, machine: Machine, last: Environment) -> None:
        """Run the programs before this one again, answered from the log, to have their variables."""
        history = await self._ctx.programs.history()
        chain: list[PastProgram] = []
        call = last.call
        while call and (past := history.get(call)) is not None and past not in chain:
            chain.insert(0, past)
            kept = past.parts.get("environment:left")
            found = environment_of(kept.sync) if isinstance(kept, SyncOutcome) else None
            call = found.after if found else ""
        try:
            if call or not chain:
                raise Lost(f"the program {call or last.call} is not in the log")
            for past in chain:
                await self._repeat(machine, past)
        except Lost as problem:
            log.error("the variables of earlier programs are lost: %s", problem, extra=self._where)
            raise ProgramEnded("failed", "The variables of earlier programs are lost; define them again.") from None

    async def _repeat(self, machine: Machine, past: PastProgram) -> None:
        args = msgspec.convert(past.args, dict[str, Json])
        if not isinstance(args.get("code"), str):
            raise Lost("its text was redacted")
        kept = past.parts.get("environment:left")
        found = environment_of(kept.sync) if isinstance(kept, SyncOutcome) else None
        try:
            host = Past(past, found.called if found else (), self._functions)
            await drive(machine, await machine.run(str(args["code"])), host)
        except ProgramEnded as ended:
            if ended.how != "failed":
                raise Lost(ended.message) from None

    # --- what it leaves

    async def _left(self, machine: Machine, asking: Asking) -> Environment | None:
        try:
            state = await machine.save()
        except ProgramEnded:
            return None
        if len(state) > self._limits.variables_bytes:
            most = self._limits.variables_bytes
            self._notes.append(f"Its variables are not kept: they are {len(state)} bytes, more than {most}.")
            return None
        packed = Packed(self._ctx.call_id, machine.version, 0, "", state, machine.texts)
        kept = self._ctx.programs.keep(msgspec.msgpack.encode(packed))
        return Environment(self._ctx.call_id, self._after, kept, tuple(asking.called))

    def _plain(self, value: object) -> Json:
        """The value of a program as JSON; as the text that it is printed as, if it is none; cut, if it is too long."""
        try:
            plain, data = as_stored(value, where="the result")
        except Error:
            return _shown(value)
        if len(data) <= MAX_TOLD_BYTES:
            return plain
        self._notes.append(f"Its result is {len(data)} bytes and was cut; it is kept only in its variables.")
        return data[:_SHOWN_CHARS].decode(errors="replace")

    def _told_besides(self) -> list[str]:
        """What the model must know although the program may have caught it. A failure tells of doubts anyway."""
        told = self._edited()
        for n in range(1, self._n + 1):
            if isinstance(outcome_of_call(self._body.outcome_of, f"call:{n}"), InDoubt):
                told.append(f"Nobody knows whether call {n} ({self._tool(n)}) took effect, so do not repeat it.")
        return told

    def _edited(self) -> list[str]:
        """What people made of calls before they allowed them."""
        told = list(self._notes)
        for n in range(1, self._n + 1):
            outcome = self._body.outcome_of("approval", f"call:{n}")
            decision = approved(outcome.resolution) if isinstance(outcome, AwaitEventOutcome) else None
            if decision is not None and decision.args is not None:
                changed = msgspec.json.encode(decision.args).decode()
                told.append(f"{decision.by} changed the arguments of call {n} ({self._tool(n)}) to {changed}.")
        return told

    def _tool(self, n: int) -> str:
        return self._body.controller.journal.tool_of(self._body.place.part("step", f"call:{n}")) or "a tool"


def _shown(value: object) -> str:
    """A value that is no JSON, as text. A number may have too many digits for that, and a list be too deep."""
    try:
        return repr(value)[:_SHOWN_CHARS]
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__} that is too large to be shown"


def _told(outcome: ExecCodeOutcome) -> Told | Failure:
    if outcome.error is not None:
        try:
            return msgspec.json.decode(outcome.error, type=Failure)
        except msgspec.MsgspecError:  # redacted
            return Failure("program_failed", outcome.error)
    return msgspec.convert(outcome.response or {}, Told)
