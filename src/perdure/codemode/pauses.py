"""Pauses of a program, the answers to them, and the abnormal ends of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function that the program has not defined.

    `awaited`: the program needs an awaitable, alone or together with others.
    """

    name: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    number: int
    awaited: bool


@dataclass(frozen=True, slots=True)
class Wish:
    """A request for a host service: time, randomness, a pause, a file."""

    what: str
    args: tuple[object, ...]
    number: int
    awaited: bool


@dataclass(frozen=True, slots=True)
class Lookup:
    """A use of an undefined name without a call."""

    name: str


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A wait for one of several answers in flight."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The normal end of a program. `value` is the value of its last expression."""

    value: object


Pause: TypeAlias = FunctionCall | Wish | Lookup | PendingCall | Finished


@dataclass(frozen=True, slots=True)
class Returns:
    """A value as the answer to a call."""

    value: object


@dataclass(frozen=True, slots=True)
class Raises:
    """An error as the answer to a call. The program can catch it."""

    message: str
    kind: str = "RuntimeError"


class NoSuchThing:
    """The answer to an unsupported request and to an unknown name."""


class Later:
    """The answer to an awaited call: its value is delivered when the program waits for it."""


Answer: TypeAlias = Returns | Raises | NoSuchThing

Broken = Literal["failed", "limit", "crashed"]


class ProgramEnded(Exception):
    """A program ended with an error: its own, a limit's, or the interpreter's."""

    def __init__(self, how: Broken, message: str) -> None:
        super().__init__(message)
        self.how: Broken = how
        self.message = message


class Unloadable(Exception):
    """The stored state of a program cannot be read here."""
