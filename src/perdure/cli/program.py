"""The words that start this program again, for commands that a user pastes into a shell."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path

from perdure.observe.command_lines import command_line

NAME = "perdure"
_COMMAND = re.compile(r"(?<!\S)'[^']*'|(?<![\w./-])perdure(?= [a-z-])")
"""The name at the beginning of a command, or a quoted word, in which the name means nothing."""


@cache
def program() -> str:
    """Return `perdure` if the shell finds this installation under that name, else the path that was typed."""
    typed = Path(sys.argv[0])
    as_module = typed.name == "__main__.py"
    script = Path(sys.executable).with_name(NAME) if as_module else typed
    found = shutil.which(NAME)
    if script == Path(NAME) or (found and script.exists() and script.samefile(found)):
        return NAME
    if as_module:
        return f"{shlex.quote(sys.orig_argv[0])} -m {NAME}"
    return shlex.quote(str(typed)) if typed.name == NAME else NAME


def own_command(command: str, *words: str, flags: str = "") -> str:
    """Return a command of this program, in which each word is one argument, whatever its characters."""
    return program() + command_line(command, *words, flags=flags).removeprefix(NAME)


def pasteable(text: str) -> str:
    """Replace the name of the program in the commands of a text."""
    return _COMMAND.sub(lambda found: program() if found[0] == NAME else found[0], text)
