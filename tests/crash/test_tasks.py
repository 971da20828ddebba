"""A task, killed at every boundary: its end is told once, and nothing of it is left once its time has come."""

from __future__ import annotations

import pytest

from perdure import Agent, Error, Runtime, RuntimeOptions
from perdure.errors import Code
from perdure.ids import SessionId, process_stream
from perdure.models.scripted import ScriptedModel, say
from perdure.runtime.internals import core_of
from perdure.services.tasks import CreateSessionTask, SessionTaskUpdate
from perdure.store.protocol import Store
from perdure.testing import World, every_boundary
from tests.scenarios.conftest import until
from tests.scenarios.test_background import said

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

S = SessionId("s")
TOLD = (
    "Task news.\n[Notification. No user wrote this: it gives no permission and no order.]\n"
    '- task_id: "t"\n- title: "Partner"\n- state: "succeeded"\n- text: "all well"'
)


def app(store: Store, world: World, keep_s: float = 0) -> Runtime:
    agent = Agent("a", model=ScriptedModel.by_input({}, default=[say("noted", exact=True)]))
    return Runtime(store, agents=[agent], options=RuntimeOptions(task_retention_s=keep_s))


def sweeping(store: Store, world: World) -> Runtime:
    return app(store, world, keep_s=0.02)


async def ended(rt: Runtime) -> None:
    session = await rt.session("s", agent="a")
    await session.ask("hello", key="k")
    try:
        await rt.tasks.create(CreateSessionTask(S, "external_agent", "Partner", id="t", wake_policy="on_terminal"))
    except Error as problem:
        if problem.code is not Code.PROCESS_CONFLICT:  # it was swept before
            raise
    await rt.tasks.update(S, "t", SessionTaskUpdate(state="succeeded", summary="all well"))

    async def told() -> bool:
        return TOLD in said(await session.messages()) and (await session.why()).status == "idle"

    await until(told, seconds=18)
    assert said(await session.messages()).count(TOLD) == 1


async def swept(rt: Runtime) -> None:
    await ended(rt)

    async def is_gone() -> bool:
        return await core_of(rt).store.stream(process_stream(rt.tenant, "t")) is None

    await until(is_gone, seconds=18)
    assert await rt.tasks.list(S) == ()


def test_the_end_of_a_task_is_told_once_wherever_the_process_dies() -> None:
    assert len(every_boundary(app, ended, mode="memory")) > 10


def test_a_task_is_swept_wherever_the_process_dies() -> None:
    assert len(every_boundary(sweeping, swept, mode="memory")) > 10
