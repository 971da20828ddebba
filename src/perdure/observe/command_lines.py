"""Commands of the command line, as hints print them for a user to paste into a shell."""

from __future__ import annotations

import shlex


def command_line(command: str, *words: str, flags: str = "") -> str:
    """Return `perdure COMMAND WORDS`, in which each word is one argument, whatever its characters.

    `flags` are quoted already, and begin with a space if there are any.
    """
    quoted = " ".join(shlex.quote(word) for word in words)  # threat: S20
    if any(word.startswith("-") for word in words):  # else the command would read the word as its option
        return f"perdure {command}{flags} -- {quoted}"
    return f"perdure {command} {quoted}{flags}"
