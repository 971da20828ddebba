"""Which file system the sessions of a deployment get: made once, from what its host has."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeVar, cast

from perdure.errors import Code, Error
from perdure.services.files.protocol import SessionFileSystem

T = TypeVar("T")

DISABLED = "session filesystem is disabled"


@dataclass(frozen=True)
class SessionFileSystemFactoryContext:
    """What a host gives a factory to work with: one value of each type. Adding gives a new bag; the old one stays."""

    values: MappingProxyType[type[object], object] = field(default_factory=lambda: MappingProxyType({}))

    def with_(self, value: object, *, as_: type[object] | None = None) -> SessionFileSystemFactoryContext:
        """The same bag with one more value, under its type or the one it is said to be."""
        return SessionFileSystemFactoryContext(MappingProxyType({**self.values, as_ or type(value): value}))

    def get(self, kind: type[T]) -> T | None:
        """The value of that type; None if there is none."""
        return cast("T | None", self.values.get(kind))


class SessionFileSystemFactory(Protocol):
    """Makes the file system of a deployment. Derive from it to be named after your class, and not disabled."""

    def name(self) -> str:
        """What it is called in diagnostics."""
        return type(self).__name__

    def is_disabled(self) -> bool:
        """Whether sessions get no files."""
        return False

    async def create_session_file_system(self, context: SessionFileSystemFactoryContext) -> SessionFileSystem:
        """The file system, from what the host has."""
        ...


class DisabledSessionFileSystemFactory(SessionFileSystemFactory):
    """Sessions get no files."""

    def is_disabled(self) -> bool:
        """Yes."""
        return True

    async def create_session_file_system(self, context: SessionFileSystemFactoryContext) -> SessionFileSystem:
        """Refuses.

        Raises:
            Error: `files_disabled`.
        """
        raise Error(Code.FILES_DISABLED, DISABLED)
