"""Supervisor of one command: runs it and records its exit. A separate program that uses only the standard library.

Usage: `python -I -S command_supervisor.py FOLDER`. The supervisor detaches itself, claims the folder, and starts the
command only after its start is recorded on disk. A reader that finds no `started.json` and gets the claim thus knows
that the command never started. The supervisor outlives the process that started it. Files appear atomically:
`claim.json`, `started.json`, `exit.json`.

The supervisor copies the output into files, up to a limit, and drops the rest. The kernel gives it every orphan of the
command, so all of the command's processes are its descendants. It ends after the last of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys

TYPE_CHECKING = False  # importing `typing` takes longer than this whole program
if TYPE_CHECKING:
    from collections.abc import Callable

CLAIM, STARTED, EXIT, SPEC = "claim.json", "started.json", "exit.json", "command.json"
OUTPUTS = ("stdout", "stderr")
CHUNK = 65_536
LARGEST_PIPE = 1_048_576
PR_SET_CHILD_SUBREAPER = 36


def start_of(pid: int) -> int:
    """Return the start of a process in ticks since boot; 0 for an unknown process or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def put(folder: str, name: str, value: object, *, once: bool = False) -> bool:
    """Write a file durably and atomically. With `once`, return False if it exists."""
    new = os.path.join(folder, f".{name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, json.dumps(value).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        if once:
            os.link(new, os.path.join(folder, name))
        else:
            os.replace(new, os.path.join(folder, name))
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
    sync(folder)
    return True


def sync(folder: str) -> None:
    """Make changes to a folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main(folder: str) -> int:
    """Start a supervisor, and return once it has started the command or failed to."""
    with open(os.path.join(folder, SPEC), "rb") as file:
        spec = json.load(file)
    argv, cwd, env = [str(word) for word in spec["argv"]], str(spec["cwd"]), {**os.environ, **spec["env"]}
    told, tell = os.pipe()
    if os.fork():
        os.close(tell)
        os.read(told, 1)  # the supervisor closes the other end after the decision, in every case
        return 0
    os.close(told)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    if not put(folder, CLAIM, {"pid": os.getpid(), "start": start_of(os.getpid()), "by": "supervisor"}, once=True):
        return 0
    supervise(folder, lambda pipes: become(pipes, argv, cwd, env), tell, int(spec["keep"]))
    return 0


def supervise(folder: str, command: Callable[[list[int]], None], tell: int, keep: int) -> None:
    """Start the command, copy its output, wait for its end, and record the exit."""
    adopt_orphans()  # threat: S18
    may_begin, let_begin = os.pipe()
    problem, report = os.pipe()
    pipes = [os.pipe() for _ in OUTPUTS]
    pid = os.fork()
    if not pid:
        os.close(let_begin)
        begin(lambda: command([write for _, write in pipes]), may_begin, report)
    for descriptor in (may_begin, report, *(write for _, write in pipes)):
        os.close(descriptor)
    put(folder, STARTED, {"pid": pid, "start": start_of(pid), "supervisor": os.getpid()})
    outputs = [OutputFile(folder, name, read, keep) for name, (read, _) in zip(OUTPUTS, pipes, strict=True)]
    os.write(let_begin, b"1")
    os.close(let_begin)
    os.close(tell)
    os.chdir("/")
    said = b""
    while piece := os.read(problem, 4096):  # closed by a successful exec
        said += piece
    code = watch(outputs, pid)
    if said:
        end: dict[str, object] = {"error": said.decode(errors="replace")}
    else:
        end = {"signal": -code} if code < 0 else {"exit_code": code}
    with contextlib.suppress(FileNotFoundError):  # the process was given up, and its folder removed
        put(folder, EXIT, end)
    watch(outputs)


def adopt_orphans() -> None:
    """Become the parent of the command's orphans, so that a daemon of the command can be found."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class OutputFile:
    """One output of the command: a pipe, and a file with its first `keep` bytes."""

    def __init__(self, folder: str, name: str, pipe: int, keep: int) -> None:
        self.pipe = pipe
        self.left = keep + 1  # one more byte shows that the output was cut
        self.file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.set_blocking(pipe, False)

    def take(self) -> int:
        """Copy what is in the pipe. Return the number of bytes, 0 if there are none, and -1 at its end."""
        try:
            data = os.read(self.pipe, CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            os.close(self.pipe)
            self.pipe = -1
            return -1
        kept = data[: self.left]
        try:
            written = os.write(self.file, kept)
            self.left = self.left - written if written == len(kept) else 0
        except OSError:  # the disk is full: the command goes on without its output
            self.left = 0
        return len(data)

    def empty(self) -> None:
        """Copy what was in the pipe when the command ended. A process that it left may go on writing."""
        taken = 0
        while self.pipe >= 0 and taken < LARGEST_PIPE and (size := self.take()) > 0:
            taken += size


def watch(outputs: list[OutputFile], pid: int = -1) -> int:
    """Copy output until process `pid` has ended, and return its exit code; or until all processes have ended."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, on_child)
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        while True:
            ended, alone = reap()
            if pid in ended:
                for output in outputs:
                    output.empty()
                return ended[pid]
            waiting = {output.pipe: output for output in outputs if output.pipe >= 0}
            if pid < 0 and alone and not waiting:
                return 0
            ready, _, _ = select.select([woken, *waiting], [], [])
            for descriptor in ready:
                if descriptor == woken:
                    os.read(woken, CHUNK)
                else:
                    waiting[descriptor].take()
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(wake)


def on_child(_number: int, _frame: object) -> None:
    """Do nothing: the handler makes Python write to the wakeup descriptor."""


def reap() -> tuple[dict[int, int], bool]:
    """Return the exit codes of ended children, and whether none is left."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return ended, False
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended, True


def begin(command: Callable[[], None], may_begin: int, report: int) -> None:
    """Become the command once allowed; runs in the child. If the supervisor dies first, the command never starts."""
    try:
        os.setsid()
        if os.read(may_begin, 1) == b"1":
            command()
    except OSError as problem:
        os.write(report, f"{problem.strerror}: {problem.filename}".encode()[:4000])
    finally:
        os._exit(127)


def become(pipes: list[int], argv: list[str], cwd: str, env: dict[str, str]) -> None:
    """Execute the command in place of this process, with its output in pipes."""
    for descriptor, pipe in zip((1, 2), pipes, strict=True):
        os.dup2(pipe, descriptor)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # restore the defaults that Python changed
        signal.signal(number, signal.SIG_DFL)
    if cwd:
        os.chdir(cwd)
    os.execvpe(argv[0], argv, env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
