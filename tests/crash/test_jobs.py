"""A worker is killed while a provider works on the answer by itself: the next one waits for that, and buys nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from perdure import Agent, Runtime, RuntimeOptions
from perdure.runtime.internals import core_of, ref_of
from perdure.vocab.records import ModelJobBegun
from tests.providers import spoken
from tests.providers.loopback import Answer, Asked, Loopback, answer

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

CHILD = """
    import asyncio, sys
    from perdure import Agent, Runtime, RuntimeOptions

    async def main():
        settings = {"openai_background": True, "stream": sys.argv[2] == "stream"}
        agent = Agent("a", model="openai:gpt-5.2", model_settings=settings)
        async with Runtime(sys.argv[1], agents=[agent], options=RuntimeOptions(lease_s=1.0)) as rt:
            await (await rt.session("s", agent="a")).send("go", key="k")
            await asyncio.sleep(3600)

    asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 's.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


class Provider:
    """Counts what it sells. The job is done once its buyer is dead."""

    def __init__(self, how: str) -> None:
        self.sold = 0
        self.done = False
        self._how = how

    def __call__(self, asked: Asked) -> Answer:
        if asked.method == "POST":
            self.sold += 1
            return spoken.job_begun() if self._how == "stream" else answer(spoken.job("queued"))
        return answer(spoken.job("completed", "Bought once.") if self.done else spoken.job("in_progress"))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stream", "whole"])
async def test_killed_while_a_job_runs(url: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Provider(how)
    async with Loopback(always=provider).running() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
        child = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", textwrap.dedent(CHILD), url, how])
        try:
            async with Runtime(url, agents=[], worker=False) as looking:
                while not await begun(looking):
                    assert child.poll() is None
                    await asyncio.sleep(0.05)
            os.kill(child.pid, signal.SIGKILL)
            await asyncio.to_thread(child.wait)
            provider.done = True
            settings = {"openai_background": True, "stream": how == "stream"}
            agent = Agent("a", model="openai:gpt-5.2", model_settings=settings)
            async with Runtime(url, agents=[agent], options=RuntimeOptions(lease_s=1.0)) as rt:
                sent = await (await rt.session("s", agent="a")).send("go", key="k")
                assert sent.is_duplicate
                result = await sent.result(timeout=60)
        finally:
            child.kill()
            await asyncio.to_thread(child.wait)
    assert result.text == "Bought once."
    assert provider.sold == 1
    assert (result.usage.input, result.usage.output, result.usage.calls) == (12, 5, 1), "and paid once"


async def begun(rt: Runtime) -> bool:
    rows = await core_of(rt).store.read(ref_of(rt.get_session("s")).stream)
    return any(isinstance(row.record, ModelJobBegun) for row in rows)
