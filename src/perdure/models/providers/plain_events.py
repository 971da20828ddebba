"""Server-sent events as the SDKs of all providers understand them.

The protocol lets a server, or a proxy in between, begin with a byte order mark, end lines as on Windows, leave out the
space behind a colon, and send comments and events without data to keep a line open. Of each of these some SDK loses a
piece of the reply, or the whole of it; so none of them is passed on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2

MARK = b"\xef\xbb\xbf"


async def make_plain(response: httpx2.Response) -> None:
    """Pass a stream of events through `PlainEvents`; one that is compressed is left as it is."""
    kind = response.headers.get("content-type", "").lower()
    packed = response.headers.get("content-encoding", "identity").lower() != "identity"
    if kind.startswith("text/event-stream") and not packed and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = PlainEvents(response.stream)


class PlainEvents(httpx2.AsyncByteStream):
    """The same events, with nothing between them. What comes after the last whole line is given as it came."""

    def __init__(self, given: httpx2.AsyncByteStream) -> None:
        self._given = given
        self._event: list[bytes] = []

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Whole events, as soon as they are there."""
        begun: list[bytes] = []
        first = True
        async for piece in self._given:
            if b"\n" not in piece:
                begun.append(piece)
                continue
            *lines, rest = b"".join((*begun, piece)).split(b"\n")
            begun = [rest]
            if first:
                lines[0], first = lines[0].removeprefix(MARK), False
            if whole := b"".join(event for line in lines for event in self._ended(line.removesuffix(b"\r"))):
                yield whole
        if left := b"\n".join((*self._event, *filter(None, (b"".join(begun),)))):
            yield left

    def _ended(self, line: bytes) -> tuple[bytes, ...]:
        """The event that a line ends, if it ends one."""
        if line:
            name, colon, value = line.partition(b":")
            if name:  # else it is a comment
                self._event.append(b"%s: %s" % (name, value.removeprefix(b" ")) if colon else line)
            return ()
        event, self._event = self._event, []
        return (b"\n".join((*event, b"", b"")),) if any(one.startswith(b"data") for one in event) else ()

    async def aclose(self) -> None:
        """Close what is underneath."""
        await self._given.aclose()
