"""A durable function that starts a child, waits for it and for a signal, and is told everything once.

    python examples/12_process.py

Shows: a process whose steps run once however often it is entered, a child that it waits for without holding memory, a
signal that was sent before anybody waited for it, and that the same start again is the same process.
See: docs/processes.md.
"""

import asyncio
import tempfile
from pathlib import Path

from perdure import ProcessContext, Runtime, Tuning, process


@process
async def count(ctx: ProcessContext, word: str) -> int:
    """How long a word is."""
    return await ctx.step("count", len, word)


@process
async def report(ctx: ProcessContext, word: str) -> str:
    """Count in a child, wait for a go, and tell."""
    child = await ctx.start(count, word)
    letters = await ctx.wait(child)
    who = await ctx.signal("go", timeout="1d")
    return f"{word} has {letters} letters, says {who}"


async def main() -> None:
    """Start it, signal it early, wait for it; then start it once more."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'process.db'}"
        impatient = Tuning(patience_s=0.0)  # wait in the store, not in memory, so that it is entered again each time
        async with Runtime(url, processes=[count, report], tuning=impatient) as rt:
            handle = await rt.start(report, "perdure", id="report-1")
            await handle.signal("go", "ann")
            print("1 ", await handle.result(timeout=30))
            print("2 ", await (await rt.start(report, "perdure", id="report-1")).result(timeout=30))
            print("3 ", [one.handle.id for one in await rt.processes.list("all")])


asyncio.run(main())
