"""Operating system commands on this machine: run folder, spawn, and inspection.

A process is identified by its number, its start time and its boot, because numbers and times are reused.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import shutil
import signal
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from perdure.codec import Json
from perdure.processes.commands import (
    Alive,
    Command,
    Ending,
    Exited,
    Gone,
    NotBegun,
    Sight,
    Signal,
    Spawning,
    StartingCommand,
)
from perdure.services import command_supervisor as supervisor
from perdure.services.secrets import Redactor
from perdure.store.locks import boot_id
from perdure.store.private import make_folder, own_folder

CHUNK_BYTES = 16_384
INHERITED = ("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL", "TERM")
"""Variables that every command inherits, with those that begin with `LC_`. Others may contain keys of the worker."""
ROUNDS = 1_000
_TOKEN = "token"
_WORDS: dict[Signal, signal.Signals] = {"SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}


def inherited(names: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables of this process that a command gets: the listed ones and `names`."""
    listed = {*INHERITED, *names}
    return {  # threat: S12
        name: value for name, value in os.environ.items() if name in listed or name.startswith("LC_")
    }


def host_id() -> str:
    """Return the id of this machine, stable across boots: `PERDURE_HOST`, or host name and machine id."""
    if named := os.environ.get("PERDURE_HOST", "").strip():
        return named
    name = platform.node() or "localhost"
    with contextlib.suppress(OSError):
        if known := Path("/etc/machine-id").read_text().strip():
            return f"{name}-{hashlib.sha256(known.encode()).hexdigest()[:8]}"
    return name


def this_boot() -> str:
    """Return the scope of process numbers: this boot and, in a container, its process namespace."""
    try:
        return f"{boot_id()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return boot_id()


def can_run_commands() -> bool:
    """Return True if this platform exposes process start times."""
    return supervisor.start_of(os.getpid()) > 0


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one attempt of a command, with its output and exit."""

    path: Path
    token: str

    @staticmethod
    def of(spawning: Spawning) -> RunFolder:
        """Return the folder of an attempt."""
        return RunFolder(Path(spawning.folder), spawning.token)

    def make(self, command: Command) -> None:
        """Create the folder durably, before its name is published."""
        own_folder(self.path.parent.parent)
        make_folder(self.path)
        spec = {"argv": list(command.argv), "cwd": command.cwd, "env": command.env, "keep": command.keep_bytes}
        supervisor.put(str(self.path), supervisor.SPEC, spec)
        supervisor.put(str(self.path), _TOKEN, self.token)
        supervisor.sync(str(self.path.parent))

    def remove(self) -> None:
        """Remove the folder, with those of earlier attempts."""
        shutil.rmtree(self.path.parent, ignore_errors=True)

    def spawn(self, inherit: Sequence[str] = ()) -> int:
        """Start a supervisor and return the pid of its first process.

        That process ends once the command has started or failed to. The supervisor and the command get the listed
        variables of this process, and `inherit`.
        """
        script = os.path.abspath(supervisor.__file__)
        argv = [sys.executable, "-I", "-S", "-X", "utf8", script, str(self.path)]
        null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        return os.posix_spawn(argv[0], argv, inherited(inherit), file_actions=null, setpgroup=0, setsigmask=())

    @staticmethod
    def wait(first: int) -> None:
        """Wait for the end of the first process."""
        os.waitpid(first, 0)

    def send_to_escaped(self, word: Signal, group: int, boot: str) -> bool:
        """Signal the command's processes that left its group. Return whether there are any."""
        found = [pid for pid, of in self._processes(boot) if of != group]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, _WORDS[word])
        return bool(found)

    def end_all(self, boot: str) -> None:
        """Kill everything that a cancelled command left, in groups and sessions of its own too.

        A process can fork while the list is read, so the list is read until it is empty.
        """
        for _ in range(ROUNDS):
            if not self.send_to_escaped("SIGKILL", 0, boot):
                return

    def _processes(self, boot: str) -> list[tuple[int, int]]:
        """Return the living processes of the command with their groups. All are descendants of its supervisor."""
        claim = cast("dict[str, Json]", self._read(supervisor.CLAIM) or {})
        if claim.get("by") != "supervisor" or not _is(claim.get("pid"), claim.get("start"), boot):
            return []
        return list(_descendants(int(claim["pid"])))

    # --- inspection

    def inspect(self, boot: str) -> Sight:
        """Return the state of the attempt. An attempt without a supervisor is claimed, so that it never starts."""
        if self._read(_TOKEN) != self.token:
            return Gone("the run folder is missing")
        if (sight := self._ended_or_alive(boot)) is not None:
            return sight
        mine = {"pid": os.getpid(), "by": "watcher"}
        if supervisor.put(str(self.path), supervisor.CLAIM, mine, once=True):
            return NotBegun()
        claim = cast("dict[str, Json]", self._read(supervisor.CLAIM) or {})
        if claim.get("by") == "supervisor" and _is(claim.get("pid"), claim.get("start"), boot):
            return StartingCommand()
        return self._ended_or_alive(boot) or NotBegun()  # the supervisor may have died just after the start

    def _ended_or_alive(self, boot: str) -> Sight | None:
        started = cast("dict[str, Json] | None", self._read(supervisor.STARTED))
        if started is None:
            return None
        was = Alive(int(started["pid"]), int(started["start"]), int(started["supervisor"]))
        if (end := self._read(supervisor.EXIT)) is not None:
            return _exited(was, cast("dict[str, Json]", end))
        if _is(was.pid, was.start, boot):
            return was
        claim = cast("dict[str, Json]", self._read(supervisor.CLAIM) or {})
        if _is(claim.get("pid"), claim.get("start"), boot):
            return Ending()
        if (end := self._read(supervisor.EXIT)) is not None:  # written during this inspection
            return _exited(was, cast("dict[str, Json]", end))
        return Gone("the process is gone without a recorded exit")

    def _read(self, name: str) -> Json:
        try:
            return json.loads((self.path / name).read_bytes())
        except OSError:
            return None

    def printed(self, stream: str, offset: int, limit: int, redactor: Redactor, *, all: bool) -> tuple[int, str] | None:
        """Return the size and text of the next piece of an output, or None if there is no new piece.

        An incomplete character, or what may be the beginning of a secret, stays for later, unless the output is
        complete (`all`). Invalid bytes become U+FFFD.
        """
        try:
            with (self.path / stream).open("rb") as file:
                file.seek(offset)
                data = file.read(min(limit, max(CHUNK_BYTES, 2 * redactor.longest)))
                more = bool(file.read(1))
        except OSError:
            return None
        decoder = getincrementaldecoder("utf-8")("replace")
        complete = all and not more
        text = decoder.decode(data, final=complete)
        size = len(data) - len(decoder.getstate()[0])
        end = len(text) if complete else redactor.safe_end(text)
        size -= len(text[end:].encode())
        return (size, redactor.text(text[:end])) if size else None

    def has_more(self, stream: str, offset: int) -> bool:
        """Return True if the output continues after the offset."""
        try:
            return (self.path / stream).stat().st_size > offset
        except OSError:
            return False


def _is(pid: object, start: object, boot: str) -> bool:
    """Return True if exactly this process is alive."""
    return boot == this_boot() and isinstance(pid, int) and bool(start) and supervisor.start_of(pid) == start


def _exited(was: Alive, said: dict[str, Json]) -> Exited:
    return Exited(was, said.get("exit_code"), said.get("signal"), str(said.get("error", "")))


def send(word: Signal, pid: int, start: int, boot: str) -> bool:
    """Signal the group of exactly this process. Return False if it has ended."""
    if not _is(pid, start, boot):
        return False
    try:
        os.killpg(pid, _WORDS[word])
    except ProcessLookupError:
        return False
    return True


def _descendants(of: int) -> Iterator[tuple[int, int]]:
    """Return the pids of a process's living descendants, with their process groups."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            fields = Path(f"/proc/{int(entry)}/stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] not in (b"Z", b"X"):
                children.setdefault(int(fields[1]), []).append((int(entry), int(fields[2])))
    found = list(children.get(of, ()))
    while found:
        pid, group = found.pop()
        yield pid, group
        found += children.get(pid, ())


class ExitWatch:
    """Calls back once a process has ended, without polling, where the kernel supports it.

    An ended process causes an immediate callback.
    """

    def __init__(self, pid: int, start: int, on_exit: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = -1
        if (opened := getattr(os, "pidfd_open", None)) is None:
            return
        try:
            self._descriptor = opened(pid)
        except ProcessLookupError:
            self._loop.call_soon(on_exit)
            return
        except OSError:  # not permitted here; the caller polls instead
            return
        if supervisor.start_of(pid) != start:
            self._loop.call_soon(on_exit)
        else:
            self._loop.add_reader(self._descriptor, on_exit)

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
