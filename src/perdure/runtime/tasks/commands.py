"""Commands of the operating system: their registration, and the driver that spawns and watches them.

A command runs under its own supervisor and needs no worker. The log stores its output, its signals and its end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from perdure.codec import brief, check_text, digest
from perdure.errors import Code, Error
from perdure.ids import StreamId, Tenant
from perdure.inbox.admit import Delivery
from perdure.inbox.items import Wake
from perdure.processes.commands import (
    DEFINITION,
    EVENT_TYPES,
    KIND,
    STREAMS,
    Command,
    CommandWait,
    Ending,
    Exited,
    Gone,
    Over,
    RecordFirst,
    Send,
    Sight,
    Spawn,
    Spawning,
    StartingCommand,
    command_of,
    cut_at,
    due,
    fold,
    fold_all,
    printed,
    signalled,
    spawning,
)
from perdure.processes.events import select
from perdure.processes.machine import ending
from perdure.processes.record import ProcessRecord
from perdure.processes.registration import check_process_id
from perdure.runtime.clock import short_id
from perdure.runtime.processes.driver import end_notification
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.processes.starting import register
from perdure.runtime.worker.owned import OwnedStream
from perdure.services.commands import checked
from perdure.services.os_commands import ExitWatch, RunFolder, host_id, send, this_boot
from perdure.store.shapes import Placement
from perdure.vocab.processes import SessionScope
from perdure.vocab.records import ProcessEvent, Record
from perdure.vocab.registrations import ExternalInput, Pointer, Provenance, Registration

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore
    from perdure.runtime.shared import Shared

log = logging.getLogger("perdure.runtime")

LOOK_S = 0.2
SOON_S = 0.02
"""Poll intervals of a driven command: while it prints, and while its supervisor is about to report."""
FIRST_PARK_MS = 2_000
LAST_PARK_MS = 60_000
"""The shortest and the longest time between polls of a parked command. If the kernel can report the exit, the worker
that parked the command notices it at once.
"""
EXIT = "command:exit"
ROOM = "command:room"
MAX_COMMANDS = 64
"""The limit of concurrent commands per worker, adopted ones included."""
MAX_CHARACTER_BYTES = 4


def folder_beside(store: object) -> Path:
    """Return the default root of run folders: beside the file of the store, or in the user's state directory."""
    path: object = getattr(store, "path", None)
    if isinstance(path, Path):
        return path.absolute().with_name(f"{path.name}-commands")
    state = os.environ.get("XDG_STATE_HOME", "")
    with suppress(RuntimeError):
        return Path(state if os.path.isabs(state) else Path.home() / ".local" / "state") / "perdure" / "commands"
    return Path(tempfile.gettempdir()) / f"perdure-commands-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class RuntimeCommands:
    """The commands of one tenant, registered on this machine."""

    runtime: RuntimeCore

    @property
    def host(self) -> str:
        """The machine that runs them."""
        return self.runtime.command_code.host

    async def start(
        self,
        command: Command,
        *,
        id: str,
        label: str = "",
        session: str = "",
        notify: bool = False,
        provenance: Provenance | None = None,
    ) -> ProcessHandle:
        """Register a command. The same command under the same id is the same process, even from another machine.

        Raises:
            Error: `process_conflict`, `invalid_id`.
        """
        asked = registration_of(command, id=id, label=label, session=session, notify=notify, provenance=provenance)
        try:
            return await register(self.runtime, asked)
        except Error as problem:
            if problem.code is not Code.PROCESS_CONFLICT:
                raise
            handle = self.runtime.get_process(id)
            if _elsewhere(asked, (await handle.info()).known) != asked:
                raise
            return handle


def registration_of(
    command: Command,
    *,
    id: str,
    label: str = "",
    session: str = "",
    notify: bool = False,
    provenance: Provenance | None = None,
) -> Registration:
    """Return a command's registration as a process. It belongs to `session`; with `notify`, its end is sent there."""
    scope = SessionScope(session_id=session) if session else None
    return Registration(
        process_id=id,
        definition=f"{DEFINITION}{command.host}",
        input=ExternalInput(metadata={"command": msgspec.to_builtins(command)}),
        recovery="externally_owned",
        event_types=EVENT_TYPES,
        provenance=provenance or Provenance(originator=scope),
        wake_target=scope,
        wake_on_end=notify and scope is not None,
        kind=KIND,
        label=check_text(label, where="the label") or " ".join(command.argv)[:80],
    )


def _elsewhere(asked: Registration, known: Registration) -> Registration:
    """Return the known registration, as if this machine had made it."""
    mine, theirs = command_of(asked), command_of(known)
    if mine is None or theirs is None:
        return known
    moved = msgspec.to_builtins(replace(theirs, host=mine.host))
    return replace(known, definition=asked.definition, input=ExternalInput(metadata={"command": moved}))


async def start_command(  # noqa: PLR0913 - its options, each one word
    rt: RuntimeCore,
    argv: str | Sequence[str],
    *,
    id: str | None,
    shell: bool,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
    inherit: Sequence[str],
    session: str | None,
    notify: bool,
    label: str,
    grace_ms: int,
    keep_bytes: int,
) -> ProcessHandle:
    """Check a command and register it."""
    host = rt.command_code.host
    command = checked(
        argv, host=host, shell=shell, cwd=cwd, env=env, inherit=inherit, grace_ms=grace_ms, keep_bytes=keep_bytes
    )
    name = short_id("cmd", rt.clock.wall_ms()) if id is None else check_process_id(id)
    return await RuntimeCommands(rt).start(command, id=name, label=label, session=session or "", notify=notify)


@dataclass(slots=True)
class CommandCode:
    """The process code that watches the commands of this machine."""

    runtime: RuntimeCore
    root: Path
    host: str = field(default_factory=host_id)
    boot: str = field(default_factory=this_boot)
    watches: dict[StreamId, ExitWatch] = field(default_factory=dict[StreamId, ExitWatch])
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    limit: int = MAX_COMMANDS
    running: set[StreamId] = field(default_factory=set[StreamId])
    waiting: dict[StreamId, Callable[[], None]] = field(default_factory=dict[StreamId, Callable[[], None]])
    numbers: Iterator[int] = field(default_factory=count)

    @property
    def definitions(self) -> tuple[str, ...]:
        """The definition of commands on this machine."""
        return (f"{DEFINITION}{self.host}",)

    @property
    def place(self) -> Placement:
        """The queue and priority of commands."""
        return Placement()

    def watcher(
        self,
        record: ProcessRecord,
        facts: Sequence[Record],
        tenant: Tenant,
        owned: OwnedStream,
        shared: Shared,
        stopping: Callable[[], bool],
    ) -> CommandDriver:
        """Return the driver of one command."""
        return CommandDriver(self, record, facts, tenant, owned, shared, stopping)

    async def clean_up(self, record: ProcessRecord, facts: Sequence[Record], stream: StreamId) -> None:
        """Release the slot of an ended command, and remove its folder."""
        self.running.discard(stream)
        if self.waiting:
            self.waiting.pop(next(iter(self.waiting)))()
        command = command_of(record.known)
        state = None if command is None else fold_all(command, facts)
        if state is None or state.spawning is None:
            return
        await asyncio.to_thread(RunFolder.of(state.spawning).remove)

    def has_capacity(self, stream: StreamId) -> bool:
        """Reserve one of this worker's command slots, if one is free."""
        if stream not in self.running and len(self.running) >= self.limit:
            return False
        self.running.add(stream)
        return True

    def wait_for_capacity(self, stream: StreamId, attempt: int) -> None:
        """Wake a parked command when a slot becomes free."""
        self.waiting[stream] = lambda: self._soon(stream, f"{ROOM}:{attempt}:{next(self.numbers)}")

    def _soon(self, stream: StreamId, key: str) -> None:
        waking = asyncio.get_running_loop().create_task(self._wake(stream, key), name=f"perdure:command:{stream}")
        self.tasks.add(waking)
        waking.add_done_callback(self.tasks.discard)

    def watch_parked(self, stream: StreamId, pid: int, start: int, attempt: int) -> None:
        """Make a parked command claimable when its process exits."""

        def over() -> None:
            self.forget(stream)
            self.running.discard(stream)  # its next owner reserves the slot again
            self._soon(stream, f"{EXIT}:{attempt}")

        self.forget(stream)
        self.watches[stream] = ExitWatch(pid, start, over)

    async def _wake(self, stream: StreamId, key: str) -> None:
        now = self.runtime.clock.wall_ms()
        try:
            await self.runtime.store.admit(Delivery(stream, key, key, Wake(reason=key), now))
            self.runtime.notify(stream)
        except Error as problem:  # its timer makes it claimable later
            log.debug("command exit not delivered error=%s", problem)

    def forget(self, stream: StreamId) -> None:
        """Stop watching a parked command."""
        if (watch := self.watches.pop(stream, None)) is not None:
            watch.close()

    def close(self) -> None:
        """Stop watching all commands. The commands themselves go on."""
        for stream in tuple(self.watches):
            self.forget(stream)
        for task in self.tasks:
            task.cancel()


class CommandDriver:
    """The driver of one command, in one owned stream."""

    def __init__(
        self,
        code: CommandCode,
        record: ProcessRecord,
        facts: Sequence[Record],
        tenant: Tenant,
        owned: OwnedStream,
        shared: Shared,
        stopping: Callable[[], bool],
    ) -> None:
        command = command_of(record.known)
        assert command is not None
        self.record = record
        self.refusal: Error | None = None
        self._code = code
        self._tenant = tenant
        self._owned = owned
        self._shared = shared
        self._state = fold_all(command, facts)
        self._news = asyncio.Event()
        self._is_stopping = stopping
        self._veil = owned.redactor

    # --- notifications

    def on_record(self, fact: Record, record: ProcessRecord) -> None:
        """Take in a record that another writer appended to the log."""
        self.record = record
        self._news.set()

    def on_notify(self) -> None:
        """Do nothing: a command waits for no notification of the store."""

    async def poll(self) -> None:
        """Do nothing: a command waits for nothing in the store."""

    def refused(self, error: Error) -> None:
        """Stop after a refused append: another worker owns the stream, or the process has ended."""
        self.refusal = error
        self._news.set()

    def forbid_starts(self) -> None:
        """Stop watching, because the worker stops."""
        self._news.set()

    def abandon(self) -> None:
        """Stop watching. The command goes on."""
        self._code.forget(self._owned.stream)
        self._code.running.discard(self._owned.stream)

    async def drain(self) -> None:
        """Stop watching. The command needs no worker."""
        self.abandon()

    # --- the loop

    async def run(self) -> bool:
        """Watch the command. Return True once its end is durable, False once it is durably parked.

        Raises:
            Error: why the store refused an append.
        """
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + self._shared.lounge.idle_timeout_s
        self._code.forget(self._owned.stream)
        self._code.waiting.pop(self._owned.stream, None)
        if self._state.spawning is not None:
            self._code.running.add(self._owned.stream)
        while True:
            self._news.clear()
            if self.refusal:
                raise self.refusal
            sight = await self._sight()
            await self._take_output(all=isinstance(sight, Exited | Gone))
            now, worker = self._shared.clock.wall_ms(), self._shared.worker
            match due(self._state, sight, cancel=self._cancel, now=now, worker=worker):
                case Spawn(attempt=attempt):
                    if not self._code.has_capacity(self._owned.stream):
                        return await self._wait_for_room(attempt)
                    await self._spawn(attempt)
                case RecordFirst(event=event):
                    await self._note(event)
                case Send() as asked:
                    await self._send(asked)
                case Over() as over:
                    await self._end_escaped()
                    await self._end(over)
                    return True
                case CommandWait(until=until):
                    over = self._is_stopping() or loop.time() >= patient_until
                    if over and not _is_about_to(sight) and not self._news.is_set():
                        return await self._park(until)
                    await self._pause(sight, until)

    @property
    def _cancel(self) -> str | None:
        if self.record.cancel is None:
            return None
        reason = select(Pointer(path="/reason"), self.record.cancel.payload)
        return reason if isinstance(reason, str) else ""

    async def _sight(self) -> Sight | None:
        attempt = self._state.spawning
        if attempt is None:
            return None
        return await asyncio.to_thread(RunFolder.of(attempt).inspect, attempt.boot)

    async def _pause(self, sight: Sight | None, until: int | None) -> None:
        """Wait for a notification, the exit of the process, or the next poll of its output."""
        spawned, watch = self._state.spawned, None
        if spawned is not None and not _is_about_to(sight):
            watch = ExitWatch(spawned.pid, spawned.start, self._news.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(SOON_S if _is_about_to(sight) else LOOK_S):
                    await self._news.wait()
        finally:
            if watch is not None:
                watch.close()

    async def _wait_for_room(self, attempt: int) -> bool:
        """Park a command that has no slot. It is spawned later, here or by another worker of this machine."""
        self._code.wait_for_capacity(self._owned.stream, attempt)
        await self._owned.park((), self._shared.clock.wall_ms() + FIRST_PARK_MS)
        return False

    async def _park(self, until: int | None) -> bool:
        """Park the command until the next poll, or release it if the worker stops. Returns False, as for any parked
        process."""
        if self._is_stopping():
            self._owned.flush(lease="release")  # the next owner can claim it at once
            await self._owned.durable()
            return False
        now, spawned = self._shared.clock.wall_ms(), self._state.spawned
        again = min(max(FIRST_PARK_MS, (now - self.record.first_started_at) // 4), LAST_PARK_MS)
        if spawned is not None:
            self._code.watch_parked(self._owned.stream, spawned.pid, spawned.start, spawned.attempt)
        await self._owned.park((), now + again if until is None else min(until, now + again))
        return False

    # --- actions

    async def _note(self, *events: ProcessEvent) -> None:
        for event in events:
            self._state = fold(self._state, event)
            self._owned.submit(event)  # one by one: together they may exceed an append's limit
        await self._owned.durable()

    async def _spawn(self, attempt: int) -> None:
        """Record the start, then spawn. After a crash in between, the run folder shows how far the start came."""
        name = brief(digest((self._owned.stream, self.record.hash)))
        new = Spawning(
            attempt=attempt,
            folder=str(self._code.root / name / str(attempt)),
            token=secrets.token_hex(8),
            boot=self._code.boot,
        )
        folder = RunFolder.of(new)
        await asyncio.to_thread(folder.make, self._state.command)
        await self._note(spawning(new))
        if not self._owned.lease_live():
            await self._owned.reassert()
        first = folder.spawn(self._state.command.inherit)
        await asyncio.to_thread(folder.wait, first)

    async def _send(self, asked: Send) -> None:
        """Record the signal, then send it if the pid still belongs to that process."""
        now = self._shared.clock.wall_ms()
        await self._note(signalled(asked.signal, asked.pid, by=self._shared.worker, now=now))
        send(asked.signal, asked.pid, asked.start, self._code.boot)
        if self._state.spawning is not None:
            folder = RunFolder.of(self._state.spawning)
            await asyncio.to_thread(folder.send_to_escaped, asked.signal, asked.pid, self._code.boot)

    async def _end_escaped(self) -> None:
        """End the processes that a cancelled command left behind."""
        if self._state.signalled and self._cancel is not None and self._state.spawning is not None:
            await asyncio.to_thread(RunFolder.of(self._state.spawning).end_all, self._code.boot)

    async def _take_output(self, *, all: bool) -> None:
        """Append the new output to the log."""
        attempt = self._state.spawning
        if attempt is None:
            return
        folder, pieces = RunFolder.of(attempt), list[ProcessEvent]()
        for stream in STREAMS:
            pieces += await asyncio.to_thread(partial(self._pieces, folder, stream, all=all))
        if pieces:
            await self._note(*pieces)

    def _pieces(self, folder: RunFolder, stream: str, *, all: bool) -> list[ProcessEvent]:
        offset, keep, pieces = self._state.taken.get(stream, 0), self._state.command.keep_bytes, list[ProcessEvent]()
        while stream not in self._state.cut:
            room = keep - offset
            piece = folder.printed(stream, offset, room, self._veil, all=all) if room > 0 else None
            if piece is None:
                unshown = max(MAX_CHARACTER_BYTES, self._veil.longest)  # a part of a character, or of a secret
                if room < unshown and folder.has_more(stream, offset + max(0, room)):
                    pieces.append(cut_at(stream, offset))
                break
            size, text = piece
            pieces.append(printed(stream, offset, size, text))
            offset += size
        return pieces

    async def _end(self, over: Over) -> None:
        end = ending(self.record, over.output)
        events = () if over.event is None else (over.event,)
        self._owned.submit(*events, end, outbox=end_notification(self._shared, self._tenant, self.record, end))
        await self._owned.durable()


def _is_about_to(sight: Sight | None) -> bool:
    """Return whether the supervisor is about to report."""
    return isinstance(sight, StartingCommand | Ending)
