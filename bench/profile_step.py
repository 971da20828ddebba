"""Cost of a step by part, in microseconds: samples of the event loop's thread during workload w1b.

    .venv/bin/python bench/profile_step.py w1b --dir DIR [--workflows 50] [--steps 800] [--url postgresql://…]

The number of a part includes its callees. `waiting` is an idle event loop, or one that waits for the interpreter lock
while the writer holds it. The writer's CPU time is printed separately, from the system's count of its thread. Postgres
has no such thread; the server's CPU time is printed instead if it runs on this machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType

import asyncpg
import ours
from measure import options

SAMPLE_S = 0.001
PARTS = {
    "waiting": ("selectors.py", "select"),
    "the step, all of it": ("tools/body.py", "step"),
    "its name and envelope checked": ("tools/body.py", "_reserve _described"),
    "its input checked": ("tools/step_arguments.py", "checked_input"),
    "begin: fingerprint, journal, intent": ("effects/controller.py", "begin"),
    "settle: outcome": ("effects/controller.py", "settle"),
    "records encoded and read back": ("commit/plan.py", "of"),
    "handing an append to the writer": ("runtime/worker/owned.py", "flush"),
    "the user's function": ("tools/steps.py", "run"),
    "its result checked": ("tools/step_outcomes.py", "returned"),
    "answers of the writer, folded": ("store/sqlite/writer.py", "_settle"),
    "a batch, all of it (Postgres)": ("store/postgres/store.py", "_commit_appends"),
    "of it: columns": ("store/postgres/appends.py", "_arguments"),
    "of it: the driver": ("store/postgres/tx.py", "all"),
    "of it: answers, folded": ("store/postgres/store.py", "_answer"),
    "turns around the steps": ("runtime/worker/stream_pool.py", "_serve"),
}


class Samples:
    """The parts found on the stack at each sample."""

    def __init__(self) -> None:
        self.taken = 0
        self.within: Counter[str] = Counter()

    def take(self, _: int, frame: FrameType | None) -> None:
        """Sample the stack of the main thread."""
        self.taken += 1
        seen: set[str] = set()
        while frame is not None:
            file, name = frame.f_code.co_filename, frame.f_code.co_name
            seen |= {part for part, (end, names) in PARTS.items() if file.endswith(end) and name in names.split()}
            frame = frame.f_back
        self.within.update(seen)


def _cpu_of(name: str) -> float:
    """Return the CPU seconds of a thread of this process."""
    for thread in threading.enumerate():
        if thread.name == name:
            return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9
    return 0.0


class Server:
    """A local Postgres server: CPU seconds of all its processes, and bytes of its log."""

    def __init__(self, url: str) -> None:
        self._url = url

    def did(self) -> tuple[float, int]:
        """Return the totals so far, queried from another thread because the event loop is busy."""
        with ThreadPoolExecutor(1) as beside:
            return beside.submit(asyncio.run, self._ask()).result()

    async def _ask(self) -> tuple[float, int]:
        connection = await asyncpg.connect(self._url)
        try:
            written = await connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
            data = await connection.fetchval("SHOW data_directory")
        finally:
            await connection.close()
        return _cpu_of_server(Path(data)), int(written)


def _cpu_of_server(data: Path) -> float:
    master = (data / "postmaster.pid").read_text().split()[0]
    ticks = sum(_ticks(Path("/proc") / master, 4))
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            if _fields(process)[1] == master:
                ticks += sum(_ticks(process, 2))
    return ticks / os.sysconf("SC_CLK_TCK")


def _fields(process: Path) -> list[str]:
    return (process / "stat").read_text().rsplit(")", 1)[1].split()


def _ticks(process: Path, count: int) -> list[int]:
    """Return the user and system time of a process, and of its ended children."""
    return [int(field) for field in _fields(process)[11 : 11 + count]]


def main() -> None:
    chosen = options("w1a", "w1b")
    samples, writer = Samples(), list[float]()
    server, did = Server(chosen.url) if chosen.url else None, list[tuple[float, int]]()
    original = ours.cpu_s

    def noting() -> float:
        """Note the totals. Called at the start and at the end of the steps; sampling runs only between."""
        if server:
            did.append(server.did())
        writer.append(_cpu_of("perdure-writer"))
        pause = SAMPLE_S if len(writer) == 1 else 0
        signal.setitimer(signal.ITIMER_PROF, pause, pause)
        return original()

    signal.signal(signal.SIGPROF, samples.take)
    ours.cpu_s = noting
    began = time.process_time()
    asyncio.run(ours.steps(chosen))
    steps = chosen.workflows * chosen.steps
    used_us = (time.process_time() - began) / steps * 1e6
    print(f"{used_us:.0f} us of CPU per step, of which the writer thread {(writer[1] - writer[0]) / steps * 1e6:.0f}")
    if did:
        (cpu, wal), (later_cpu, later_wal) = did
        wal_each = (later_wal - wal) / steps
        print(f"{(later_cpu - cpu) / steps * 1e6:.0f} us of CPU of the server, {wal_each:.0f} bytes of WAL")
    for part in PARTS:
        share = samples.within[part] / max(1, samples.taken)
        print(f"{share * used_us:6.1f} us  {share:5.1%}  {part}")


if __name__ == "__main__":
    main()
