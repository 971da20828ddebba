"""What a file system of sessions does. Laws: `perdure.testing.laws.files`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from perdure.errors import Code, Error
from perdure.ids import SessionId
from perdure.services.files.shapes import FileInfo, FileStat, GrepMatch, InitialFile, SessionFile

SEED_READONLY = "read-only initial files require a SessionFileSystem-specific seed implementation"


class SessionFileSystem(Protocol):
    """Files of sessions, each session on its own. Paths begin at the session's root, also called `/workspace`.

    Derive from it to get `write_file_if_content_matches` and `seed_initial_file` as they are here. Every method raises
    `file_path_invalid` for what cannot be a path, and `session_unknown` if there is no such session.
    """

    async def read_file(self, session_id: SessionId, path: str) -> SessionFile | None:
        """A file with its content, or a directory without; None if there is neither."""
        ...

    async def write_file(self, session_id: SessionId, path: str, content: str, encoding: str = "text") -> SessionFile:
        """Write a file, all of it or nothing, and make the directories above it.

        Raises:
            Error: `file_readonly`; `file_kind_conflict` if a directory is there, or a file where one is needed;
                `file_limit_exceeded`; `file_content_invalid`. Nothing was written.
        """
        ...

    async def write_file_if_content_matches(
        self,
        session_id: SessionId,
        path: str,
        expected_content: str,
        expected_encoding: str,
        content: str,
        encoding: str = "text",
    ) -> SessionFile | None:
        """Write a file if it says what is expected; None, and nothing is written, if it is missing, a directory, or
        says something else.

        This one looks and then writes: somebody may write in between. Whatever can do it at once must.
        """
        existing = await self.read_file(session_id, path)
        if existing is None or existing.is_directory:
            return None
        if (existing.content or "") != expected_content or existing.encoding != expected_encoding:
            return None
        return await self.write_file(session_id, path, content, encoding)

    async def delete_file(self, session_id: SessionId, path: str, recursive: bool = False) -> bool:
        """Delete a file or a directory. False if there is none, or if it is not empty and not `recursive`.

        Raises:
            Error: `file_readonly` if it is, or holds, a read-only file; `file_path_invalid` for the root.
        """
        ...

    async def list_directory(self, session_id: SessionId, path: str) -> tuple[FileInfo, ...]:
        """What stands in a directory, by name.

        Raises:
            Error: `file_unknown`; `file_kind_conflict` if it is a file.
        """
        ...

    async def stat_file(self, session_id: SessionId, path: str) -> FileStat | None:
        """What is known of a path; None if there is nothing. The root is always there."""
        ...

    async def grep_files(
        self, session_id: SessionId, pattern: str, path_pattern: str | None = None
    ) -> tuple[GrepMatch, ...]:
        """Lines of text files that match a regular expression, in time linear in the text.

        `path_pattern` is a glob (without a slash: of the name, at any depth) or a part of the path.

        Raises:
            Error: `file_pattern_invalid`; `file_limit_exceeded` if that is more text than may be looked through.
        """
        ...

    async def create_directory(self, session_id: SessionId, path: str) -> FileInfo:
        """Make a directory, and those above it. One that is there stays as it is.

        Raises:
            Error: `file_kind_conflict`, `file_limit_exceeded`.
        """
        ...

    async def seed_initial_file(self, session_id: SessionId, file: InitialFile) -> None:
        """Lay down a file that a session begins with.

        Raises:
            Error: `file_seed_unsupported` for a read-only one, unless an implementation can do better.
        """
        if file.is_readonly:
            raise Error(Code.FILE_SEED_UNSUPPORTED, SEED_READONLY)
        await self.write_file(session_id, file.path, file.content, file.encoding)


SessionFileStore: TypeAlias = SessionFileSystem
"""The same, by its older name."""


@dataclass(frozen=True, slots=True)
class SessionFiles:
    """The files of one session: what a tool finds as `ctx.files` and a program as `session.files`.

    Each method is the one of that name in `SessionFileSystem`.
    """

    system: SessionFileSystem
    session_id: SessionId

    async def read_file(self, path: str) -> SessionFile | None:
        """A file with its content, or a directory without; None if there is neither."""
        return await self.system.read_file(self.session_id, path)

    async def write_file(self, path: str, content: str, encoding: str = "text") -> SessionFile:
        """Write a file, all of it or nothing."""
        return await self.system.write_file(self.session_id, path, content, encoding)

    async def write_file_if_content_matches(
        self, path: str, expected_content: str, expected_encoding: str, content: str, encoding: str = "text"
    ) -> SessionFile | None:
        """Write a file if it says what is expected; None if not."""
        return await self.system.write_file_if_content_matches(
            self.session_id, path, expected_content, expected_encoding, content, encoding
        )

    async def delete_file(self, path: str, recursive: bool = False) -> bool:
        """Delete a file or a directory."""
        return await self.system.delete_file(self.session_id, path, recursive)

    async def list_directory(self, path: str = "/") -> tuple[FileInfo, ...]:
        """What stands in a directory, by name."""
        return await self.system.list_directory(self.session_id, path)

    async def stat_file(self, path: str) -> FileStat | None:
        """What is known of a path; None if there is nothing."""
        return await self.system.stat_file(self.session_id, path)

    async def grep_files(self, pattern: str, path_pattern: str | None = None) -> tuple[GrepMatch, ...]:
        """Lines of text files that match a regular expression."""
        return await self.system.grep_files(self.session_id, pattern, path_pattern)

    async def create_directory(self, path: str) -> FileInfo:
        """Make a directory, and those above it."""
        return await self.system.create_directory(self.session_id, path)
