"""What is kept of a program: a cache of where it stood, and a record of what it left."""

from __future__ import annotations

import msgspec

from perdure.codec import Json
from perdure.codemode.promised import Asked
from perdure.codemode.sites import Texts


class Packed(msgspec.Struct, frozen=True):
    """A program as it stood at its n-th pause, or the variables that it left (`n` is 0).

    `call` makes the bytes those of one call: who lets go of them takes them from nobody else. `asked` is what it had
    under way, and `choices` how often it had got one of several.
    """

    call: str
    version: str
    n: int
    printed: str
    state: bytes
    texts: Texts = Texts()
    asked: tuple[Asked, ...] = ()
    choices: int = 0
    called: tuple[str, ...] = ()


class Environment(msgspec.Struct, frozen=True):
    """What a program left: its call, the one before it whose variables it had, where its own are kept, and which
    functions of tools it called."""

    call: str
    after: str = ""
    hash: str = ""
    called: tuple[str, ...] = ()


def environment_of(sync: Json) -> Environment | None:
    """What was recorded of the environment that a program left."""
    try:
        return msgspec.convert(sync, Environment) if sync else None
    except msgspec.ValidationError:
        return None
