"""Latency between an event and the reaction to it.

`w6`: the session's next turn after a background run has ended. `w7`: the first step of a process after an occurrence of
a trigger was emitted. One after the other, in this process, or with `--workflows N` in N worker processes. Event and
reaction may be in different processes; both note the time of the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path

from measure import options, share, tell
from ours import SPENT, address

from perdure import Agent, BaseTool, ProcessContext, Runtime, ToolContext, ToolHints, process
from perdure.codec import Json
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest, ProviderCall
from perdure.models.scripted import ScriptedModel
from perdure.runtime.processes.function import ProcessFunction
from perdure.services.background import BackgroundEventSink, BackgroundOutcome
from perdure.tools import ToolResult
from perdure.tools.background import SpawnBackgroundTool
from perdure.vocab.messages import Text, ToolResultPart

ASK = "Index it"
WARM = 10


class Moments:
    """Times of events, one line each, in a file that all processes append to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "moments"
        self._file = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def note(self, what: str, name: str) -> None:
        os.write(self._file, f"{what} {name} {time.monotonic_ns()}\n".encode())

    def read(self) -> dict[str, dict[str, int]]:
        """Return the times by event and name."""
        found: dict[str, dict[str, int]] = {}
        for line in self.path.read_text().splitlines():
            what, name, at = line.split()
            found.setdefault(what, {}).setdefault(name, int(at))
        return found


class Index(BaseTool):
    """A tool that runs in the background."""

    name = "index"
    description = "Index the library."
    parameters_schema: Json = {"type": "object"}  # noqa: RUF012 - the form of every tool
    hints = ToolHints(supports_background=True, idempotent=True)

    def __init__(self, moments: Moments) -> None:
        self._moments = moments

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.tool_error("This takes long: spawn it in the background.")

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        self._moments.note("ended", str(arguments["session"]))
        return BackgroundOutcome("indexed 12 books", {"books": 12})


class Librarian(ScriptedModel):
    """A model that spawns a run when asked, and notes the message of its end."""

    def __init__(self, moments: Moments) -> None:
        super().__init__()
        self._moments = moments

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        last = request.messages[-1].parts[-1]
        part: Text | ProviderCall = Text(text="fine")
        if isinstance(last, Text) and last.text.startswith(ASK):
            name = last.text.split()[-1]
            spawn = f'{{"tool": "index", "args": {{"session": "{name}"}}, "title": "{name}"}}'
            part = ProviderCall(provider_id="call_0", name="spawn_background", arguments=spawn)
        elif not isinstance(last, ToolResultPart):
            first = request.messages[0].parts[0]
            assert isinstance(first, Text)
            self._moments.note("heard", first.text.split()[-1])
        yield ModelReply(parts=(part,), finish="stop", usage=SPENT, model="bench")


def librarian(moments: Moments) -> Agent:
    return Agent("a", model=Librarian(moments), tools=[SpawnBackgroundTool(), Index(moments)])


async def after_a_run(rt: Runtime, moments: Moments, name: str) -> None:
    """Start a background run in a session."""
    await (await rt.session(name, agent="a")).ask(f"{ASK} {name}")


def receipts(moments: Moments) -> ProcessFunction:
    @process
    async def receipt(ctx: ProcessContext, order: dict[str, str]) -> str:
        """Write a receipt."""

        def write() -> str:
            moments.note("heard", order["name"])
            return "written"

        return await ctx.step("write", write)

    return receipt


async def after_an_occurrence(rt: Runtime, moments: Moments, name: str) -> None:
    """Emit an occurrence."""
    moments.note("ended", name)
    await rt.triggers.emit("order.paid", {"name": name}, key=name)


def runtime(chosen: Namespace, moments: Moments, *, worker: bool) -> Runtime:
    if chosen.work.startswith("w6"):
        return Runtime(address(chosen), agents=[librarian(moments)], worker=worker)
    return Runtime(address(chosen), processes=[receipts(moments)], worker=worker)


async def reactions(chosen: Namespace) -> None:
    moments, act = Moments(chosen.dir), after_a_run if chosen.work == "w6" else after_an_occurrence
    workers = [_worker(chosen) for _ in range(chosen.workflows)]
    try:
        async with runtime(chosen, moments, worker=not workers) as rt:
            if chosen.work == "w7":
                await rt.triggers.subscribe("order.paid", receipts(moments), key="receipts")
            for k in range(WARM + chosen.turns):
                await act(rt, moments, f"s{k}")
                async with asyncio.timeout(chosen.cap):
                    while f"s{k}" not in moments.read().get("heard", {}):  # another process may note it
                        await asyncio.sleep(0.002)
    finally:
        for one in workers:
            one.terminate()
            one.wait()
    found = moments.read()
    took = [(found["heard"][f"s{k}"] - found["ended"][f"s{k}"]) / 1e9 for k in range(WARM, WARM + chosen.turns)]
    tell(reactions=len(took), p50_ms=share(took, 0.5), p99_ms=share(took, 0.99), workers=chosen.workflows)


def _worker(chosen: Namespace) -> subprocess.Popen[bytes]:
    where = ["--dir", str(chosen.dir), "--url", chosen.url]
    return subprocess.Popen([sys.executable, sys.argv[0], f"{chosen.work}child", *where])


async def work_for_others(chosen: Namespace) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with runtime(chosen, Moments(chosen.dir), worker=True):
        await stop.wait()


def main() -> None:
    chosen = options("w6", "w6child", "w7", "w7child")
    asyncio.run((work_for_others if chosen.work.endswith("child") else reactions)(chosen))


if __name__ == "__main__":
    main()
