"""An operating-system command as a process: its log as a record, and the next step it owes. Pure.

Laws: a spawn is recorded durably before it happens. A command is spawned again only if it certainly never began. A
command whose end was not observed is lost: that is recorded, and it is never run again automatically. Signals go only
to the spawned process, never to another one that reuses its pid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from perdure.codec import Json, decode, encode
from perdure.ids import WorkerId
from perdure.vocab.records import ProcessEvent, Record
from perdure.vocab.registrations import (
    EventType,
    ExternalInput,
    ProcessFailure,
    ProcessOutput,
    ProcessSucceeded,
    ProcessWasAbandoned,
    ProcessWasCancelled,
    Registration,
)
from perdure.vocab.wire import Value

DEFINITION = "command:"
"""Prefix of the definitions of commands. The host that runs them follows; only its workers claim them."""
KIND = "command"

SPAWNING = "command.spawning"
NOT_SPAWNED = "command.not_spawned"
SPAWNED = "command.spawned"
OUTPUT = "command.output"
OUTPUT_CUT = "command.output_cut"
SIGNALLED = "command.signalled"
EXITED = "command.exited"
LOST = "command.lost"
EVENT_TYPES = tuple(
    EventType(name=name)
    for name in (SPAWNING, NOT_SPAWNED, SPAWNED, OUTPUT, OUTPUT_CUT, SIGNALLED, EXITED, LOST)
)  # fmt: skip

STREAMS = ("stdout", "stderr")
MAX_ATTEMPTS = 3
TAIL_CHARS = 2048

Signal = Literal["SIGTERM", "SIGKILL"]


class Command(Value, frozen=True):
    """A command as requested. An empty `cwd` is that of the worker.

    `inherit` names variables of the worker that the command gets beside the usual ones; `env` adds variables.
    """

    argv: tuple[str, ...]
    host: str
    cwd: str = ""
    env: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    inherit: tuple[str, ...] = ()
    grace_ms: int = 10_000
    keep_bytes: int = 262_144


class Spawning(Value, frozen=True):
    """An attempt to spawn the command: its run folder, the token that identifies the folder, and the boot id."""

    attempt: int
    folder: str
    token: str
    boot: str


class Spawned(Value, frozen=True):
    """The spawned process: its pid, its start time as reported by the kernel, and its supervisor."""

    attempt: int
    pid: int
    start: int
    supervisor: int = 0


class Signalled(Value, frozen=True):
    """A signal that is about to be sent: the time and the worker, which may have died before sending it."""

    at: int
    by: str


class CommandRecord(Value, frozen=True):
    """A command as a fold of its log. `taken` counts the bytes recorded of each output."""

    command: Command
    attempts: int = 0
    spawning: Spawning | None = None
    spawned: Spawned | None = None
    taken: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    tails: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    cut: tuple[str, ...] = ()
    signalled: dict[str, Signalled] = msgspec.field(default_factory=dict[str, Signalled])
    exit: dict[str, Json] | None = None


# --- observations of the command on its machine


@dataclass(frozen=True, slots=True)
class NotBegun:
    """The command certainly never began, and this attempt never will begin it."""


@dataclass(frozen=True, slots=True)
class StartingCommand:
    """The supervisor is about to start the command."""


@dataclass(frozen=True, slots=True)
class Alive:
    """The command is running."""

    pid: int
    start: int
    supervisor: int


@dataclass(frozen=True, slots=True)
class Ending:
    """The command has ended, and its supervisor is about to report how."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The command ended: with an exit code, by a signal, or with an error if it could not be executed."""

    was: Alive
    exit_code: int | None = None
    signal: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """The command is gone, and its end was not observed."""

    why: str


Sight: TypeAlias = NotBegun | StartingCommand | Alive | Ending | Exited | Gone


# --- owed steps


@dataclass(frozen=True, slots=True)
class Spawn:
    """Spawn the command in this attempt."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RecordFirst:
    """Record this event before anything else."""

    event: ProcessEvent


@dataclass(frozen=True, slots=True)
class Send:
    """Signal the command's process group."""

    signal: Signal
    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class Over:
    """Record the end of the command."""

    event: ProcessEvent | None
    output: ProcessOutput


@dataclass(frozen=True, slots=True)
class CommandWait:
    """Do nothing until this time or the next event."""

    until: int | None = None


Due: TypeAlias = Spawn | RecordFirst | Send | Over | CommandWait


def command_of(registration: Registration) -> Command | None:
    """Return the command of a process, or None for any other process."""
    match registration.input:
        case ExternalInput(metadata={"command": given}) if registration.definition.startswith(DEFINITION):
            return decode(encode(given), Command)
        case _:
            return None


def fold(record: CommandRecord, fact: Record) -> CommandRecord:
    """Fold one record."""
    if not isinstance(fact, ProcessEvent):
        return record
    payload = fact.payload
    said = cast("dict[str, Json]", payload) if isinstance(payload, dict) else {}
    match fact.event:
        case "command.spawning":
            spawning = msgspec.convert(said, Spawning)
            return replace(record, spawning=spawning, spawned=None, attempts=spawning.attempt)
        case "command.not_spawned":
            return replace(record, spawning=None)
        case "command.spawned":
            return replace(record, spawned=msgspec.convert(said, Spawned))
        case "command.output":
            return _printed(record, str(said["stream"]), int(said["offset"]) + int(said["size"]), str(said["text"]))
        case "command.output_cut":
            return replace(record, cut=(*record.cut, str(said["stream"])))
        case "command.signalled":
            asked = Signalled(at=int(said["at"]), by=str(said["by"]))
            return replace(record, signalled={**record.signalled, str(said["signal"]): asked})
        case "command.exited":
            return replace(record, exit=said)
        case _:
            return record


def fold_all(command: Command, facts: Iterable[Record]) -> CommandRecord:
    """Fold a whole log."""
    record = CommandRecord(command=command)
    for fact in facts:
        record = fold(record, fact)
    return record


def _printed(record: CommandRecord, stream: str, end: int, text: str) -> CommandRecord:
    tail = (record.tails.get(stream, "") + text)[-TAIL_CHARS:]
    return replace(
        record,
        taken={**record.taken, stream: end},
        tails={**record.tails, stream: tail},
    )


def due(record: CommandRecord, sight: Sight | None, *, cancel: str | None, now: int, worker: WorkerId) -> Due:
    """Return the next step of this worker for a command.

    `sight` is the latest observation (None before the first attempt). `cancel` is the reason of a cancel request, if
    any.
    """
    if record.spawning is None or sight is None:
        if cancel is not None:
            return Over(None, ProcessWasCancelled(reason=cancel))
        if record.attempts >= MAX_ATTEMPTS:
            message = f"the command could not be started in {record.attempts} attempts; it never ran"
            return Over(None, ProcessFailure(code="command_not_spawned", message=message))
        return Spawn(record.attempts + 1)
    attempt = record.spawning.attempt
    match sight:
        case NotBegun():
            return RecordFirst(_event(NOT_SPAWNED, attempt, {"attempt": attempt}))
        case StartingCommand() | Ending():
            return CommandWait()
        case Alive(pid=pid, start=start) if record.spawned is not None:
            return CommandWait() if cancel is None else _stop(record, pid, start, now, worker)
        case Exited() if record.spawned is not None:
            return _exited(record, sight, attempt, cancel)
        case Alive() | Exited():
            was = sight if isinstance(sight, Alive) else sight.was
            spawned = Spawned(attempt=attempt, pid=was.pid, start=was.start, supervisor=was.supervisor)
            return RecordFirst(_event(SPAWNED, attempt, msgspec.to_builtins(spawned)))
        case Gone(why=why):
            output = ProcessWasAbandoned(reason=f"lost: {why}")
            return Over(_event(LOST, attempt, {"why": why}), output)


def _stop(record: CommandRecord, pid: int, start: int, now: int, worker: WorkerId) -> Due:
    """Return the next signal: SIGTERM, then SIGKILL after the grace period.

    A worker repeats signals recorded by another one.
    """
    asked, killed = record.signalled.get("SIGTERM"), record.signalled.get("SIGKILL")
    if killed is not None:
        return CommandWait() if killed.by == worker else Send("SIGKILL", pid, start)
    if asked is None or asked.by != worker:
        return Send("SIGTERM", pid, start)
    last_at = asked.at + record.command.grace_ms
    return Send("SIGKILL", pid, start) if now >= last_at else CommandWait(last_at)


def _exited(record: CommandRecord, seen: Exited, attempt: int, cancel: str | None) -> Over:
    said: dict[str, Json] = {"attempt": attempt}
    if seen.error:
        said["error"] = seen.error
    elif seen.signal is not None:
        said["signal"] = seen.signal
    else:
        said["exit_code"] = seen.exit_code
    event = _event(EXITED, attempt, said)
    tails: dict[str, Json] = {stream: record.tails.get(stream, "") for stream in STREAMS}
    if record.signalled and cancel is not None:
        return Over(event, ProcessWasCancelled(reason=cancel))
    if seen.error:
        return Over(event, ProcessFailure(code="command_not_executed", message=seen.error, failure_class="declared"))
    if seen.signal is not None:
        message = f"the command was ended by signal {seen.signal}"
        raw: Json = {"signal": seen.signal, **tails}
        return Over(event, ProcessFailure(code="command_killed", message=message, failure_class="declared", raw=raw))
    if seen.exit_code:
        message = f"the command ended with exit code {seen.exit_code}"
        raw = {"exit_code": seen.exit_code, **tails}
        return Over(event, ProcessFailure(code="command_failed", message=message, failure_class="declared", raw=raw))
    return Over(event, ProcessSucceeded(value={"exit_code": 0, **tails}))


def signalled(signal: Signal, pid: int, *, by: WorkerId, now: int) -> ProcessEvent:
    """Return the event of a signal about to be sent."""
    return ProcessEvent(
        event=SIGNALLED, payload={"signal": signal, "pid": pid, "at": now, "by": by}, replay=f"{signal}:{by}"
    )  # fmt: skip


def spawning(new: Spawning) -> ProcessEvent:
    """Return the event of a spawn about to happen."""
    return _event(SPAWNING, new.attempt, msgspec.to_builtins(new))


def printed(stream: str, offset: int, size: int, text: str) -> ProcessEvent:
    """Return the event of a piece of output: bytes from `offset` on, as text."""
    payload: Json = {"stream": stream, "offset": offset, "size": size, "text": text}
    return ProcessEvent(event=OUTPUT, payload=payload, replay=f"{stream}:{offset}")


def cut_at(stream: str, offset: int) -> ProcessEvent:
    """Return the event that no more of an output is stored."""
    return ProcessEvent(event=OUTPUT_CUT, payload={"stream": stream, "offset": offset}, replay=stream)


def _event(name: str, attempt: int, payload: Mapping[str, Json]) -> ProcessEvent:
    return ProcessEvent(event=name, payload=dict(payload), replay=str(attempt))
