"""Server-sent events in the form that all provider SDKs parse correctly.

The protocol allows a byte order mark, CRLF line ends, no space after a colon, comments, and events without data as
keep-alives. Some SDKs lose a part or all of the reply on each of these, so they are normalized away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2

from perdure.services.http_bytes import ResponseTooLarge

MARK = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Most bytes of one event. It is parsed at once, on the event loop."""


async def make_plain(response: httpx2.Response) -> None:
    """Wrap an event stream in `PlainEvents`. It is decompressed by then (`limit_bytes`)."""
    kind = response.headers.get("content-type", "").lower()
    if kind.startswith("text/event-stream") and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = PlainEvents(response.stream)


class PlainEvents(httpx2.AsyncByteStream):
    """The same events without anything between them. Bytes after the last complete line are passed on unchanged."""

    def __init__(self, given: httpx2.AsyncByteStream) -> None:
        self._given = given
        self._event: list[bytes] = []

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield complete events as soon as they arrive."""
        begun: list[bytes] = []
        first, size = True, 0
        async for piece in self._given:
            size += len(piece)
            if size > MAX_EVENT_BYTES:
                raise ResponseTooLarge(f"an event of the stream has more than {MAX_EVENT_BYTES} bytes")
            if b"\n" not in piece:
                begun.append(piece)
                continue
            *lines, rest = b"".join((*begun, piece)).split(b"\n")
            begun, size = [rest], len(rest) + sum(map(len, self._event))
            if first:
                lines[0], first = lines[0].removeprefix(MARK), False
            if whole := b"".join(event for line in lines for event in self._ended(line.removesuffix(b"\r"))):
                yield whole
        if left := b"\n".join((*self._event, *filter(None, (b"".join(begun),)))):
            yield left

    def _ended(self, line: bytes) -> tuple[bytes, ...]:
        """Return the event that a line completes, if any."""
        if line:
            name, colon, value = line.partition(b":")
            if name:  # else it is a comment
                self._event.append(b"%s: %s" % (name, value.removeprefix(b" ")) if colon else line)
            return ()
        event, self._event = self._event, []
        return (b"\n".join((*event, b"", b"")),) if any(one.startswith(b"data") for one in event) else ()

    async def aclose(self) -> None:
        """Close the wrapped stream."""
        await self._given.aclose()
