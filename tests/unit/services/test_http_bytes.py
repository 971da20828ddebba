"""Bytes of responses are counted as they arrive, decompressed."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator

import httpx2
import pytest

from perdure.services.http_bytes import ResponseTooLarge, limit_bytes

TEXT = b"A line that compresses well.\n" * 40_000


class Body(httpx2.AsyncByteStream):
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self.data), 500):
            self.read += 1
            yield self.data[at : at + 500]


def response(data: bytes, encoding: str | None) -> tuple[httpx2.Response, Body]:
    body = Body(data)
    headers = {"content-length": str(len(data)), **({"content-encoding": encoding} if encoding else {})}
    return httpx2.Response(200, headers=headers, stream=body, request=httpx2.Request("GET", "http://x")), body


@pytest.mark.parametrize(
    ("encoding", "data"),
    [(None, TEXT), ("gzip", gzip.compress(TEXT)), ("deflate", zlib.compress(TEXT)), ("identity", TEXT)],
)
async def test_s14_response_is_read_up_to_its_limit(encoding: str | None, data: bytes) -> None:
    whole, _ = response(data, encoding)
    limit_bytes(whole, len(TEXT))
    assert await whole.aread() == TEXT
    long, _ = response(data, encoding)
    limit_bytes(long, len(TEXT) - 1)
    with pytest.raises(ResponseTooLarge, match="more than"):
        await long.aread()


async def test_s14_compressed_response_is_not_read_beyond_its_limit() -> None:
    bomb, body = response(gzip.compress(b"A" * 50_000_000, 1), "gzip")
    limit_bytes(bomb, 1_000_000)
    with pytest.raises(ResponseTooLarge):
        await bomb.aread()
    assert body.read < len(body.data) / 500 / 10


async def test_response_in_an_encoding_that_was_not_requested_is_refused() -> None:
    packed, _ = response(b"x", "br")
    with pytest.raises(ResponseTooLarge, match="'br'"):
        limit_bytes(packed, 10)


async def test_damaged_compression_is_an_error_of_decoding() -> None:
    damaged, _ = response(b"no gzip", "gzip")
    limit_bytes(damaged, 1_000)
    with pytest.raises(httpx2.DecodingError):
        await damaged.aread()
