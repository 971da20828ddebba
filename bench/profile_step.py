"""What a step costs, by part, in microseconds: samples of the event loop's thread while workflows of steps run (w1b).

    python bench/profile_step.py w1b --dir DIR [--workflows 50] [--steps 800]

A part's number holds what it calls. `waiting` is the event loop with nothing to do, or waiting for the interpreter
while the writer has it; the writer's own time is told beside it, from the system's count of its thread.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

import ours
from measure import options

SAMPLE_S = 0.001
PARTS = {
    "waiting": ("selectors.py", "select"),
    "the step, all of it": ("tools/body.py", "step"),
    "its name, input and envelope checked": ("tools/body.py", "_reserve _checked_input _envelope"),
    "begin: fingerprint, journal, intent": ("effects/controller.py", "begin"),
    "settle: outcome": ("effects/controller.py", "settle"),
    "records encoded and read back": ("commit/plan.py", "of"),
    "handing an append to the writer": ("runtime/owned.py", "flush"),
    "the user's function, its result checked": ("tools/body.py", "_call _kept"),
    "answers of the writer, folded": ("store/sqlite/writer.py", "_settle"),
    "turns around the steps": ("runtime/serving.py", "_serve"),
}


class Samples:
    """Which parts were on the stack, each time we looked."""

    def __init__(self) -> None:
        self.taken = 0
        self.within: Counter[str] = Counter()

    def take(self, _: int, frame: FrameType | None) -> None:
        """Look at the stack of the main thread."""
        self.taken += 1
        seen: set[str] = set()
        while frame is not None:
            file, name = frame.f_code.co_filename, frame.f_code.co_name
            seen |= {part for part, (end, names) in PARTS.items() if file.endswith(end) and name in names.split()}
            frame = frame.f_back
        self.within.update(seen)


def _cpu_of(name: str) -> float:
    """CPU seconds of a thread of this process."""
    for thread in threading.enumerate():
        if thread.name == name:
            return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9
    return 0.0


def main() -> None:
    chosen = options("w1b")
    samples, writer = Samples(), list[float]()
    original = ours.cpu_s

    def noting() -> float:
        """Called when the steps begin and when they have ended: only they are looked at."""
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
    print(f"{used_us:.0f} us of CPU a step, of which the writer's thread {(writer[1] - writer[0]) / steps * 1e6:.0f}")
    for part in PARTS:
        share = samples.within[part] / max(1, samples.taken)
        print(f"{share * used_us:6.1f} us  {share:5.1%}  {part}")


if __name__ == "__main__":
    main()
