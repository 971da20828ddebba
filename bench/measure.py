"""Shared parts of the benchmark programs: options, output, counters, and the kill of w4.

A program runs one workload in one process and prints one line, `RESULT {json}`. Workloads:

w1a  1 workflow of 1,000 steps             w2a  200 turns in one session (2 model calls, 1 tool call each)
w1b  50 workflows of 100 steps             w2b  200 sessions of one turn, 20 at a time
w3   5,000 workflows waiting for an event  w4   500 workflows of 10 steps, SIGKILL at half, restart
w5   200 sessions of one turn whose model thinks for 20 ms, sent to workers that run five at a time
w6   200 background runs, one after the other: from the end of each to the session's next turn
w7   200 occurrences of a trigger, one after the other: from each to the first step of the process it starts
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

SHAPES = {"w1a": (1, 1000), "w1b": (50, 100), "w3": (5000, 0), "w4": (500, 10), "w4child": (500, 10), "w5": (1, 0)}
PAYLOAD = {"step": 1, "ok": True, "text": "x" * 160, "score": 0.5}  # about 200 bytes once it is JSON
ASK = "please look up the item and tell me what it is; " + "q" * 52
ARGUMENT = "x" * 20
FOUND = "tool result: " + "t" * 187
ANSWER = "the item is as follows: " + "a" * 176


def options(*works: str) -> argparse.Namespace:
    """Parse the command line of a program with these workloads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=works)
    parser.add_argument("--dir", type=Path, required=True, help="folder on the disk to measure")
    parser.add_argument("--url", default="", help="empty Postgres database instead of a file in --dir")
    parser.add_argument("--mode", default="", help="variant of the candidate")
    parser.add_argument("--workflows", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=20)
    parser.add_argument("--cap", type=float, default=60.0, help="time limit in seconds")
    parser.add_argument("--again", action="store_true", help="run the process after the kill")
    chosen = parser.parse_args()
    workflows, steps = SHAPES.get(chosen.work, (0, 0))
    chosen.workflows = workflows if chosen.workflows is None else chosen.workflows
    chosen.steps = steps if chosen.steps is None else chosen.steps
    chosen.dir.mkdir(parents=True, exist_ok=True)
    return chosen


def tell(**numbers: object) -> None:
    """Print the result line of a program."""
    print("RESULT " + json.dumps(numbers), flush=True)


def speed(items: int, seconds: float, cpu_s: float, **more: object) -> dict[str, object]:
    """Return the throughput and CPU time per item."""
    return {"items": items, "per_s": round(items / seconds, 1), "cpu_ms_each": round(cpu_s / items * 1e3, 3), **more}


def cpu_s() -> float:
    """Return the CPU seconds of this process."""
    used = os.times()
    return used.user + used.system


def rss_mb(pid: int | None = None) -> float:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid or os.getpid()}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return round(int(line.split()[1]) / 1024, 2)
    return 0.0


def stored_bytes(folder: Path) -> int:
    """Return the size of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def share(values: Iterable[float], part: float) -> float:
    """Return a percentile in milliseconds."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1e3, 3) if ordered else 0.0


class StepLog:
    """Record of executed steps outside the store: one line per step, safe from SIGKILL."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "steps.log"
        self._file = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def step(self, workflow: str, n: int) -> None:
        os.write(self._file, f"step {workflow} {n}\n".encode())

    def done(self, workflow: str, note: str = "-") -> None:
        os.write(self._file, f"done {workflow} {note}\n".encode())

    def read(self) -> tuple[Counter[str], dict[str, str]]:
        """Return the count of each step, and the finished workflows."""
        lines = [line.split() for line in self.path.read_text().splitlines()]
        steps = Counter(f"{name} {n}" for what, name, n in lines if what == "step")
        return steps, {name: note for what, name, note in lines if what == "done"}

    def steps(self) -> int:
        return self.path.read_bytes().count(b"step ")


def kill_and_start_again(start: Callable[[bool], subprocess.Popen[bytes]], chosen: argparse.Namespace) -> None:
    """Kill the worker after half of all steps, restart it, and report the time until all workflows are done."""
    log = StepLog(chosen.dir)
    total, deadline = chosen.workflows * chosen.steps, time.perf_counter() + chosen.cap
    worker = start(False)
    while log.steps() < total // 2 and worker.poll() is None and time.perf_counter() < deadline:
        time.sleep(0.005)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    before, _ = log.read()
    killed, first_s = time.perf_counter(), 0.0
    worker = start(True)
    while time.perf_counter() < killed + chosen.cap:
        if not first_s and log.steps() > before.total():
            first_s = time.perf_counter() - killed
        if len(log.read()[1]) >= chosen.workflows:
            break
        time.sleep(0.01)
    all_s = time.perf_counter() - killed
    steps, done = log.read()
    doubted = {f"{name} {n}" for name, note in done.items() for n in note.split(",") if n.isdigit()}
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    tell(
        steps_at_kill=before.total(),
        first_step_s=round(first_s, 2),
        all_done_s=round(all_s, 2),
        done=len(done),
        steps_twice=sum(times > 1 for times in steps.values()),
        steps_missing=total - len(steps.keys() | doubted),
        told_in_doubt=len(doubted),
    )


def child(chosen: argparse.Namespace, again: bool) -> subprocess.Popen[bytes]:
    """Start this program as the worker of the recovery workload."""
    shape = ["--workflows", str(chosen.workflows), "--steps", str(chosen.steps), "--mode", chosen.mode]
    shape += ["--url", chosen.url] if chosen.url else []
    command = [sys.executable, sys.argv[0], "w4child", "--dir", str(chosen.dir), *shape]
    return subprocess.Popen([*command, *(["--again"] if again else [])], stdout=subprocess.DEVNULL)
