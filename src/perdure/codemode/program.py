"""Durable execution of one program: it pauses and is stored at each call, and resumes there after a crash.

The source and the records of its calls are the truth. The stored interpreter state is a cache. If the cache is missing,
damaged or of another version, the program runs again from the top and its calls are answered from the log. A program
that then makes different requests fails with `replay_mismatch` before any new call.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import msgspec

from perdure.codec import Json, as_stored
from perdure.codemode.answers import Functions, Lost, Past
from perdure.codemode.asking import ProgramEntry
from perdure.codemode.kept import Environment, Packed, environment_of
from perdure.codemode.limits import MAX_TOLD_BYTES, ProgramLimits
from perdure.codemode.pauses import (
    Answer,
    Broken,
    Finished,
    Later,
    Pause,
    PendingCall,
    ProgramEnded,
    Returns,
    Unloadable,
)
from perdure.codemode.promised import Promised
from perdure.effects.controller import Begun, DispatchPolicy
from perdure.errors import Error
from perdure.tools.clients.programs import PastProgram
from perdure.tools.context import programs_of
from perdure.tools.durable import body_of
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
    """The result of a program for the model. The field names are visible to the model."""

    result: Json = None
    printed: str = ""
    note: str = ""


class ProgramFailure(msgspec.Struct, frozen=True):
    """The reason why a program did not finish, for the model."""

    code: str
    message: str


class ProgramPort(Protocol):
    """Answers a program's requests: by the tools of its turn, or from the log."""

    async def answer(self, pause: Pause) -> Answer | Later:
        """Return the answer to a pause."""
        ...

    async def first(self, numbers: Iterable[int]) -> tuple[int, Answer]:
        """Return the next answer that the program gets, of several in flight."""
        ...


async def drive(machine: Machine, pause: Pause, host: ProgramPort) -> Finished:
    """Answer a program from pause to pause until it ends."""
    while not isinstance(pause, Finished):
        match pause:
            case PendingCall(numbers=numbers):
                pause = await machine.deliver(*await host.first(numbers))
            case _:
                pause = await machine.answer(await host.answer(pause))
    return pause


class Program:
    """One entry of one program: a call of the model, in a resumable body."""

    def __init__(self, ctx: ToolContext[object], code: str, limits: ProgramLimits) -> None:
        self._ctx = ctx
        self._code = code
        self._limits = limits
        self._body = body_of(ctx)
        self._functions = Functions(ctx)
        self._after = ""
        self._trusts = True
        self._notes: list[str] = []
        self._n = 0

    async def run(self) -> Told | ProgramFailure:
        """Run the program and return its result or its failure."""
        policy = DispatchPolicy(effect="pure", record_start=True, keep_command=False)
        begun = self._body.open_part("code", "program", ExecCode(code=self._code), policy)
        if not isinstance(begun, Begun):
            return _decoded(into_exec_code(begun))
        try:
            outcome, left = await self._executed()
        except Unloadable as problem:
            log.warning("stored program unreadable, running again problem=%s", problem, extra=self._where)
            self._trusts = False
            outcome, left = await self._executed()
        programs_of(self._ctx).forget(self._outlived(left))
        if left is not None:
            sync = self._body.open_part(
                "environment", "left", SyncExecutionEnvironment(), DispatchPolicy(effect="pure")
            )
            if isinstance(sync, Begun):
                self._body.close_part(sync, SyncOutcome(sync=msgspec.to_builtins(left)))
        self._body.close_part(begun, outcome)
        return _decoded(outcome)

    @property
    def _where(self) -> dict[str, object]:
        return {"session": self._ctx.session_id, "call": self._ctx.call_id}

    async def _executed(self) -> tuple[ExecCodeOutcome, Environment | None]:
        from perdure.codemode.machine import Machine

        async with Machine(self._limits) as machine, Promised(self._body) as promised:
            asking = ProgramEntry(self._ctx, self._functions, self._limits, machine, promised)
            try:
                finished = await drive(machine, await self._enter(machine, asking), asking)
            except ProgramEnded as ended:
                # A limit stops the interpreter in the middle of an operation, so its variables are not stored.
                left = await self._left(machine, asking) if ended.how == "failed" else None
                await self._wait_for_the_rest(promised)
                self._n = asking.n
                printed = f"\nPrinted before:\n{machine.printed[-_SHOWN_CHARS:]}" if machine.printed else ""
                message = ended.message[: MAX_TOLD_BYTES // 4] + printed
                failure = ProgramFailure(_CODES[ended.how], " ".join((message, *self._edited())))
                return ExecCodeOutcome(error=msgspec.json.encode(failure).decode()), left
            left = await self._left(machine, asking)
            await self._wait_for_the_rest(promised)
            self._n = asking.n
            result = self._plain(finished.value)
            told = Told(result, machine.printed, " ".join(self._notices()))
            return ExecCodeOutcome(response=msgspec.to_builtins(told)), left

    async def _wait_for_the_rest(self, promised: Promised) -> None:
        """Wait for calls that the program made and did not await."""
        for asked, answer in await promised.rest():
            if asked.tool:
                became = answer.value if isinstance(answer, Returns) else getattr(answer, "message", "")
                shown = str(became)[:_SHOWN_OF_REST]
                self._notes.append(f"Call {asked.n} ({asked.tool}) was made and not awaited; it ended with: {shown}.")

    # --- start

    async def _enter(self, machine: Machine, asking: ProgramEntry) -> Pause:
        """Restore the program's state, or start it with the variables of earlier programs."""
        self._notes = []
        last = environment_of(programs_of(self._ctx).environment())
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

    async def _stood(self, machine: Machine, asking: ProgramEntry) -> Pause | None:
        """Restore the last stored state of an earlier entry. Return None if there is none or it cannot be read."""
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
        """Return the hashes that are obsolete once the program has ended: its states, and the variables before it."""
        hashes = [outcome.delivery for n in self._kept_at() if (outcome := self._checkpoint(n)) is not None]
        before = environment_of(programs_of(self._ctx).environment()) if left is not None else None
        return [*(hash for hash in hashes if isinstance(hash, str)), *([before.hash] if before else [])]

    async def _unpacked(self, hash: str, machine: Machine) -> Packed | None:
        """Return the state under a hash if its version fits. The interpreter does not check that."""
        data = await programs_of(self._ctx).fetch(hash) if hash else None
        try:
            packed = msgspec.msgpack.decode(data, type=Packed) if data else None
        except msgspec.MsgspecError:
            return None
        return packed if packed and packed.version == machine.version else None

    async def _rebuild(self, machine: Machine, last: Environment) -> None:
        """Rebuild the variables: run earlier programs again, answered from the log."""
        history = await programs_of(self._ctx).history()
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
            log.error("program variables lost problem=%s", problem, extra=self._where)
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

    # --- result

    async def _left(self, machine: Machine, asking: ProgramEntry) -> Environment | None:
        try:
            state = await machine.save()
        except ProgramEnded:
            return None
        if len(state) > self._limits.variables_bytes:
            most = self._limits.variables_bytes
            self._notes.append(f"Its variables were not stored: {len(state)} bytes exceed the limit of {most}.")
            return None
        packed = Packed(self._ctx.call_id, machine.version, 0, "", state, machine.texts)
        kept = programs_of(self._ctx).keep(msgspec.msgpack.encode(packed))
        return Environment(self._ctx.call_id, self._after, kept, tuple(asking.called))

    def _plain(self, value: object) -> Json:
        """Convert a program's value to JSON. Other values become text; long values are cut."""
        try:
            plain, data = as_stored(value, where="the result")
        except Error:
            return _shown(value)
        if len(data) <= MAX_TOLD_BYTES:
            return plain
        self._notes.append(f"Its result was cut: it has {len(data)} bytes. Only its variables contain the whole.")
        return data[:_SHOWN_CHARS].decode(errors="replace")

    def _notices(self) -> list[str]:
        """Return facts that the model needs even if the program caught the errors. Failures contain doubts anyway."""
        told = self._edited()
        for n in range(1, self._n + 1):
            if isinstance(outcome_of_call(self._body.outcome_of, f"call:{n}"), InDoubt):
                told.append(f"Call {n} ({self._tool(n)}) may or may not have taken effect, so do not repeat it.")
        return told

    def _edited(self) -> list[str]:
        """Return the notes, with the changes that approvers made to arguments."""
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
    """Convert a value that is not JSON to text. Huge numbers and deep lists have no text."""
    try:
        return repr(value)[:_SHOWN_CHARS]
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__} that is too large to be shown"


def _decoded(outcome: ExecCodeOutcome) -> Told | ProgramFailure:
    if outcome.error is not None:
        try:
            return msgspec.json.decode(outcome.error, type=ProgramFailure)
        except msgspec.MsgspecError:  # redacted
            return ProgramFailure("program_failed", outcome.error)
    return msgspec.convert(outcome.response or {}, Told)
