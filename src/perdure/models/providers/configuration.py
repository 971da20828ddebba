"""The sections of `perdure.toml`, read once in a process and refused if other users can write the file."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import cast

from perdure.errors import Code, Error

FILE = "perdure.toml"

Section = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Configuration:
    """The content of the file when a process first read it, or the reason to refuse it."""

    sections: Mapping[str, Section] = field(default_factory=dict[str, Section])
    problem: tuple[Code, str, str, str] | None = None

    def section(self, family: str) -> Section:
        """Return the section of a provider; empty if there is none.

        Raises:
            Error: `invalid_argument` for an unreadable file, `config_untrusted` for one that others can write.
        """
        if self.problem is not None:
            code, message, because, hint = self.problem
            raise Error(code, message, because=because, hint=hint)
        return self.sections.get(family, {})


def configuration(file: Path | None = None) -> Configuration:
    """Return the configuration of a file, by default `perdure.toml` in the working directory.

    The first call in a process reads the file. A later change, also the creation of the file, has no effect: a command
    that an agent starts may be able to write it.
    """
    return _read_once((file or Path(FILE)).absolute())


@cache
def _read_once(file: Path) -> Configuration:
    try:
        with file.open("rb") as opened:
            if os.name == "posix" and stat.S_IMODE(os.fstat(opened.fileno()).st_mode) & 0o022:  # threat: S6
                return _refused(file)
            found = tomllib.loads(opened.read().decode())
    except FileNotFoundError:
        return Configuration()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        return Configuration(problem=(Code.INVALID_ARGUMENT, f"{file.name} cannot be read", str(problem), ""))
    providers = found.get("providers")
    sections = cast("dict[str, object]", providers) if isinstance(providers, dict) else {}
    return Configuration({name: _texts(section) for name, section in sections.items()})


def _texts(section: object) -> Section:
    if not isinstance(section, dict):
        return {}
    said = cast("dict[str, object]", section)
    return {name: value for name, value in said.items() if isinstance(value, str)}


def _refused(file: Path) -> Configuration:
    message, because = f"{file.name} is not used", "other users of this machine can write it"
    return Configuration(problem=(Code.CONFIG_UNTRUSTED, message, because, f"chmod go-w {FILE}"))
