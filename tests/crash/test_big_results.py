"""Results without bounds, in a process that is short of memory: an error for the model, and no crash."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

import pytest

from perdure import Agent, Runtime, tool
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, call, say
from perdure.vocab.messages import ToolResultPart
from tests.crash.harness import processes

pytestmark = [pytest.mark.crash, pytest.mark.timeout(60)]

MEMORY_BYTES = 900_000_000


def nested() -> Json:
    value: Json = 1
    for _ in range(1_000_000):
        value = [value]
    return value


def shared() -> Json:
    value: Json = "x"
    for _ in range(30):
        value = [value, value]
    return value


RESULTS = {
    "long": lambda: "x" * 300_000_000,
    "bytes": lambda: b"x" * 300_000_000,
    "wide": lambda: [None] * 30_000_000,
    "nested": nested,
    "shared": shared,
}


async def _work(folder: Path, kind: str) -> None:
    @tool(effect="once")
    async def big() -> Json:
        """Return too much."""
        return RESULTS[kind]()

    model = ScriptedModel(call("big"), say("done"))
    async with Runtime("memory://", agents=[Agent("a", model=model, tools=[big])]) as rt:
        session = await rt.session("s", agent="a")
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        sys.setrecursionlimit(100_000_000)  # as some libraries do: then nothing but a bound prevents a stack overflow
        result = await (await session.send("go")).result(timeout=40)
        assert result.status == "finished", result
        [told] = [p.output for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)]
        (folder / "told").write_text(str(told))


def work(folder: str, kind: str) -> None:
    asyncio.run(_work(Path(folder), kind))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("long", "more than 20000000 bytes"),
        ("bytes", "more than 20000000 bytes"),
        ("wide", "more than 200000 values"),
        ("nested", "nested more than 200 levels deep"),
        ("shared", "more than 200000 values"),
    ],
)
def test_s26_x5_result_above_a_bound_is_an_error_and_no_crash(kind: str, reason: str, tmp_path: Path) -> None:
    """S26: the bounds are checked before anything is converted or encoded."""
    process = processes.Process(target=work, args=(str(tmp_path), kind))
    process.start()
    process.join(50)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode == 0
    told = (tmp_path / "told").read_text()
    assert "tool_result_invalid" in told
    assert "The tool did run" in told
    assert reason in told
