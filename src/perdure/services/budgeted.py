"""Evaluation of other people's patterns and schemas in child processes with budgets.

Laws: the event loop only waits. An evaluation that exceeds its CPU time, its memory or its time limit ends its child,
and is an answer: `Exceeded`. The next evaluation gets a new child. Children start on demand, are reused, have no
environment, and end with this process.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, Literal, cast

from perdure.codec import Json
from perdure.services import budgeted_child

log = logging.getLogger("perdure.services")

CPU_S = 0.5
"""Default CPU time of an evaluation. Loading the engine is not charged."""
WALL_S = 10.0
"""Time limit of an evaluation, for a machine that is too busy to use the CPU time."""
MEMORY_BYTES = 1024 * 1024 * 1024
"""Address space of a child."""
CHILDREN = 2

Reason = Literal["cpu", "memory", "time", "error"]


@dataclass(frozen=True, slots=True)
class Exceeded:
    """An evaluation without a result: a budget was exceeded, or the evaluation itself failed."""

    reason: Reason
    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The result of an evaluation."""

    value: Json


async def evaluate(function: Callable[..., object], *args: Json, cpu_s: float = CPU_S) -> Evaluated | Exceeded:
    """Call a function of this package in a child process. Arguments and result are JSON."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_children().threads, _children().evaluate, function, args, cpu_s)


@cache
def _children() -> _Children:
    children = _Children()
    atexit.register(children.close)
    os.register_at_fork(after_in_child=partial(_leave_to_parent, children))
    return children


def _leave_to_parent(children: _Children) -> None:
    """Start anew in a forked process: it has neither the threads nor the children of its parent."""
    atexit.unregister(children.close)
    _children.cache_clear()


class _Children:
    """The child processes of this process. Independent of event loops: threads wait for the answers."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(CHILDREN, thread_name_prefix="perdure:budgeted")
        self._lock = threading.Lock()
        self._idle: list[_EvaluationChild] = []

    def evaluate(self, function: Callable[..., object], args: tuple[Json, ...], cpu_s: float) -> Evaluated | Exceeded:
        try:
            child = self._take()
        except OSError as problem:
            return Exceeded("error", f"no process could be started: {problem}")
        answer = child.ask(function, args, cpu_s)
        if child.alive:
            with self._lock:
                self._idle.append(child)
        else:
            log.warning("evaluation stopped function=%s reason=%s", function.__qualname__, answer)
        return answer

    def _take(self) -> _EvaluationChild:
        with self._lock:
            while self._idle:
                if (child := self._idle.pop()).alive:
                    return child
        return _EvaluationChild()

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)
        for child in self._idle:
            child.end()


class _EvaluationChild:
    """One child process, used by one thread at a time."""

    def __init__(self) -> None:
        program = [sys.executable, "-I", "-S", str(Path(budgeted_child.__file__))]
        self._process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}
        )
        self._to = cast("IO[bytes]", self._process.stdin)
        self._back = cast("IO[bytes]", self._process.stdout)
        self._timed_out = False
        with suppress(OSError):  # reported by the first request
            self._send({"path": sys.path, "memory_bytes": MEMORY_BYTES})

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, function: Callable[..., object], args: tuple[Json, ...], cpu_s: float) -> Evaluated | Exceeded:
        limit = threading.Timer(WALL_S, self._time_out)
        limit.start()
        try:
            self._send({"module": function.__module__, "function": function.__name__, "args": args, "cpu_s": cpu_s})
            answer = self._read()
        except (OSError, EOFError):
            return self._ended(cpu_s)
        finally:
            limit.cancel()
        match answer.get("failed"):
            case None:
                return Evaluated(answer["value"])
            case "memory":
                self.end()
                return _out_of_memory()
            case _:
                return Exceeded("error", answer["problem"])

    def _time_out(self) -> None:
        self._timed_out = True
        self._process.kill()

    def _ended(self, cpu_s: float) -> Exceeded:
        """Return the reason why the child ended: the only signals that it gets are those of its limits."""
        import signal

        self.end()
        if self._timed_out:
            return Exceeded("time", f"not finished within {WALL_S:g} s")
        if self._process.returncode == -signal.SIGPROF:
            return Exceeded("cpu", f"more than {cpu_s:g} s of CPU time")
        return _out_of_memory()

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        self._to.write(budgeted_child.LENGTH.pack(len(data)) + data)
        self._to.flush()

    def _read(self) -> dict[str, Any]:
        length = budgeted_child.LENGTH
        head = self._back.read(length.size)
        if len(head) < length.size:
            raise EOFError
        (size,) = length.unpack(head)
        data = self._back.read(size)
        if len(data) < size:
            raise EOFError
        return json.loads(data)

    def end(self) -> None:
        """Kill the child and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._to, self._back):
            with suppress(OSError):  # bytes that the child never read
                pipe.close()


def _out_of_memory() -> Exceeded:
    return Exceeded("memory", f"more than {MEMORY_BYTES >> 20} MiB of memory")
