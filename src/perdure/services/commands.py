"""Requests to run operating system commands, validated at the edge."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.processes.commands import Command

MAX_BYTES = 65_536
"""Size limit in bytes for all arguments and variables. A command with more reads a file."""
KEEP_BYTES = 262_144
MAX_KEPT_BYTES = 4_194_304
GRACE_S = 10.0
SHELL = "/bin/sh"


class StartedCommand(Protocol):
    """A registered command, on any machine."""

    @property
    def id(self) -> str:
        """The id of its process."""
        ...

    def to_json(self) -> dict[str, Json]:
        """Return the command's handle as a JSON value."""
        ...

    async def result(self, timeout: float | str | None = None) -> Json:
        """Wait for the end and return the exit code with the end of the output."""
        ...

    async def output(self, stream: str = "stdout") -> str:
        """Return the stored output so far."""
        ...

    async def cancel(self, reason: str = "") -> bool:
        """Request the end of the command."""
        ...


class Commands(Protocol):
    """Registry of commands for the tools of a session."""

    async def start(self, command: Command, *, id: str, label: str, session: str, notify: bool) -> StartedCommand:
        """Register a command. An equal id gives the same command."""
        ...

    @property
    def host(self) -> str:
        """The machine that runs the commands."""
        ...


def checked(  # noqa: PLR0913 - the options of a command
    argv: str | Sequence[str],
    *,
    host: str,
    shell: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    inherit: Sequence[str] = (),
    grace_ms: int,
    keep_bytes: int,
) -> Command:
    """Validate a command for this machine, as far as possible in advance.

    Raises:
        Error: `command_invalid`, `command_unknown`, `command_folder_unknown`, `input_too_large`.
    """
    from perdure.services.os_commands import can_run_commands  # tools that start no command load none of it

    if not can_run_commands():
        raise _invalid("this platform does not expose process start times", "run the worker on Linux")
    words = _words(argv, shell=shell)
    variables, names = _variables(env), _names(inherit)
    folder = _folder(cwd)
    size = sum(len(text.encode()) for text in (*words, *names, *variables, *variables.values()))
    if size > MAX_BYTES:
        raise Error(
            Code.INPUT_TOO_LARGE,
            f"the command and its environment have {size} bytes",
            because=f"the limit is {MAX_BYTES}",
            hint="write the input to a file and pass its name",
        )
    if isinstance(keep_bytes, bool) or not isinstance(keep_bytes, int) or not 0 <= keep_bytes <= MAX_KEPT_BYTES:  # pyright: ignore[reportUnnecessaryIsInstance] - callers pass any type
        raise _invalid(f"keep_bytes must be 0 to {MAX_KEPT_BYTES}, not {keep_bytes!r}")
    _check_program(words[0], folder, variables)
    return Command(
        argv=words, host=host, cwd=folder, env=variables, inherit=names, grace_ms=grace_ms, keep_bytes=keep_bytes
    )


def _words(argv: str | Sequence[str], *, shell: bool) -> tuple[str, ...]:
    if isinstance(argv, str):
        if not shell:
            raise _invalid("a text needs a shell to split it", 'pass ["make", "test"], or shell=True')
        if not argv.strip():
            raise _invalid("the command is blank")
        return SHELL, "-c", _text(argv, "the command")
    if shell:
        raise _invalid("a shell takes one text, not a list", 'shell=True with "make test | tee log"')
    if not isinstance(argv, Sequence) or isinstance(argv, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - callers pass any type
        raise _invalid(f"the command must be a list of words, not {type(argv).__name__}")
    words = tuple(_text(word, f"word {number}") for number, word in enumerate(argv))
    if not words or not words[0].strip():
        raise _invalid("the first word must be a program")
    return words


def _variables(env: Mapping[str, str] | None) -> dict[str, str]:
    if env is not None and not isinstance(env, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers pass any type
        raise _invalid(f"env must be a mapping, not {type(env).__name__}")
    made: dict[str, str] = {}
    for name, value in (env or {}).items():
        key = _name(name)
        made[key] = _text(value, f"the variable {key}")
    return made


def _names(inherit: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(inherit, Sequence) or isinstance(inherit, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - callers pass any type
        raise _invalid(f"inherit must be a list of names, not {type(inherit).__name__}", 'inherit=["PYTHONPATH"]')
    return tuple(_name(name) for name in inherit)


def _name(name: object) -> str:
    key = _text(name, "the name of a variable")
    if not key or "=" in key:
        raise _invalid(f"invalid variable name {key!r}")
    return key


def _folder(cwd: str | os.PathLike[str] | None) -> str:
    if cwd is None:
        return ""
    given: object = os.fspath(cwd) if isinstance(cwd, os.PathLike) else cwd
    folder = Path(_text(given, "cwd")).absolute()
    if not folder.is_dir():
        raise Error(
            Code.COMMAND_FOLDER_UNKNOWN, f"unknown folder {str(folder)!r}; nothing was registered", cwd=str(folder)
        )
    return str(folder)


def _check_program(program: str, folder: str, variables: Mapping[str, str]) -> None:
    path = variables.get("PATH", os.environ.get("PATH", os.defpath))
    at = os.path.join(folder, program) if os.sep in program else program
    if shutil.which(at, path=path) is None:
        raise Error(
            Code.COMMAND_UNKNOWN,
            f"cannot execute {program!r}; nothing was registered",
            because="the program is missing, not in PATH, or not executable",
            program=program,
        )


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise _invalid(f"{what} must be text, not {type(value).__name__}")
    plain = str.__str__(value)
    if "\0" in plain:
        raise _invalid(f"{what} contains a NUL character")
    try:
        plain.encode()
    except UnicodeEncodeError:
        raise _invalid(f"{what} is not valid Unicode") from None
    return plain


def _invalid(because: str, hint: str = "") -> Error:
    return Error(
        Code.COMMAND_INVALID, "invalid command; nothing was registered", because=because, hint=hint
    )  # fmt: skip
