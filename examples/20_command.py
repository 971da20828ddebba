"""Shows: an operating-system command that outlives its worker.

Run:     python examples/20_command.py
See:     the runtime that started the command is closed; another one continues to read its output and reports the exit.
         A repeated start under the same id runs nothing.
"""

import asyncio
import tempfile
from pathlib import Path

from perdure import Runtime


async def main(folder: Path) -> None:
    url, go = f"sqlite:///{folder / 'app.db'}", folder / "go"
    build = ["/bin/sh", "-c", f"echo compiling; until [ -e '{go}' ]; do sleep 0.05; done; echo linked"]

    async with Runtime(url) as rt:
        handle = await rt.start_command(build, id="build-1", label="the build")
        while not await handle.output():
            await asyncio.sleep(0.01)
        print("1 ", (await handle.output()).strip())

    go.touch()  # no runtime watches it now

    async with Runtime(url) as rt:
        handle = await rt.start_command(build, id="build-1", label="the build")
        result = await handle.result(timeout=30)
        print("2 ", result["exit_code"], result["stdout"].split())
        events = [row.record for row in await handle.journal()]
        print("3  spawned", sum(getattr(one, "event", "") == "command.spawned" for one in events), "time")

        slow = await rt.start_command(["/bin/sh", "-c", "exec sleep 600"])
        await slow.cancel("no longer needed")
        print("4 ", (await slow.wait(timeout=30)).__class__.__name__)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(Path(name)))
