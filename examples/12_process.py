"""Shows: a durable process with a child and a signal. The steps run once, despite re-entry.

    python examples/12_process.py

See: a process that waits for its child without memory, a signal sent before the wait, and a repeated start that returns
the same process. See docs/guides/processes.md.
"""

import asyncio
import tempfile
from pathlib import Path

from perdure import ProcessContext, Runtime, RuntimeOptions, process


@process
async def count(ctx: ProcessContext, word: str) -> int:
    """Return the length of a word."""
    return await ctx.step("count", len, word)


@process
async def report(ctx: ProcessContext, word: str) -> str:
    """Count in a child, wait for a signal, and report."""
    child = await ctx.start(count, word)
    letters = await ctx.wait_for_process(child)
    who = await ctx.wait_for_signal("go", timeout="1d")
    return f"{word} has {letters} letters, says {who}"


async def main() -> None:
    """Start the process, signal it early, wait for the result; then start it once more."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'process.db'}"
        impatient = RuntimeOptions(idle_timeout_s=0.0)  # park at once, so that each wait re-enters the body
        async with Runtime(url, processes=[count, report], options=impatient) as rt:
            handle = await rt.start(report, "perdure", id="report-1")
            await handle.signal("go", "ann")
            print("1 ", await handle.result(timeout=30))
            print("2 ", await (await rt.start(report, "perdure", id="report-1")).result(timeout=30))
            print("3 ", [one.handle.id for one in await rt.processes.list(ended=True)])


asyncio.run(main())
