"""Factories of file systems: one file system per deployment, built from the host's values."""

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
    """The host's values for a factory, one per type. Immutable: `with_` returns a new context."""

    values: MappingProxyType[type[object], object] = field(default_factory=lambda: MappingProxyType({}))

    def with_(self, value: object, *, as_: type[object] | None = None) -> SessionFileSystemFactoryContext:
        """Return a copy with one more value, under its own type or `as_`."""
        return SessionFileSystemFactoryContext(MappingProxyType({**self.values, as_ or type(value): value}))

    def get(self, kind: type[T]) -> T | None:
        """Return the value of that type, or None."""
        return cast("T | None", self.values.get(kind))


class SessionFileSystemFactory(Protocol):
    """Factory of a deployment's file system. Subclasses inherit `name` (the class name) and `is_disabled` (False)."""

    def name(self) -> str:
        """Return the name for diagnostics."""
        return type(self).__name__

    def is_disabled(self) -> bool:
        """Return True if sessions have no files."""
        return False

    async def create_session_file_system(self, context: SessionFileSystemFactoryContext) -> SessionFileSystem:
        """Create the file system from the host's values."""
        ...


class DisabledSessionFileSystemFactory(SessionFileSystemFactory):
    """Factory for deployments without session files."""

    def is_disabled(self) -> bool:
        """Return True."""
        return True

    async def create_session_file_system(self, context: SessionFileSystemFactoryContext) -> SessionFileSystem:
        """Refuse.

        Raises:
            Error: `files_disabled`.
        """
        raise Error(Code.FILES_DISABLED, DISABLED)
