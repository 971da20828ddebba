"""The protocol of a session file system. Laws: `perdure.testing.laws.files`."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from perdure.errors import Code, Error
from perdure.ids import SessionId
from perdure.services.files.shapes import FileInfo, FileStat, GrepMatch, InitialFile, SessionFile, bytes_of
from perdure.services.secrets import Redactor

SEED_READONLY = "read-only initial files require a SessionFileSystem-specific seed implementation"


class SessionFileSystem(Protocol):
    """The files of sessions, each session separate. Paths start at the session's root, also called `/workspace`.

    Subclasses inherit `write_file_if_content_matches` and `seed_initial_file`. Every method raises `file_path_invalid`
    for an invalid path, and `session_unknown` for an unknown session.
    """

    async def read_file(self, session_id: SessionId, path: str) -> SessionFile | None:
        """Return a file with its content, a directory without, or None."""
        ...

    async def write_file(self, session_id: SessionId, path: str, content: str, encoding: str = "text") -> SessionFile:
        """Write a file atomically, and create its parent directories.

        Raises:
            Error: `file_readonly`; `file_kind_conflict` for a directory at the path, or a file at a parent path;
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
        """Write a file if its content matches. Otherwise write nothing and return None.

        This default reads and then writes, so a concurrent write may come in between. Implementations that can be
        atomic must override it.
        """
        existing = await self.read_file(session_id, path)
        if existing is None or existing.is_directory:
            return None
        if (existing.content or "") != expected_content or existing.encoding != expected_encoding:
            return None
        return await self.write_file(session_id, path, content, encoding)

    async def delete_file(self, session_id: SessionId, path: str, recursive: bool = False) -> bool:
        """Delete a file or a directory. Return False if missing, or not empty without `recursive`.

        Raises:
            Error: `file_readonly` for a read-only file, or a directory with one; `file_path_invalid` for the root.
        """
        ...

    async def list_directory(self, session_id: SessionId, path: str) -> tuple[FileInfo, ...]:
        """Return the entries of a directory, ordered by name.

        Raises:
            Error: `file_unknown`; `file_kind_conflict` for a file.
        """
        ...

    async def stat_file(self, session_id: SessionId, path: str) -> FileStat | None:
        """Return the metadata of a path, or None. The root always exists."""
        ...

    async def grep_files(
        self, session_id: SessionId, pattern: str, path_pattern: str | None = None
    ) -> tuple[GrepMatch, ...]:
        """Return the lines of text files that match a regular expression, in time linear in the text.

        At most 10,000 lines, cut at 2,000 characters.

        `path_pattern` is a glob (without a slash: for the name, at any depth) or a part of the path.

        Raises:
            Error: `file_pattern_invalid`; `file_limit_exceeded` if the text or the time exceeds its limit.
        """
        ...

    async def create_directory(self, session_id: SessionId, path: str) -> FileInfo:
        """Create a directory and its parents. An existing one stays unchanged.

        Raises:
            Error: `file_kind_conflict`, `file_limit_exceeded`.
        """
        ...

    async def seed_initial_file(self, session_id: SessionId, file: InitialFile) -> None:
        """Write an initial file of a session.

        Raises:
            Error: `file_seed_unsupported` for a read-only file, unless the implementation supports it.
        """
        if file.readonly:
            raise Error(Code.FILE_SEED_UNSUPPORTED, SEED_READONLY)
        await self.write_file(session_id, file.path, file.content, file.encoding)


SessionFileStore: TypeAlias = SessionFileSystem
"""Older alias of `SessionFileSystem`."""


@dataclass(frozen=True, slots=True)
class SessionFiles:
    """The files of one session, available as `ctx.files` in tools and `session.files` in programs.

    Each method corresponds to the one of the same name in `SessionFileSystem`.
    """

    system: SessionFileSystem
    session_id: SessionId
    redactor: Redactor = field(default_factory=Redactor)

    async def read_file(self, path: str) -> SessionFile | None:
        """Return a file with its content, a directory without, or None."""
        return await self.system.read_file(self.session_id, path)

    async def write_file(self, path: str, content: str, encoding: str = "text") -> SessionFile:
        """Write a file atomically. Secrets in its path and its content are redacted."""
        content = await self._redacted(content, encoding)
        return await self.system.write_file(self.session_id, self.redactor.text(path), content, encoding)

    async def write_file_if_content_matches(
        self, path: str, expected_content: str, expected_encoding: str, content: str, encoding: str = "text"
    ) -> SessionFile | None:
        """Write a file if its content matches, else return None."""
        content = await self._redacted(content, encoding)
        return await self.system.write_file_if_content_matches(
            self.session_id, path, expected_content, expected_encoding, content, encoding
        )

    async def _redacted(self, content: str, encoding: str) -> str:
        """Return the content of a file with redacted secrets. Content that the file system will refuse stays."""
        if not self.redactor.is_needed:
            return content
        try:
            data = bytes_of(content, encoding)
        except Error:
            return content
        hidden = await self.redactor.data_of_any_size(data)  # threat: S10, T-TOOL-08
        if hidden is data:
            return content
        return hidden.decode() if encoding == "text" else b64encode(hidden).decode()

    async def delete_file(self, path: str, recursive: bool = False) -> bool:
        """Delete a file or a directory."""
        return await self.system.delete_file(self.session_id, path, recursive)

    async def list_directory(self, path: str = "/") -> tuple[FileInfo, ...]:
        """Return the entries of a directory, ordered by name."""
        return await self.system.list_directory(self.session_id, path)

    async def stat_file(self, path: str) -> FileStat | None:
        """Return the metadata of a path, or None."""
        return await self.system.stat_file(self.session_id, path)

    async def grep_files(self, pattern: str, path_pattern: str | None = None) -> tuple[GrepMatch, ...]:
        """Return the lines of text files that match a regular expression."""
        return await self.system.grep_files(self.session_id, pattern, path_pattern)

    async def create_directory(self, path: str) -> FileInfo:
        """Create a directory and its parents."""
        return await self.system.create_directory(self.session_id, self.redactor.text(path))
