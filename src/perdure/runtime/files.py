"""The file system of sessions, and the initial files of each session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias, cast

from perdure.clock import Clock
from perdure.errors import Code, Error
from perdure.ids import SessionId, Tenant, files_stream, session_stream
from perdure.services.files.factory import (
    DISABLED,
    SessionFileSystemFactory,
    SessionFileSystemFactoryContext,
)
from perdure.services.files.protocol import SessionFiles, SessionFileSystem
from perdure.services.files.shapes import FileInfo, FileStat, GrepMatch, InitialFile, SessionFile
from perdure.services.files.stored import Seeds, SessionFileAccess, StoredFiles, StoredFilesFactory, beginning
from perdure.services.files.tree import Tree
from perdure.services.secrets import Redactor, SeenSecrets
from perdure.store.protocol import Store

FilesGiven: TypeAlias = SessionFileSystem | SessionFileSystemFactory | None


@dataclass(slots=True)
class Files:
    """The file systems of a runtime, one for each tenant."""

    given: FilesGiven
    store: Store
    clock: Clock
    seeds: Callable[[Tenant], Seeds]
    seen_secrets: SeenSecrets
    systems: dict[Tenant, SessionFileSystem | None] = field(default_factory=dict[Tenant, SessionFileSystem | None])

    async def open(self, tenant: Tenant) -> None:
        """Create the file system of the runtime's own tenant.

        Raises:
            Error: the factory failed.
        """
        self.systems[tenant] = await self._made(tenant)

    async def _made(self, tenant: Tenant) -> SessionFileSystem | None:
        given = StoredFilesFactory() if self.given is None else self.given
        if not hasattr(given, "create_session_file_system"):
            return self._seeded(cast("SessionFileSystem", given), tenant)
        factory = cast("SessionFileSystemFactory", given)
        if factory.is_disabled():
            return None
        context = (
            SessionFileSystemFactoryContext()
            .with_(self.store, as_=Store)
            .with_(self.clock, as_=Clock)
            .with_(SessionFileAccess(tenant, self.seeds(tenant)))
        )
        return self._seeded(await factory.create_session_file_system(context), tenant)

    def _seeded(self, system: SessionFileSystem, tenant: Tenant) -> SessionFileSystem:
        """Wrap a custom file system, so that it receives the initial files of a session before the first use."""
        return (
            system if isinstance(system, StoredFiles) else SeededFiles(system, self.store, tenant, self.seeds(tenant))
        )

    def of(self, tenant: Tenant) -> SessionFileSystem | None:
        """Return the file system of a tenant's sessions, or None if they have no files.

        A custom file system identifies sessions by name only, so it serves only the runtime's own tenant.
        """
        if tenant not in self.systems:
            own = next(iter(self.systems.values()), None)
            sessions = SessionFileAccess(tenant, self.seeds(tenant))
            self.systems[tenant] = replace(own, sessions=sessions) if isinstance(own, StoredFiles) else None
        return self.systems[tenant]

    def of_session(self, tenant: Tenant, session: SessionId) -> SessionFiles:
        """Return the files of one session.

        Raises:
            Error: `files_disabled`.
        """
        system = self.of(tenant)
        if system is None:
            raise Error(Code.FILES_DISABLED, DISABLED, hint="give the runtime a file system: Runtime(file_system=...)")
        return SessionFiles(system, session, Redactor(self.seen_secrets, session_stream(tenant, session)))


@dataclass(slots=True)
class SeededFiles(SessionFileSystem):
    """A custom file system in which each session gets its initial files at first use.

    A stream beside the session records the seeding, so a file deleted afterwards is not created again.
    """

    system: SessionFileSystem
    store: Store
    tenant: Tenant
    seeds: Seeds
    ready: set[SessionId] = field(default_factory=set[SessionId])

    async def _seed(self, session_id: SessionId) -> None:
        stream = files_stream(self.tenant, session_id)
        if session_id in self.ready:
            return
        if await self.store.stream(stream) is None and (seeds := await self.seeds(session_id)):
            for seed in seeds:
                await self.system.seed_initial_file(session_id, seed)
            await self._remember(session_id)
        self.ready.add(session_id)

    async def _remember(self, session_id: SessionId) -> None:
        try:
            await self.store.create(beginning(self.tenant, session_id, Tree(session_id).seeding((), ""), 0))
        except Error as problem:
            if problem.code is not Code.SESSION_EXISTS:
                raise

    async def read_file(self, session_id: SessionId, path: str) -> SessionFile | None:
        """Delegate to the wrapped file system."""
        await self._seed(session_id)
        return await self.system.read_file(session_id, path)

    async def write_file(self, session_id: SessionId, path: str, content: str, encoding: str = "text") -> SessionFile:
        """Delegate to the wrapped file system."""
        await self._seed(session_id)
        return await self.system.write_file(session_id, path, content, encoding)

    async def write_file_if_content_matches(
        self,
        session_id: SessionId,
        path: str,
        expected_content: str,
        expected_encoding: str,
        content: str,
        encoding: str = "text",
    ) -> SessionFile | None:
        """Delegate to the wrapped file system."""
        await self._seed(session_id)
        return await self.system.write_file_if_content_matches(
            session_id, path, expected_content, expected_encoding, content, encoding
        )

    async def delete_file(self, session_id: SessionId, path: str, recursive: bool = False) -> bool:
        """Delegate to the wrapped file system."""
        await self._seed(session_id)
        return await self.system.delete_file(session_id, path, recursive)

    async def list_directory(self, session_id: SessionId, path: str) -> tuple[FileInfo, ...]:
        """Delegate to the wrapped file system."""
        await self._seed(session_id)
        return await self.system.list_directory(session_id, path)

    async def stat_file(self, session_id: SessionId, path: str) -> FileStat | None:
        """Delegate to the wrapped file system."""
        await self._seed(session_id)
        return await self.system.stat_file(session_id, path)

    async def grep_files(
        self, session_id: SessionId, pattern: str, path_pattern: str | None = None
    ) -> tuple[GrepMatch, ...]:
        """Delegate to the wrapped file system."""
        await self._seed(session_id)
        return await self.system.grep_files(session_id, pattern, path_pattern)

    async def create_directory(self, session_id: SessionId, path: str) -> FileInfo:
        """Delegate to the wrapped file system."""
        await self._seed(session_id)
        return await self.system.create_directory(session_id, path)

    async def seed_initial_file(self, session_id: SessionId, file: InitialFile) -> None:
        """Delegate to the wrapped file system."""
        await self.system.seed_initial_file(session_id, file)
