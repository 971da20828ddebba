"""A watchdog of event loops: a step above 50 ms of CPU time fails the test that ran it and names the stack.

Law: CPU time of the loop's thread decides, never the time that passes, so a loaded machine fails no test. The limit is
one of a quiet machine: it grows with the CPU time that a fixed piece of work takes at that time. Not counted:

- first imports, and models of pydantic that libraries leave to their first use: a worker pays both once, and no input
  chooses them;
- garbage collections: most of the heap belongs to pytest and to other tests;
- the code of tests and of `perdure.testing`, and what such code calls outside the package: tests do heavy work on
  purpose, and a tool's body belongs to the application.
"""

from __future__ import annotations

import asyncio
import dis
import gc
import importlib
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

LIMIT_S = 0.05
"""Law 21."""
RESUME = dis.opmap["RESUME"]
LOOK_S = 0.005
"""Interval of the samples of a running step."""

ROOT = Path(__file__).parent.parent
TESTS = str(Path(__file__).parent)
DOUBLES = str(ROOT / "src" / "perdure" / "testing")
PACKAGE = str(ROOT / "src" / "perdure")

Place = tuple[CodeType, int]
"""A frame of a stack: its code, and the line."""


@dataclass(slots=True)
class Step:
    """A step of an event loop, while it runs."""

    handle: asyncio.Handle
    thread: int
    clock: int
    began: float
    excluded: float = 0.0
    excluding: float | None = None
    """CPU time at which an import or a collection began, while one is under way."""
    depth: int = 0
    seen: float = 0.0
    """CPU time that the samples have attributed."""
    samples: dict[tuple[Place, ...], float] = field(default_factory=dict[tuple[Place, ...], float])
    """CPU time by stack."""

    def spent(self, now: float) -> float:
        """Return the CPU time of the step until now, without exclusions."""
        return (now if self.excluding is None else self.excluding) - self.began - self.excluded

    def attribute(self, stack: tuple[Place, ...], now: float) -> None:
        """Attribute the CPU time since the last sample to a stack."""
        spent = self.spent(now)
        self.samples[stack] = self.samples.get(stack, 0.0) + spent - self.seen
        self.seen = spent


@dataclass(frozen=True, slots=True)
class Finding:
    """A step above the limit."""

    cpu_s: float
    handle: str
    stack: tuple[Place, ...]
    """The stack that took the most time, the running function first."""

    def __str__(self) -> str:
        where = "\n".join(f"    {code.co_filename}:{line} in {code.co_qualname}" for code, line in self.stack)
        head = f"law 21: {1000 * self.cpu_s:.0f} ms of CPU time in one step of the event loop, {self.handle}"
        return f"{head}\n{where or '    (a function without Python code)'}"


def _cost_of_reference() -> float:
    """Return the CPU time of a fixed piece of work, about a millisecond."""
    began = time.thread_time()
    sum(len(str(number)) for number in range(5_000))
    return time.thread_time() - began


class Watchdog:
    """The watchdog of this process. `findings` holds what no test has taken yet."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._running: dict[int, Step] = {}
        self._best = min(_cost_of_reference() for _ in range(20))
        self._clocks = threading.local()

    def start(self) -> None:
        """Watch all steps of all event loops from now on."""
        run = asyncio.Handle._run  # every callback of every loop passes it
        setattr(asyncio.Handle, "_run", self._watched(run))  # noqa: B010 - a method is not assigned to
        bootstrap: Any = importlib.import_module("importlib._bootstrap")  # its function runs for first imports only
        bootstrap._find_and_load = self._excluded(bootstrap._find_and_load)
        gc.callbacks.append(self._on_collection)
        threading.Thread(target=self._look, name="watchdog", daemon=True).start()

    def _watched(self, run: Callable[[asyncio.Handle], None]) -> Callable[[asyncio.Handle], None]:
        running, now = self._running, time.thread_time

        def watched(handle: asyncio.Handle) -> None:
            thread = threading.get_ident()
            step = running[thread] = Step(handle, thread, self._clock(), now())
            try:
                run(handle)
            finally:
                spent = step.spent(now())
                del running[thread]
                if spent > LIMIT_S:
                    self._judge(step, spent)

        return watched

    def _clock(self) -> int:
        """Return the CPU clock of this thread, which other threads can read."""
        clock = getattr(self._clocks, "clock", None)
        if clock is None:
            clock = self._clocks.clock = time.pthread_getcpuclockid(threading.get_ident())
        return clock

    def _judge(self, step: Step, spent: float) -> None:
        """Report a step whose time outside of tests exceeds the limit."""
        rest = spent - step.seen  # after the last sample
        samples = step.samples or {(): 0.0}
        heaviest = max(samples, key=lambda stack: samples[stack])
        samples[heaviest] += rest
        own = {stack: used for stack, used in samples.items() if not is_of_tests(stack) and not is_first_use(stack)}
        if (total := sum(own.values())) > LIMIT_S * self._slowdown():
            self.findings.append(Finding(total, repr(step.handle), max(own, key=lambda stack: own[stack])))

    def _slowdown(self) -> float:
        """Return how much more CPU time the same work costs now than at best: cores share caches and units."""
        cost = min(_cost_of_reference() for _ in range(3))  # one sample alone may be noise
        self._best = min(self._best, cost)
        return cost / self._best

    def _excluded(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def find_and_load(*args: Any) -> Any:
            with self._exclusion():
                return load(*args)

        return find_and_load

    @contextmanager
    def _exclusion(self) -> Generator[None]:
        self._exclude()
        try:
            yield
        finally:
            self._include()

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._exclude()
        else:
            self._include()

    def _exclude(self) -> None:
        if step := self._running.get(threading.get_ident()):
            step.depth += 1
            if step.depth == 1:
                step.excluding = time.thread_time()

    def _include(self) -> None:
        if (step := self._running.get(threading.get_ident())) and step.depth:
            step.depth -= 1
            if step.depth == 0 and step.excluding is not None:
                step.excluded += time.thread_time() - step.excluding
                step.excluding = None

    def _look(self) -> None:
        """Sample the stacks of running steps. A look waits until a long call of C code gives the interpreter back."""
        while True:
            time.sleep(LOOK_S)
            self._sample_all()

    def _sample_all(self) -> None:  # a function of its own: no variable keeps a step alive between two samples
        for step in list(self._running.values()):
            self._sample(step)

    def _sample(self, step: Step) -> None:
        try:
            now = time.clock_gettime(step.clock)
        except OSError:  # the thread has ended
            return
        if step.spent(now) - step.seen < LOOK_S / 2:  # it has just begun, or it waits
            return
        frame = sys._current_frames().get(step.thread)  # pyright: ignore[reportPrivateUsage] - the only way to a stack
        if frame is not None and self._running.get(step.thread) is step:
            step.attribute(stack_of(_at_work(frame)), now)


def _at_work(frame: FrameType) -> FrameType:
    """Return the frame that used the time: a sample at the very begin of a function shows the past of its caller.

    Python gives up the interpreter at the begin of functions, not after an operator such as `text * 1_000_000`.
    """
    code = frame.f_code
    begins = code.co_code[frame.f_lasti] == RESUME and code.co_code[frame.f_lasti + 1] == 0
    caller = frame.f_back
    return caller if begins and caller is not None and caller.f_code.co_name != "watched" else frame


def stack_of(frame: FrameType | None) -> tuple[Place, ...]:
    """Return the frames of a step, the running function first."""
    found = list[Place]()
    while frame is not None and frame.f_code.co_name != "watched":
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def is_of_tests(stack: tuple[Place, ...]) -> bool:
    """Return whether the innermost function of this repository belongs to a test."""
    for code, _ in stack:
        if code.co_filename.startswith((TESTS, DOUBLES)):
            return True
        if code.co_filename.startswith(PACKAGE):
            return False
    return False


def is_first_use(stack: tuple[Place, ...]) -> bool:
    """Return whether pydantic builds a model that was declared before, and left to its first use."""
    return any(code.co_filename.endswith("/pydantic/_internal/_mock_val_ser.py") for code, _ in stack)


watchdog = Watchdog()


def pytest_configure(config: pytest.Config) -> None:
    """Start the watchdog."""
    config.addinivalue_line("markers", "holds_the_loop(reason): steps of this test may exceed 50 ms of CPU time")
    watchdog.start()


@contextmanager
def _watched(item: pytest.Item) -> Generator[None]:
    """Fail a phase of a test; a phase that fails by itself gets the findings as a note."""
    watchdog.findings.clear()
    try:
        yield
    except Exception as problem:
        for finding in watchdog.findings:
            problem.add_note(str(finding))
        raise
    if watchdog.findings and item.get_closest_marker("holds_the_loop") is None:
        pytest.fail("\n".join(map(str, watchdog.findings)), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Watch the fixtures of a test."""
    with _watched(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Watch a test."""
    with _watched(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Watch the end of the fixtures."""
    with _watched(item):
        return (yield)
