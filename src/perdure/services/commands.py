"""What a tool or a program may ask for when it wants a command of the operating system to run, checked at the edge."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.processes.commands import Command
from perdure.services.os_commands import can_run_commands

MAX_BYTES = 65_536
"""Of all words and variables together; a command that needs more reads a file."""
KEEP_BYTES = 262_144
MAX_KEPT_BYTES = 4_194_304
GRACE_S = 10.0
SHELL = "/bin/sh"


class StartedCommand(Protocol):
    """A command that was registered, wherever it runs."""

    @property
    def id(self) -> str:
        """The id of its process."""
        ...

    @property
    def json(self) -> dict[str, Json]:
        """Its handle as a value that may be stored or sent."""
        ...

    async def result(self, timeout: float | str | None = None) -> Json:
        """Its exit code and the end of what it printed, once it is over."""
        ...

    async def output(self, stream: str = "stdout") -> str:
        """What it has printed so far, as far as it is kept."""
        ...

    async def cancel(self, reason: str = "") -> bool:
        """Ask it to end."""
        ...


class Commands(Protocol):
    """Where the tools of a session register commands."""

    async def start(self, command: Command, *, id: str, label: str, session: str, tell: bool) -> StartedCommand:
        """Register it; the same again is the same one."""
        ...

    @property
    def host(self) -> str:
        """The machine whose commands these are."""
        ...


def checked(
    argv: str | Sequence[str],
    *,
    host: str,
    shell: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    grace_ms: int,
    keep_bytes: int,
) -> Command:
    """A command that can be run on this machine, as far as that can be known before.

    Raises:
        Error: `command_invalid`, `command_unknown`, `command_folder_unknown`, `input_too_large`.
    """
    if not can_run_commands():
        raise _invalid("this platform does not tell when a process began", "run the worker on Linux")
    words = _words(argv, shell=shell)
    variables = _variables(env)
    folder = _folder(cwd)
    size = sum(len(text.encode()) for text in (*words, *variables, *variables.values()))
    if size > MAX_BYTES:
        raise Error(
            Code.INPUT_TOO_LARGE,
            f"the command is {size} bytes, its environment included",
            because=f"the limit is {MAX_BYTES}",
            hint="write it to a file, and pass its name",
        )
    if isinstance(keep_bytes, bool) or not isinstance(keep_bytes, int) or not 0 <= keep_bytes <= MAX_KEPT_BYTES:  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a caller gives
        raise _invalid(f"keep_bytes is from 0 to {MAX_KEPT_BYTES}, not {keep_bytes!r}")
    _check_program(words[0], folder, variables)
    return Command(argv=words, host=host, cwd=folder, env=variables, grace_ms=grace_ms, keep_bytes=keep_bytes)


def _words(argv: str | Sequence[str], *, shell: bool) -> tuple[str, ...]:
    if isinstance(argv, str):
        if not shell:
            raise _invalid("it is one text, and no shell takes it apart", 'pass ["make", "test"], or shell=True')
        if not argv.strip():
            raise _invalid("it is blank")
        return SHELL, "-c", _text(argv, "the command")
    if shell:
        raise _invalid("a shell takes one text, not a list", 'shell=True with "make test | tee log"')
    if not isinstance(argv, Sequence) or isinstance(argv, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a caller gives
        raise _invalid(f"it is a list of words, not {type(argv).__name__}")
    words = tuple(_text(word, f"word {number}") for number, word in enumerate(argv))
    if not words or not words[0].strip():
        raise _invalid("it names no program")
    return words


def _variables(env: Mapping[str, str] | None) -> dict[str, str]:
    if env is not None and not isinstance(env, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a caller gives
        raise _invalid(f"its environment is a mapping, not {type(env).__name__}")
    made: dict[str, str] = {}
    for name, value in (env or {}).items():
        key = _text(name, "the name of a variable")
        if not key or "=" in key:
            raise _invalid(f"{key!r} cannot be the name of a variable")
        made[key] = _text(value, f"the variable {key}")
    return made


def _folder(cwd: str | os.PathLike[str] | None) -> str:
    if cwd is None:
        return ""
    given: object = os.fspath(cwd) if isinstance(cwd, os.PathLike) else cwd
    folder = Path(_text(given, "its folder")).absolute()
    if not folder.is_dir():
        raise Error(
            Code.COMMAND_FOLDER_UNKNOWN, f"there is no folder {str(folder)!r}; nothing was registered", cwd=str(folder)
        )
    return str(folder)


def _check_program(program: str, folder: str, variables: Mapping[str, str]) -> None:
    path = variables.get("PATH", os.environ.get("PATH", os.defpath))
    at = os.path.join(folder, program) if os.sep in program else program
    if shutil.which(at, path=path) is None:
        raise Error(
            Code.COMMAND_UNKNOWN,
            f"there is no program {program!r} that could be run; nothing was registered",
            because="it is not there, not in PATH, or may not be executed",
            program=program,
        )


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise _invalid(f"{what} is text, not {type(value).__name__}")
    plain = str.__str__(value)
    if "\0" in plain:
        raise _invalid(f"{what} has a NUL in it")
    try:
        plain.encode()
    except UnicodeEncodeError:
        raise _invalid(f"{what} is not valid Unicode") from None
    return plain


def _invalid(because: str, hint: str = "") -> Error:
    return Error(
        Code.COMMAND_INVALID, "the command cannot be run; nothing was registered", because=because, hint=hint
    )  # fmt: skip
