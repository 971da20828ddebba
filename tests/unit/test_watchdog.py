"""The watchdog of event loops: which steps it reports, and how."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.watchdog import DOUBLES, PACKAGE, ROOT, Finding, watchdog


def burn() -> None:
    """Use 80 ms of CPU time."""
    end = time.thread_time() + 0.08
    while time.thread_time() < end:
        pass


def written_in(file: str) -> Callable[[], None]:
    """Return a function of another file that uses 80 ms of CPU time."""
    scope: dict[str, Callable[[], None]] = {}
    source = "import time\ndef burn():\n    end = time.thread_time() + 0.08\n    while time.thread_time() < end: pass\n"
    exec(compile(source, file, "exec"), scope)
    return scope["burn"]


async def findings_of(step: Callable[[], object]) -> list[Finding]:
    """Return what the watchdog reports for one step."""
    asyncio.get_running_loop().call_soon(step)
    await asyncio.sleep(0.01)
    found, watchdog.findings[:] = list(watchdog.findings), []
    return found


@pytest.mark.parametrize("file", [f"{PACKAGE}/codec.py", "/site-packages/library.py"])
async def test_step_of_80_ms_of_cpu_time_is_reported_with_its_function(file: str) -> None:
    [found] = await findings_of(written_in(file))
    assert 0.07 < found.cpu_s < 1
    assert f"{file}:4 in burn" in str(found)


async def test_steps_that_only_wait_are_not_reported() -> None:
    assert await findings_of(lambda: time.sleep(0.2)) == []


@pytest.mark.parametrize("file", [__file__, f"{DOUBLES}/doubles.py"])
async def test_work_of_tests_and_their_doubles_is_not_reported(file: str) -> None:
    assert await findings_of(written_in(file)) == []


async def test_work_of_the_package_for_a_test_is_reported() -> None:
    work = written_in(f"{PACKAGE}/codec.py")
    assert len(await findings_of(lambda: work())) == 1


async def test_work_of_a_library_for_a_test_is_not_reported() -> None:
    work = written_in("/site-packages/library.py")
    assert await findings_of(lambda: work()) == []


async def test_step_of_many_short_calls_counts_only_those_of_the_package() -> None:
    work = written_in(f"{PACKAGE}/codec.py")

    def mixed() -> None:
        for _ in range(6):
            burn()
        work()

    [found] = await findings_of(mixed)
    assert found.cpu_s < 0.4, "the six others are a test's"


async def test_first_use_of_a_model_of_pydantic_is_not_reported() -> None:
    assert await findings_of(written_in("/site-packages/pydantic/_internal/_mock_val_ser.py")) == []


async def test_operator_is_work_of_its_function_and_not_of_the_next_one() -> None:
    scope: dict[str, Callable[[bytes], int]] = {}
    exec(compile("def length(data): return len(data)", f"{PACKAGE}/codec.py", "exec"), scope)

    def fill() -> None:
        scope["length"](b"x" * (256 << 20))

    assert await findings_of(fill) == []


TESTS = """
import asyncio, gc, pathlib, sys, time

def burn():
    end = time.thread_time() + 0.08
    while time.thread_time() < end: pass

async def one(step):
    asyncio.get_running_loop().call_soon(step)
    await asyncio.sleep(0.01)

def load():
    import slow_module

class Costly:
    def __init__(self): self.me = self
    def __del__(self): burn()

async def test_burning(): await one(burn)
async def test_failing():
    await one(burn)
    raise ValueError("its own failure")
async def test_sleeping(): await one(lambda: time.sleep(0.2))
async def test_importing(): await one(load)
async def test_collecting():
    Costly()
    await one(gc.collect)
"""


def test_step_above_the_limit_fails_the_test_that_ran_it(tmp_path: Path) -> None:
    (tmp_path / "test_steps.py").write_text(TESTS)
    (tmp_path / "slow_module.py").write_text(
        "import time\nend = time.thread_time() + 0.08\nwhile time.thread_time() < end: pass\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\npythonpath = .\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.watchdog", "-p", "no:cacheprovider", "--rootdir", tmp_path]
    quiet = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}  # short summaries
    ran = subprocess.run([*command, tmp_path], cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert "2 failed, 3 passed" in ran.stdout, ran.stdout
    assert "FAILED" in ran.stdout
    assert "test_steps.py::test_burning" in ran.stdout
    assert ran.stdout.count("test_steps.py:6 in burn") == 2, "a test that fails by itself tells it, too"
