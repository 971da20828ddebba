"""Files of a session as values. Moments are milliseconds since 1970."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Literal, TypeAlias

import msgspec

from perdure.codec import check_text
from perdure.errors import Code, Error
from perdure.ids import SessionId

Encoding: TypeAlias = Literal["text", "base64"]
"""How content is written down: as it is, or (bytes that are no text) in base64."""

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
    """What is known of a path without its content."""

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
    """A line that matches; counted from 1."""

    path: str
    line_number: int
    line: str


class InitialFile(msgspec.Struct, frozen=True):
    """A file that a session has from the beginning. One that is `is_readonly` cannot be changed from inside."""

    path: str
    content: str
    encoding: Encoding = "text"
    is_readonly: bool = False


def bytes_of(content: str, encoding: str) -> bytes:
    """The bytes that a content stands for. It is read back exactly as it was given, or it is refused.

    Raises:
        Error: `file_content_invalid`; `invalid_text` for text that is not valid Unicode.
    """
    if encoding == "text":
        return check_text(content, where="content").encode()
    if encoding != "base64":
        raise Error(
            Code.FILE_CONTENT_INVALID, f"{encoding!r:.40} is no encoding of a file", hint='use "text" or "base64"'
        )
    try:
        data = b64decode(content, validate=True)
    except ValueError as problem:
        raise Error(Code.FILE_CONTENT_INVALID, "the content is not base64", because=str(problem)) from None
    if text_of(data, "base64") != content:
        raise Error(
            Code.FILE_CONTENT_INVALID,
            "the content is base64 that would be read back in another spelling",
            because="its last character says more than its bytes",
        )
    return data


def text_of(data: bytes, encoding: Encoding) -> str:
    """Bytes as content."""
    return data.decode() if encoding == "text" else b64encode(data).decode()
