"""The store laws in the hands of a stranger: a store of their own passes them, a broken one fails the law it breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.testing.running import Ran, run_pytest

pytestmark = pytest.mark.timeout(240)

WRAPPER = '''
"""A third party's store: counts what goes through it, and leaves the work to another."""
from collections import Counter
from perdure.store.memory import MemoryStore

class CountingStore:
    def __init__(self, inner):
        self._inner = inner
        self.counted = Counter()

    def __getattr__(self, name):
        self.counted[name] += 1
        return getattr(self._inner, name)
'''

LAWS = """
import pytest
from perdure.store.memory import MemoryStore
from perdure.testing.laws import StoreBench, StoreLaws
from counting import CountingStore

class TestCounting(StoreLaws):
    @pytest.fixture
    async def bench(self):
        memory = []
        def open_store(clock):
            memory.append(memory[0] if memory else MemoryStore(clock))
            return CountingStore(memory[0])
        async with StoreBench(open_store, lambda store, worker: store.kill(worker)) as bench:
            yield bench
"""

BROKEN = '''
import asyncio
import pytest
from msgspec.structs import replace
from perdure.store.memory import MemoryStore
from perdure.testing.laws import StoreBench, StoreLaws

class Forgetful(MemoryStore):
    """Lets the last answer of a promise stand."""

    async def resolve(self, promise, resolution, **how):
        if (known := self._on.promises.get(promise)) and known.resolution:
            import msgspec
            self._on.promises[promise] = msgspec.structs.replace(known, resolution=None)
        return await super().resolve(promise, resolution, **how)

class Trusting(MemoryStore):
    """Believes whoever says that the stream is theirs."""

    def append(self, plan):
        stream = self._on.streams.get(plan.stream)
        if stream and plan.fence < stream.fence:
            plan = replace(plan, fence=stream.fence, n=stream.n + 1, worker=stream.owner)
        return super().append(plan)

class Laws(StoreLaws):
    store = MemoryStore

    @pytest.fixture
    async def bench(self):
        memory = []
        def open_store(clock):
            memory.append(memory[0] if memory else self.store(clock))
            return memory[0]
        async with StoreBench(open_store, self.store.kill) as bench:
            yield bench

class TestForgetful(Laws):
    store = Forgetful

class TestTrusting(Laws):
    store = Trusting
'''


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["asyncio", "anyio"])
def test_third_party_store_passes_every_law(runner: str, tmp_path: Path) -> None:
    laws, options = LAWS, ["-o", "asyncio_mode=auto"]
    if runner == "anyio":
        backend = 'pytestmark = pytest.mark.anyio\n@pytest.fixture\ndef anyio_backend(): return "asyncio"\n'
        laws, options = laws.replace("class TestCounting", f"{backend}\nclass TestCounting"), ["-p", "no:asyncio"]
    ran = run_pytest(tmp_path, {"counting.py": WRAPPER, "test_counting.py": laws}, *options)
    assert ran.code == 0, ran.output
    assert len(ran.outcomes) > 120
    assert ran.failed == set()


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("broken")
    return run_pytest(folder, {"test_broken.py": BROKEN}, "-o", "asyncio_mode=auto", "-o", "junit_family=xunit1")


@pytest.mark.slow
def test_a_store_that_breaks_a_law_fails_that_law(broken: Ran) -> None:
    assert broken.code == 1
    for law in ("TestForgetful::test_the_first_answer_stands", "TestTrusting::test_a_stale_fence_writes_nothing"):
        assert f"FAILED test_broken.py::{law}" in broken.output, broken.output


def test_and_hardly_any_other(broken: Ran) -> None:
    """A broken store fails the laws about its fault and few others."""
    failed = [line for line in broken.output.splitlines() if line.startswith("FAILED")]
    forgetful = [line for line in failed if "TestForgetful" in line]
    trusting = [line for line in failed if "TestTrusting" in line]
    assert 1 <= len(forgetful) <= 5, forgetful
    assert 1 <= len(trusting) <= 12, trusting
    assert len(forgetful) + len(trusting) == len(failed)
