"""Files of a session as values. Times are milliseconds since 1970."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Literal, TypeAlias

import msgspec

from perdure.codec import check_text
from perdure.errors import Code, Error
from perdure.ids import SessionId

Encoding: TypeAlias = Literal["text", "base64"]
"""The form of file content: plain text, or base64 for binary content."""

MAX_FILE_BYTES = 100 * 1024 * 1024
MAX_SESSION_BYTES = 500 * 1024 * 1024


class FileInfo(msgspec.Struct, frozen=True):
    """A file or directory in a list."""

    id: str
    session_id: SessionId
    path: str
    name: str
    is_directory: bool
    is_readonly: bool
    size_bytes: int
    created_at: int
    updated_at: int


class FileStat(msgspec.Struct, frozen=True):
    """The metadata of a path."""

    path: str
    name: str
    is_directory: bool
    is_readonly: bool
    size_bytes: int
    created_at: int
    updated_at: int


class SessionFile(msgspec.Struct, frozen=True):
    """A file, as it was read or written. A directory has no content."""

    id: str
    session_id: SessionId
    path: str
    name: str
    content: str | None
    encoding: Encoding
    is_directory: bool
    is_readonly: bool
    size_bytes: int
    created_at: int
    updated_at: int

    @property
    def data(self) -> bytes:
        """The bytes of the file."""
        return bytes_of(self.content or "", self.encoding)


class GrepMatch(msgspec.Struct, frozen=True):
    """A matching line. Line numbers start at 1."""

    path: str
    line_number: int
    line: str


class InitialFile(msgspec.Struct, frozen=True):
    """An initial file of a session. Tools cannot change one with `is_readonly`."""

    path: str
    content: str
    encoding: Encoding = "text"
    readonly: bool = False


def bytes_of(content: str, encoding: str) -> bytes:
    """Decode content to bytes. Content that would be read back differently is rejected.

    Raises:
        Error: `file_content_invalid`; `invalid_text` for text that is not valid Unicode.
    """
    if encoding == "text":
        return check_text(content, where="content").encode()
    if encoding != "base64":
        raise Error(Code.FILE_CONTENT_INVALID, f"unknown file encoding {encoding!r:.40}", hint='use "text" or "base64"')
    try:
        data = b64decode(content, validate=True)
    except ValueError as problem:
        raise Error(Code.FILE_CONTENT_INVALID, "the content is not base64", because=str(problem)) from None
    if text_of(data, "base64") != content:
        raise Error(
            Code.FILE_CONTENT_INVALID,
            "the content is not canonical base64",
            because="the unused bits of the last character are not zero",
        )
    return data


def text_of(data: bytes, encoding: Encoding) -> str:
    """Encode bytes as content."""
    return data.decode() if encoding == "text" else b64encode(data).decode()
