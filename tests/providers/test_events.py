"""Streams as the protocol allows them and SDKs do not expect them: every reply is heard whole."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import httpx2
import pytest

from perdure.models.providers.plain_events import PlainEvents
from tests.providers import spoken
from tests.providers.asking import ask, model_at, said
from tests.providers.loopback import Answer, Loopback
from tests.providers.spoken import WIRES, base_of

WAYS: dict[str, Callable[[bytes], bytes]] = {
    "lines of Windows": lambda body: body.replace(b"\n", b"\r\n"),
    "a byte order mark": lambda body: b"\xef\xbb\xbf" + body,
    "comments": lambda body: b": hi\n\n" + body.replace(b"\n\n", b"\n\n: keep-alive\n\n:\n\n"),
    "events without data": lambda body: b"retry: 10\nid: 5\n\nevent: ping\n\n" + body,
    "no spaces": lambda body: body.replace(b"data: ", b"data:").replace(b"event: ", b"event:"),
    "all at once": lambda body: b"\xef\xbb\xbf: hi\r\n\r\n" + body.replace(b"data: ", b"data:").replace(b"\n", b"\r\n"),
}


async def heard(provider: str, given: Answer) -> None:
    async with Loopback([given]).running() as server:
        model = model_at(base_of(provider, server.url), provider, WIRES[provider])
        found = await ask(model, said("hi", max_tokens=9))
    assert "".join(found.deltas) == "Hellö ☃"
    assert found.reply is not None
    assert (found.reply.usage.input, found.reply.usage.output) == (12, 5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("provider", WIRES)
async def test_a_stream_may_be_written_in_every_way_that_the_protocol_allows(provider: str, way: str) -> None:
    given = spoken.reply(provider, "Hel", "lö ☃")
    await heard(provider, replace(given, body=WAYS[way](given.body)))


@pytest.mark.parametrize("provider", WIRES)
async def test_a_stream_may_be_compressed(provider: str) -> None:
    given = spoken.reply(provider, "Hel", "lö ☃")
    await heard(provider, replace(given, body=gzip.compress(given.body), headers={"content-encoding": "gzip"}))


class Pieces(httpx2.AsyncByteStream):
    def __init__(self, body: bytes, size: int) -> None:
        self._pieces = [body[at : at + size] for at in range(0, len(body), size)]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for one in self._pieces:
            yield one


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
async def test_events_are_the_same_in_whatever_pieces_they_come(size: int) -> None:
    body = "\ufeff: hi\r\n\r\nid: 3\r\n\r\nevent:a\r\ndata:{ö}\r\ndata\r\ndata:  x\r\n\r\n\r\n"
    body += "data: [DONE]\n\ndata: beg"
    told = b"".join([one async for one in PlainEvents(Pieces(body.encode(), size))])
    assert told.decode() == "event: a\ndata: {ö}\ndata\ndata:  x\n\ndata: [DONE]\n\ndata: beg"
