"""Stored state of programs: a cache of the interpreter state, and a record of the variables left."""

from __future__ import annotations

import msgspec

from perdure.codec import Json
from perdure.codemode.promised import IssuedCall
from perdure.codemode.sites import Texts


class Packed(msgspec.Struct, frozen=True):
    """The state of a program at its n-th pause, or the variables it left (`n` is 0).

    `call` makes the bytes unique to one call, so that their release affects no other call. `asked` holds its calls in
    flight, and `choices` counts its choices among several answers.
    """

    call: str
    version: str
    n: int
    printed: str
    state: bytes
    texts: Texts = Texts()
    asked: tuple[IssuedCall, ...] = ()
    choices: int = 0
    called: tuple[str, ...] = ()


class Environment(msgspec.Struct, frozen=True):
    """The environment left by a program: its call, the previous program's call, the hash of its stored variables, and
    the tool functions it called."""

    call: str
    after: str = ""
    hash: str = ""
    called: tuple[str, ...] = ()


def environment_of(sync: Json) -> Environment | None:
    """Return the recorded environment of a program, or None."""
    try:
        return msgspec.convert(sync, Environment) if sync else None
    except msgspec.ValidationError:
        return None
