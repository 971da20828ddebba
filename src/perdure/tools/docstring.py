"""Parser for docstrings in Google style: the description of a tool and of each argument."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

_ARGUMENTS = frozenset({"args", "arguments", "parameters", "params"})
_OTHERS = frozenset(
    {"attributes", "example", "examples", "note", "notes", "raises", "references", "return", "returns", "see also"}
    | {"todo", "warning", "warnings", "warns", "yield", "yields"}
)
_HEADING = re.compile(r"^(\w[\w ]*):\s*$")
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Explained:
    """The parts of a docstring."""

    description: str = ""
    arguments: dict[str, str] = field(default_factory=dict[str, str])


def explain(doc: str | None) -> Explained:
    """Return the text before the first section, and the entries of `Args:`."""
    description: list[str] = []
    entries: list[str] = []
    section = ""
    for line in inspect.cleandoc(doc or "").splitlines():
        if heading := _heading(line):
            section = heading
        elif not section:
            description.append(line)
        elif section in _ARGUMENTS:
            entries.append(line)
    return Explained("\n".join(description).strip(), _arguments(entries))


def _heading(line: str) -> str:
    found = _HEADING.match(line)
    name = found.group(1).lower() if found else ""
    return name if name in _ARGUMENTS or name in _OTHERS else ""


def _arguments(lines: list[str]) -> dict[str, str]:
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    outermost = min(indents, default=0)
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        entry = _ENTRY.match(line[outermost:])  # deeper lines start with a space and are no entries
        if entry:
            current = found.setdefault(entry.group(1), [])
            current.append(entry.group(2).strip())
        else:
            current.append(line.strip())
    return {name: " ".join(filter(None, texts)) for name, texts in found.items()}
