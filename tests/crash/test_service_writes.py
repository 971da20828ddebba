"""Killed after a service's write and before its call is settled: a repeated attempt writes nothing a second time."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perdure import Agent, BaseTool, Runtime, ToolContext, ToolHints, tool
from perdure.codec import Json
from perdure.ids import SessionId
from perdure.models.scripted import ScriptedModel, Step, call, say
from perdure.services.background import BackgroundEventSink, BackgroundOutcome
from perdure.services.tasks import CreateSessionTask, NewTaskMessage
from perdure.tools import ToolResult, background
from perdure.tools.background import SpawnBackgroundTool
from perdure.vocab.messages import Text
from tests.crash.harness import processes

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

S = SessionId("s")
ANY: Json = {"type": "object"}
CRON: Json = {"cron_expression": "*/10 * * * *"}


class Watch(BaseTool):
    """Watches something."""

    name = "watch"
    description = "Watch."
    parameters_schema: Json = ANY
    hints = ToolHints(supports_background=True)

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.success(1)

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        return BackgroundOutcome("watched")


def app(url: str, *, dies: bool) -> Runtime:
    """Two tools that write to services. The first process dies after the writes."""

    @tool(effect="idempotent")
    async def plan(ctx: ToolContext) -> str:
        """Write to every service that makes something."""
        soon = datetime.fromtimestamp(time.time() + 3600, UTC)  # a repeated attempt plans another time
        await ctx.schedules.create_schedule(ctx.session_id, "Look again.", scheduled_at=soon)
        for _ in range(2):
            await ctx.schedules.create_schedule(ctx.session_id, "Look twice.", "0 9 * * *")
        task = await ctx.tasks.create(CreateSessionTask(S, "external_agent", "Partner"))
        await ctx.tasks.send_message(S, task.id, NewTaskMessage("inbound", "hello"))
        other = await ctx.sessions.create("quiet", title="Other")
        await ctx.sessions.get(other.id).send("hello")
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return "planned"

    monitor: Step = call("spawn_background", tool="watch", args={}, title="Watch", schedule=CRON)
    script = {"plan": [call("plan"), say("ok")], "monitor": [monitor, say("ok")]}
    agent = Agent("a", model=ScriptedModel.by_input(script), tools=[SpawnBackgroundTool(), Watch(), plan])
    quiet = Agent("quiet", model=ScriptedModel.by_input({}, default=[say("noted")]))
    return Runtime(url, agents=[agent, quiet])


def dying(url: str, text: str) -> None:
    async def dead(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def live() -> None:
        monkey = pytest.MonkeyPatch()  # the process dies with it
        monkey.setattr(background, "_monitor", dead)
        async with app(url, dies=True) as rt:
            await (await rt.session("s", agent="a")).send(text, key="k")
            await asyncio.sleep(60)

    asyncio.run(live())


async def killed(url: str, text: str) -> None:
    child = processes.Process(target=dying, args=(url, text))
    child.start()
    await asyncio.to_thread(child.join, 60)
    assert child.exitcode == -signal.SIGKILL


async def test_d1_killed_and_repeated_spawn_makes_one_monitor(url: str) -> None:
    await killed(url, "monitor")
    async with app(url, dies=False) as rt:
        assert len(await rt.schedules.list(session="s", active=True)) == 1, "killed after the schedule was stored"
        await (await (await rt.session("s", agent="a")).send("monitor", key="k")).result(timeout=40)
        (schedule,) = await rt.schedules.list(session="s", active=True)
        (task,) = await rt.tasks.list(S)
        assert (task.kind, task.state, task.spec["schedule_id"]) == ("monitor", "running", schedule.name)


async def test_d1_repeated_attempt_writes_nothing_twice_to_services(url: str) -> None:
    await killed(url, "plan")
    async with app(url, dies=False) as rt:
        await (await (await rt.session("s", agent="a")).send("plan", key="k")).result(timeout=40)
        said = sorted(
            [
                (await rt.schedules.get(one.name).info()).known.description
                for one in await rt.schedules.list(session="s")
            ]
        )
        assert said == ["Look again.", "Look twice.", "Look twice."]
        (task,) = await rt.tasks.list(S)
        assert len(await rt.tasks.messages(S, task.id)) == 1
        (other,) = [one.id for one in await rt.list_sessions() if one.id != "s"]
        history = await rt.get_session(other).messages()
        assert [part.text for one in history if one.role == "user" for part in one.parts if isinstance(part, Text)] == [
            "hello"
        ]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that processes share."""
    return f"sqlite:///{tmp_path / 's.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
