"""Values that could be written and not read again are refused: one would block a list forever."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from perdure import Agent, BaseTool, Code, Error, Runtime, ToolContext, ToolHints
from perdure.codec import Json
from perdure.ids import SessionId
from perdure.models.scripted import ScriptedModel, call, say
from perdure.services.background import BackgroundEventSink, BackgroundOutcome, BackgroundProgress
from perdure.services.tasks import CreateSessionTask, SessionTaskUpdate
from perdure.tools import ToolResult
from perdure.tools.background import SpawnBackgroundTool
from perdure.vocab.registrations import ProcessFailure, ProcessSucceeded
from tests.scenarios.conftest import NewStore

pytestmark = pytest.mark.any_store

S = SessionId("s")
ANY: Json = {"type": "object"}


class Odd(BaseTool):
    """A run that tells and returns what it should not."""

    name = "odd"
    description = "returns odd things"
    parameters_schema: Json = ANY
    hints = ToolHints(supports_background=True)

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.tool_error("foreground unsupported")

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        await sink.progress(cast("BackgroundProgress", "half"))
        await sink.output("stdout", "printed \ud800")
        return BackgroundOutcome("done \ud800", math.nan if arguments["nan"] else 1)


@pytest.fixture
async def rt(new_store: NewStore) -> AsyncIterator[Runtime]:
    spawns = {
        f"odd {nan}": [call("spawn_background", tool="odd", args={"nan": nan}, title="Odd"), say("It runs.")]
        for nan in (False, True)
    }
    model = ScriptedModel.by_input(spawns, default=[say("Good.")])
    async with Runtime(new_store(), agents=[Agent("a", model=model, tools=[SpawnBackgroundTool(), Odd()])]) as runtime:
        await (await runtime.session("s", agent="a")).ask("hello")
        yield runtime


@pytest.mark.parametrize(
    "wrong",
    [{"max_runs": 1.5}, {"max_runs": "2"}, {"max_catch_up": True}, {"description": 5}, {"timezone": None}, {"at": "x"}],
    ids=str,
)
async def test_a_schedule_of_other_types_is_refused_and_leaves_nothing(rt: Runtime, wrong: dict[str, object]) -> None:
    make = cast("Callable[..., object]", rt.schedule)
    with pytest.raises(Error) as caught:
        await make(send="x", session="s", **({} if "at" in wrong else {"cron": "0 9 * * *"}), **wrong)  # pyright: ignore[reportGeneralTypeIssues]
    assert caught.value.code is Code.SCHEDULE_INVALID
    assert await rt.schedules.list() == ()


async def test_task_with_wrong_types_is_refused(rt: Runtime) -> None:
    await rt.tasks.create(CreateSessionTask(S, "external_agent", "Partner", id="t"))
    with pytest.raises(Error):
        await rt.tasks.create(CreateSessionTask(S, "external_agent", cast("str", 5), id="u"))
    with pytest.raises(Error):
        await rt.tasks.update(S, "t", SessionTaskUpdate(progress=cast("BackgroundProgress", "half")))
    assert [(task.id, task.progress) for task in await rt.tasks.list(S)] == [("t", None)]


async def test_run_with_odd_output_or_result_ends_with_a_log(rt: Runtime) -> None:
    session = await rt.session("s", agent="a")
    for nan, ends_as, said in (
        (False, ProcessSucceeded, "done ?"),
        (True, ProcessFailure, "its result cannot be stored"),
    ):
        await session.ask(f"odd {nan}")
        task = (await rt.tasks.list(S))[-1]
        assert isinstance(await rt.get_process(task.id).wait(timeout=20), ends_as)
        seen = await rt.tasks.get(S, task.id)
        assert seen is not None
        assert said in (seen.summary or "")
        assert seen.result_path is not None
        log = await session.files.read_file(seen.result_path.replace("result.json", "output.log"))
        assert log is not None
        assert log.content == "[stdout] printed ?"


@pytest.mark.parametrize("owner", [5, None, "\ud800", " "])
async def test_a_subscription_of_an_owner_that_is_no_name_is_refused(rt: Runtime, owner: object) -> None:
    with pytest.raises(Error) as caught:
        await rt.triggers.subscribe("m.x", "p", key="k", owner=cast("str", owner))
    assert caught.value.code is Code.INVALID_ID
    assert await rt.triggers.list() == ()
