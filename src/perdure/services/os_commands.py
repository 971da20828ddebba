"""Commands on this machine: the run folder of one, spawning it, and looking at what became of it.

A process is known by its number, the moment it began, and the boot in which that was; each alone may be another's.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from perdure.codec import Json
from perdure.processes.commands import (
    Alive,
    Beginning,
    Command,
    Ending,
    Exited,
    Gone,
    NotBegun,
    Sight,
    Signal,
    Spawning,
)
from perdure.services import command_supervisor as supervisor
from perdure.store.locks import boot_id

CHUNK_BYTES = 16_384
_TOKEN = "token"
_WORDS: dict[Signal, signal.Signals] = {"SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}


def host_id() -> str:
    """Names this machine, through its boots: `PERDURE_HOST`, or its name and what its installation is known by."""
    if named := os.environ.get("PERDURE_HOST", "").strip():
        return named
    name = platform.node() or "localhost"
    with contextlib.suppress(OSError):
        if known := Path("/etc/machine-id").read_text().strip():
            return f"{name}-{hashlib.sha256(known.encode()).hexdigest()[:8]}"
    return name


def this_boot() -> str:
    """Names what numbers of processes mean something in: this boot, and in a container only this one."""
    try:
        return f"{boot_id()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return boot_id()


def can_run_commands() -> bool:
    """Whether this platform tells when a process began."""
    return supervisor.start_of(os.getpid()) > 0


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where one attempt of a command leaves what it prints and how it ended."""

    path: Path
    token: str

    @staticmethod
    def of(spawning: Spawning) -> RunFolder:
        """The one that an attempt was given."""
        return RunFolder(Path(spawning.folder), spawning.token)

    def make(self, command: Command) -> None:
        """Lay it down, durably, before anybody is told of it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        spec = {"argv": list(command.argv), "cwd": command.cwd, "env": command.env}
        supervisor.put(str(self.path), supervisor.SPEC, spec)
        supervisor.put(str(self.path), _TOKEN, self.token)
        supervisor.sync(str(self.path.parent))

    def remove(self) -> None:
        """Take it away, with those of earlier attempts."""
        shutil.rmtree(self.path.parent, ignore_errors=True)

    def spawn(self) -> int:
        """Start a supervisor: the process to wait for, which ends once the command has begun, or has not."""
        script = os.path.abspath(supervisor.__file__)
        argv = [sys.executable, "-I", "-S", "-X", "utf8", script, str(self.path)]
        null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        return os.posix_spawn(argv[0], argv, os.environ, file_actions=null, setpgroup=0, setsigmask=())

    @staticmethod
    def wait(first: int) -> None:
        """Wait until that is decided."""
        os.waitpid(first, 0)

    # --- looking

    def look(self, boot: str) -> Sight:
        """What became of the attempt. Whoever looks and finds that nobody has begun it, makes sure that nobody will."""
        if self._read(_TOKEN) != self.token:
            return Gone("its run folder is not there any more")
        if (sight := self._ended_or_alive(boot)) is not None:
            return sight
        mine = {"pid": os.getpid(), "by": "watcher"}
        if supervisor.put(str(self.path), supervisor.CLAIM, mine, once=True):
            return NotBegun()
        claim = cast("dict[str, Json]", self._read(supervisor.CLAIM) or {})
        if claim.get("by") == "supervisor" and _is(claim.get("pid"), claim.get("start"), boot):
            return Beginning()
        return self._ended_or_alive(boot) or NotBegun()  # it may have begun it just before it died

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
        if (end := self._read(supervisor.EXIT)) is not None:  # written while we looked
            return _exited(was, cast("dict[str, Json]", end))
        return Gone("it is not there any more, and nobody saw how it ended")

    def _read(self, name: str) -> Json:
        try:
            return json.loads((self.path / name).read_bytes())
        except OSError:
            return None

    def printed(self, stream: str, offset: int, limit: int, *, all: bool) -> tuple[int, str] | None:
        """The next of an output: how many bytes, and the text they are. A character that is not whole yet is left for
        later, unless this is `all` there will be; what is no text becomes U+FFFD. None if there is nothing new."""
        try:
            with (self.path / stream).open("rb") as file:
                file.seek(offset)
                data = file.read(min(limit, CHUNK_BYTES))
                more = bool(file.read(1))
        except OSError:
            return None
        decoder = getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data, final=all and not more)
        size = len(data) - len(decoder.getstate()[0])
        return (size, text) if size else None

    def has_more(self, stream: str, offset: int) -> bool:
        """Whether more was printed than this."""
        try:
            return (self.path / stream).stat().st_size > offset
        except OSError:
            return False


def _is(pid: object, start: object, boot: str) -> bool:
    """Whether that very process is there."""
    return boot == this_boot() and isinstance(pid, int) and bool(start) and supervisor.start_of(pid) == start


def _exited(was: Alive, said: dict[str, Json]) -> Exited:
    return Exited(was, said.get("exit_code"), said.get("signal"), str(said.get("error", "")))


def send(word: Signal, pid: int, start: int, boot: str) -> bool:
    """Signal the group of that very process; False if it is not there."""
    if not _is(pid, start, boot):
        return False
    try:
        os.killpg(pid, _WORDS[word])
    except ProcessLookupError:
        return False
    return True


class ExitWatch:
    """Calls back once a process is over, without looking at it again and again; where the kernel can do that. If it is
    not there any more, at once."""

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
        except OSError:  # it cannot do that for us: whoever waits looks by itself
            return
        if supervisor.start_of(pid) != start:
            self._loop.call_soon(on_exit)
        else:
            self._loop.add_reader(self._descriptor, on_exit)

    def close(self) -> None:
        """Watch no longer."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
