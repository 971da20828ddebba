"""Files of a session: what every implementation offers, and the one that keeps them in the store."""

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
