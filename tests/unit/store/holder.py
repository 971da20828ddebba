"""A process that holds a stream in a database and hangs until it is killed."""

from __future__ import annotations

import asyncio
import os
import sys

from perdure.ids import WorkerId
from perdure.store.postgres import PostgresStore
from tests.unit.store.parties import RealClock, owned


async def main(url: str, name: str) -> None:
    store = PostgresStore(url, RealClock())
    await store.open()
    await store.register(WorkerId(name), pid=os.getpid(), version="1", now=0)
    await owned(store, f"{name}-0", WorkerId(name))
    print("holding", flush=True)
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
