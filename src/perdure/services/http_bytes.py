"""Limit of a response's bytes, counted as they arrive and after decompression.

Compression is undone here, in pieces: a few bytes on the wire can become gigabytes in one step of a decoder.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator

import httpx2

ENCODINGS = {"accept-encoding": "gzip, deflate"}
"""The request header for clients with this limit."""
_PIECE_BYTES = 65_536


class ResponseTooLarge(httpx2.TransportError):
    """The response has more bytes than the limit. The rest was not read."""


def limit_bytes(response: httpx2.Response, most: int) -> None:
    """Replace the body of a response that is not read yet: decompressed, and an error above `most` bytes.

    Raises:
        ResponseTooLarge: the body is compressed in a way that was not asked for, so that it cannot be counted.
    """
    packed = response.headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise ResponseTooLarge(f"the response is encoded as {packed!r:.40}, which was not requested")
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        return
    response.stream = _Counted(response.stream, most, packed=packed not in ("identity", ""))
    for name in ("content-encoding", "content-length") if packed not in ("identity", "") else ():
        if name in response.headers:
            del response.headers[name]


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, given: httpx2.AsyncByteStream, most: int, *, packed: bool) -> None:
        self._given = given
        self._left = self._most = most
        self._unpack = zlib.decompressobj(zlib.MAX_WBITS | 32) if packed else None  # 32: gzip or zlib, by its header

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the decompressed pieces."""
        async for arrived in self._given:
            for piece in self._unpacked(arrived):
                self._left -= len(piece)
                if self._left < 0:  # threat: S14
                    raise ResponseTooLarge(f"the response has more than {self._most} bytes")
                yield piece

    def _unpacked(self, data: bytes) -> Iterator[bytes]:
        if self._unpack is None:
            yield data
            return
        try:
            while piece := self._unpack.decompress(data, _PIECE_BYTES):
                yield piece
                data = self._unpack.unconsumed_tail
        except zlib.error as problem:
            raise httpx2.DecodingError(str(problem)) from problem

    async def aclose(self) -> None:
        """Close the wrapped stream."""
        await self._given.aclose()
