"""Killed while a background run asks a model: the call is charged to the session once, as estimated."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure import Agent, BaseTool, Runtime, ToolContext, ToolHints
from perdure.codec import Json
from perdure.ids import DEFAULT_TENANT
from perdure.models.protocol import ModelEvent, ModelRequest
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import core_of
from perdure.services.background import BackgroundEventSink, BackgroundOutcome
from perdure.session.ledger import UsageEntry
from perdure.tools import ToolResult
from perdure.tools.background import SpawnBackgroundTool
from perdure.vocab.records import EffectStarted
from perdure.vocab.usage import Usage
from tests.crash.harness import processes

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]
ANY: Json = {"type": "object"}


class Asks(BaseTool):
    """Asks a model twice."""

    name = "asks"
    description = "Ask."
    parameters_schema: Json = ANY

    def __init__(self, *, again: bool) -> None:
        self.hints = ToolHints(supports_background=True, idempotent=again)

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.tool_error("only in the background")

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        await context.complete("first?", source="research")
        await context.complete("second?", source="research")
        return BackgroundOutcome("asked")


class Answers(ScriptedModel):
    """Answers. The worker of `dying` dies during the second question, once its start is stored."""

    dying: Runtime | None = None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if self.dying is not None and "second?" in str(request.messages):
            await started(self.dying, 2)
            os.kill(os.getpid(), signal.SIGKILL)
        async for event in super().stream(request):
            yield event


async def started(rt: Runtime, count: int) -> None:
    store, found = core_of(rt).store, 0
    while found < count:
        await asyncio.sleep(0.01)
        streams = await store.streams(tenant=DEFAULT_TENANT, kind="process", limit=10)
        rows = [row for one in streams for row in await store.read(one.stream)]
        found = sum(isinstance(row.record, EffectStarted) for row in rows)


def app(url: str, *, dies: bool, again: bool) -> Runtime:
    bought = [say("because", usage=Usage(input=30, output=7, calls=1))]
    lines = {"go": [call("spawn_background", tool="asks", args={}), say("ok")], "first?": bought, "second?": bought}
    model = Answers.by_input(lines, default=[say("noted")])
    rt = Runtime(url, agents=[Agent("a", model=model, tools=[SpawnBackgroundTool(), Asks(again=again)])])
    assert isinstance(model, Answers)
    model.dying = rt if dies else None
    return rt


def dying(url: str, again: bool) -> None:
    async def live() -> None:
        async with app(url, dies=True, again=again) as rt:
            await (await rt.session("s", agent="a")).send("go", key="k")
            await asyncio.sleep(60)

    asyncio.run(live())


@pytest.mark.parametrize("again", [False, True], ids=["abandoned", "re-attached"])
async def test_d4_killed_model_call_of_a_run_is_charged_as_estimated(url: str, again: bool) -> None:
    child = processes.Process(target=dying, args=(url, again))
    child.start()
    await asyncio.to_thread(child.join, 60)
    assert child.exitcode == -signal.SIGKILL
    async with app(url, dies=False, again=again) as rt:
        session = rt.get_session("s")

        async def charged() -> list[UsageEntry]:
            return [one for one in await session.usage_entries() if one.source == "direct:research"]

        wanted = 4 if again else 2  # a re-attached run asks both questions once more
        async with asyncio.timeout(60):
            while len(await charged()) < wanted:  # noqa: ASYNC110 - the worker takes the run over
                await asyncio.sleep(0.05)
        found = await charged()
        assert [one.usage.estimated for one in found] == ([0, 1, 0, 0] if again else [0, 1])
        assert found[0].usage == Usage(input=30, output=7, calls=1)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that processes share."""
    return f"sqlite:///{tmp_path / 's.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
