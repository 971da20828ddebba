"""Where a program pauses, what it can be told there, and how else it can end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Call:
    """The program calls a function that it has not defined. `awaited`: it wants something that it can await, alone or
    together with others."""

    name: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    number: int
    awaited: bool


@dataclass(frozen=True, slots=True)
class Wish:
    """The program wants something of the machine it runs on: the time, randomness, a nap, a file."""

    what: str
    args: tuple[object, ...]
    number: int
    awaited: bool


@dataclass(frozen=True, slots=True)
class Lookup:
    """The program uses a name that it has not defined, without calling it."""

    name: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """The program can go on only when one of these, that it was promised, is there."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The program came to its end; `value` is that of its last expression."""

    value: object


Pause: TypeAlias = Call | Wish | Lookup | Waiting | Finished


@dataclass(frozen=True, slots=True)
class Returns:
    """The answer to a call: a value."""

    value: object


@dataclass(frozen=True, slots=True)
class Raises:
    """The answer to a call: an error, which the program can catch."""

    message: str
    kind: str = "RuntimeError"


class NoSuchThing:
    """The answer to a wish that is not granted, and to a name that nobody knows."""


class Later:
    """The answer to a call that is awaited: it gets its value when the program waits for it."""


Answer: TypeAlias = Returns | Raises | NoSuchThing

Broken = Literal["failed", "limit", "crashed"]


class ProgramEnded(Exception):
    """A program ended with an error: its own, a limit's, or that of its interpreter."""

    def __init__(self, how: Broken, message: str) -> None:
        super().__init__(message)
        self.how: Broken = how
        self.message = message


class Unloadable(Exception):
    """What was kept of a program is of no use here."""
