"""Supervisor of one command: runs it and records its exit. A separate program that uses only the standard library.

Usage: `python -I -S command_supervisor.py FOLDER`. The supervisor detaches itself, claims the folder, and starts the
command only after its start is recorded on disk. A reader that finds no `started.json` and gets the claim thus knows
that the command never started. The supervisor outlives the process that started it. Files appear atomically:
`claim.json`, `started.json`, `exit.json`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys

TYPE_CHECKING = False  # importing `typing` takes longer than this whole program
if TYPE_CHECKING:
    from collections.abc import Callable

CLAIM, STARTED, EXIT, SPEC = "claim.json", "started.json", "exit.json", "command.json"


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
    supervise(folder, lambda: become(folder, argv, cwd, env), tell)
    return 0


def supervise(folder: str, command: Callable[[], None], tell: int) -> None:
    """Start the command, wait for its end, and record the exit."""
    may_begin, let_begin = os.pipe()
    problem, report = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(let_begin)
        begin(command, may_begin, report)
    os.close(may_begin)
    os.close(report)
    put(folder, STARTED, {"pid": pid, "start": start_of(pid), "supervisor": os.getpid()})
    os.write(let_begin, b"1")
    os.close(let_begin)
    os.close(tell)
    os.chdir("/")
    said = b""
    while piece := os.read(problem, 4096):  # closed by a successful exec
        said += piece
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if said:
        put(folder, EXIT, {"error": said.decode(errors="replace")})
    else:
        put(folder, EXIT, {"signal": -code} if code < 0 else {"exit_code": code})


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


def become(folder: str, argv: list[str], cwd: str, env: dict[str, str]) -> None:
    """Execute the command in place of this process, with its output in files."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # restore the defaults that Python changed
        signal.signal(number, signal.SIG_DFL)
    if cwd:
        os.chdir(cwd)
    os.execvpe(argv[0], argv, env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
