"""Line splitter for servers over stdio, as an encoding, because the SDK offers no other hook.

Laws: reading a line takes linear time. (The SDK would join all pieces for each new one: a minute for 50 MB, on the
worker's event loop.) A line over the limit and bytes that are not text are skipped; the lines after them are read.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

ENCODING = "perdure_mcp_lines"
MAX_LINE_BYTES = 32 * 1024 * 1024
LEFT_OUT = f'"a line of more than {MAX_LINE_BYTES} bytes was left out"\n'
"""The line passed to the SDK in place of a skipped one; the SDK logs it."""


class Lines(codecs.IncrementalDecoder):
    """Decoder of bytes into whole lines."""

    def __init__(self, errors: str = "replace") -> None:
        super().__init__(errors)
        self._begun: list[bytes] = []
        self._size = 0

    def decode(self, input: ReadableBuffer, final: bool = False) -> str:
        """Return the completed lines as text."""
        *ends, rest = bytes(memoryview(input)).split(b"\n")
        said = "".join(self._ended(end) for end in ends)
        self._add(rest)
        return said

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MAX_LINE_BYTES:
            self._begun.clear()
        elif piece:
            self._begun.append(piece)

    def _ended(self, end: bytes) -> str:
        self._add(end)
        line, size = b"".join(self._begun), self._size
        self.reset()
        return LEFT_OUT if size > MAX_LINE_BYTES else f"{line.decode('utf-8', 'replace')}\n"

    def reset(self) -> None:
        """Discard the incomplete line."""
        self._begun.clear()
        self._size = 0


def _found(name: str) -> codecs.CodecInfo | None:
    if name != ENCODING:
        return None
    return codecs.CodecInfo(codecs.utf_8_encode, codecs.utf_8_decode, incrementaldecoder=Lines, name=ENCODING)


codecs.register(_found)
