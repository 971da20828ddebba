"""A command of the operating system as a process: what it is, what became of it, and what is owed to it. Pure.

Laws: that a command is to be spawned is durable before it is. It is spawned again only if it is certain that it never
began. What nobody saw the end of has departed: that is told, and it is never run again by itself. Only the process
that was spawned is signalled, never one that got its number.
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
    ProcessWasAbandoned,
    ProcessWasCancelled,
    Registration,
    Succeeded,
)
from perdure.vocab.wire import Value

DEFINITION = "command:"
"""What the definitions of commands begin with; the machine that runs them follows, and only its workers claim them."""
KIND = "command"

SPAWNING = "command.spawning"
NOT_SPAWNED = "command.not_spawned"
SPAWNED = "command.spawned"
OUTPUT = "command.output"
OUTPUT_CUT = "command.output_cut"
SIGNALLED = "command.signalled"
EXITED = "command.exited"
DEPARTED = "command.departed"
EVENT_TYPES = tuple(
    EventType(name=name)
    for name in (SPAWNING, NOT_SPAWNED, SPAWNED, OUTPUT, OUTPUT_CUT, SIGNALLED, EXITED, DEPARTED)
)  # fmt: skip

STREAMS = ("stdout", "stderr")
MAX_ATTEMPTS = 3
TAIL_CHARS = 2048

Signal = Literal["SIGTERM", "SIGKILL"]


class Command(Value, frozen=True):
    """A command as it was asked for. An empty `cwd` is that of the worker; `env` is added to its environment."""

    argv: tuple[str, ...]
    host: str
    cwd: str = ""
    env: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    grace_ms: int = 10_000
    keep_bytes: int = 262_144


class Spawning(Value, frozen=True):
    """An attempt to spawn it: where its run folder is, the token by which that is known, and in which boot."""

    attempt: int
    folder: str
    token: str
    boot: str


class Spawned(Value, frozen=True):
    """It was spawned: the process, the moment it began as the kernel tells it, and who sees its end."""

    attempt: int
    pid: int
    start: int
    supervisor: int = 0


class Signalled(Value, frozen=True):
    """It was asked to end: when, and by which worker. That one may have died before it did it."""

    at: int
    by: str


class CommandRecord(Value, frozen=True):
    """What is known of a command: a fold of its log. `taken` is how many bytes of each output are in it."""

    command: Command
    attempts: int = 0
    spawning: Spawning | None = None
    spawned: Spawned | None = None
    taken: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    tails: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    cut: tuple[str, ...] = ()
    signalled: dict[str, Signalled] = msgspec.field(default_factory=dict[str, Signalled])
    exit: dict[str, Json] | None = None


# --- what a look at the machine may find


@dataclass(frozen=True, slots=True)
class NotBegun:
    """It is certain that the command never began, and that this attempt never will."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Its supervisor is about to begin it."""


@dataclass(frozen=True, slots=True)
class Alive:
    """It runs."""

    pid: int
    start: int
    supervisor: int


@dataclass(frozen=True, slots=True)
class Ending:
    """It is over, and its supervisor is about to say how."""


@dataclass(frozen=True, slots=True)
class Exited:
    """It is over: with an exit code, by a signal, or it could not be executed at all."""

    was: Alive
    exit_code: int | None = None
    signal: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """It is not there any more, and nobody saw how it ended."""

    why: str


Sight: TypeAlias = NotBegun | Beginning | Alive | Ending | Exited | Gone


# --- what is owed


@dataclass(frozen=True, slots=True)
class Spawn:
    """Spawn it, as this attempt."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Note:
    """Record this first."""

    event: ProcessEvent


@dataclass(frozen=True, slots=True)
class Send:
    """Signal its process group."""

    signal: Signal
    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class Over:
    """Record how it ended."""

    event: ProcessEvent | None
    output: ProcessOutput


@dataclass(frozen=True, slots=True)
class Wait:
    """There is nothing to do before this moment, unless something happens."""

    until: int | None = None


Due: TypeAlias = Spawn | Note | Send | Over | Wait


def command_of(registration: Registration) -> Command | None:
    """The command that a process is; None if it is something else."""
    match registration.input:
        case ExternalInput(metadata={"command": given}) if registration.definition.startswith(DEFINITION):
            return decode(encode(given), Command)
        case _:
            return None


def fold(record: CommandRecord, fact: Record) -> CommandRecord:
    """Fold one fact."""
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
    """The fold of a whole log."""
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
    """What this worker owes to a command, given what was just seen of it (None before the first attempt). `cancel` is
    the reason for which its end was asked for, if it was."""
    if record.spawning is None or sight is None:
        if cancel is not None:
            return Over(None, ProcessWasCancelled(reason=cancel))
        if record.attempts >= MAX_ATTEMPTS:
            message = f"the command could not be begun in {record.attempts} attempts; it never ran"
            return Over(None, ProcessFailure(code="command_not_spawned", message=message))
        return Spawn(record.attempts + 1)
    attempt = record.spawning.attempt
    match sight:
        case NotBegun():
            return Note(_event(NOT_SPAWNED, attempt, {"attempt": attempt}))
        case Beginning() | Ending():
            return Wait()
        case Alive(pid=pid, start=start) if record.spawned is not None:
            return Wait() if cancel is None else _stop(record, pid, start, now, worker)
        case Exited() if record.spawned is not None:
            return _exited(record, sight, attempt, cancel)
        case Alive() | Exited():
            was = sight if isinstance(sight, Alive) else sight.was
            spawned = Spawned(attempt=attempt, pid=was.pid, start=was.start, supervisor=was.supervisor)
            return Note(_event(SPAWNED, attempt, msgspec.to_builtins(spawned)))
        case Gone(why=why):
            output = ProcessWasAbandoned(reason=f"departed: {why}")
            return Over(_event(DEPARTED, attempt, {"why": why}), output)


def _stop(record: CommandRecord, pid: int, start: int, now: int, worker: WorkerId) -> Due:
    """Ask it politely first. What another worker said that it sends, this one sends too."""
    asked, killed = record.signalled.get("SIGTERM"), record.signalled.get("SIGKILL")
    if killed is not None:
        return Wait() if killed.by == worker else Send("SIGKILL", pid, start)
    if asked is None or asked.by != worker:
        return Send("SIGTERM", pid, start)
    last_at = asked.at + record.command.grace_ms
    return Send("SIGKILL", pid, start) if now >= last_at else Wait(last_at)


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
    return Over(event, Succeeded(value={"exit_code": 0, **tails}))


def signalled(signal: Signal, pid: int, *, by: WorkerId, now: int) -> ProcessEvent:
    """That it is being signalled."""
    return ProcessEvent(
        event=SIGNALLED, payload={"signal": signal, "pid": pid, "at": now, "by": by}, replay=f"{signal}:{by}"
    )  # fmt: skip


def spawning(new: Spawning) -> ProcessEvent:
    """That it is being spawned."""
    return _event(SPAWNING, new.attempt, msgspec.to_builtins(new))


def printed(stream: str, offset: int, size: int, text: str) -> ProcessEvent:
    """A piece of what it printed: bytes from `offset` on, as text."""
    payload: Json = {"stream": stream, "offset": offset, "size": size, "text": text}
    return ProcessEvent(event=OUTPUT, payload=payload, replay=f"{stream}:{offset}")


def cut_at(stream: str, offset: int, path: str) -> ProcessEvent:
    """That no more of an output is kept."""
    return ProcessEvent(
        event=OUTPUT_CUT, payload={"stream": stream, "offset": offset, "file": path}, replay=stream
    )  # fmt: skip


def _event(name: str, attempt: int, payload: Mapping[str, Json]) -> ProcessEvent:
    return ProcessEvent(event=name, payload=dict(payload), replay=str(attempt))
