"""What a server over stdio says, in whole lines: an encoding, which is the door that the SDK leaves open.

Laws: reading a line costs what the line is long (the SDK would join all it has with each piece that comes: a minute for
50 MB, on the worker's event loop). One that is too long to be an answer is left out, and so are bytes that are no text:
what comes after them is read.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

ENCODING = "perdure_mcp_lines"
MAX_LINE_BYTES = 32 * 1024 * 1024
LEFT_OUT = f'"a line of more than {MAX_LINE_BYTES} bytes was left out"\n'
"""What the SDK finds in its place, and complains of."""


class Lines(codecs.IncrementalDecoder):
    """Bytes in, whole lines out."""

    def __init__(self, errors: str = "replace") -> None:
        super().__init__(errors)
        self._begun: list[bytes] = []
        self._size = 0

    def decode(self, input: ReadableBuffer, final: bool = False) -> str:
        """The lines that this ends, as text."""
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
        """Forget the line that has begun."""
        self._begun.clear()
        self._size = 0


def _found(name: str) -> codecs.CodecInfo | None:
    if name != ENCODING:
        return None
    return codecs.CodecInfo(codecs.utf_8_encode, codecs.utf_8_decode, incrementaldecoder=Lines, name=ENCODING)


codecs.register(_found)
