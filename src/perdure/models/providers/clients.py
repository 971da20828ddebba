"""One HTTP client per event loop, because connections belong to the loop that opened them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import httpx2

CONNECT_S = 10
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Most bytes of one response of a provider, decompressed."""
READ_S = 300
"""Read timeout of a provider connection. Stalled streams are detected by the reader."""


@dataclass(slots=True)
class _Clients:
    holders: int = 0
    http: httpx2.AsyncClient | None = None


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Clients] = WeakKeyDictionary()


def _here() -> _Clients:
    return _by_loop.setdefault(asyncio.get_running_loop(), _Clients())


def http_client() -> httpx2.AsyncClient:
    """Return the client of the running loop, created on first use."""
    import httpx2

    from perdure.models.providers.plain_events import make_plain
    from perdure.services.http_bytes import ENCODINGS

    here = _here()
    if here.http is None or here.http.is_closed:
        timeout = httpx2.Timeout(READ_S, connect=CONNECT_S)
        hooks = {"response": [_bounded, make_plain]}
        limits = httpx2.Limits(max_connections=1000)
        here.http = httpx2.AsyncClient(timeout=timeout, limits=limits, event_hooks=hooks, headers=ENCODINGS)
    return here.http


async def _bounded(response: httpx2.Response) -> None:
    from perdure.services.http_bytes import limit_bytes

    limit_bytes(response, MAX_RESPONSE_BYTES)


def hold() -> None:
    """Register a user of this loop's client."""
    _here().holders += 1


async def release() -> None:
    """Unregister a user; the last one closes the connections."""
    here = _here()
    here.holders -= 1
    if here.holders <= 0 and here.http is not None:
        http, here.http = here.http, None
        await http.aclose()
