"""Files of a session: the protocol, and the implementation in the store."""

from perdure.services.files.factory import (
    DisabledSessionFileSystemFactory,
    SessionFileSystemFactory,
    SessionFileSystemFactoryContext,
)
from perdure.services.files.protocol import SessionFiles, SessionFileStore, SessionFileSystem
from perdure.services.files.shapes import FileInfo, FileStat, GrepMatch, InitialFile, SessionFile
from perdure.services.files.stored import StoredFiles, StoredFilesFactory

__all__ = [
    "DisabledSessionFileSystemFactory",
    "FileInfo",
    "FileStat",
    "GrepMatch",
    "InitialFile",
    "SessionFile",
    "SessionFileStore",
    "SessionFileSystem",
    "SessionFileSystemFactory",
    "SessionFileSystemFactoryContext",
    "SessionFiles",
    "StoredFiles",
    "StoredFilesFactory",
]
