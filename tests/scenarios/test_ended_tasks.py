"""Updates of ended tasks: only additions are accepted, on every store."""

from __future__ import annotations

from perdure import Agent, Runtime
from perdure.ids import SessionId
from perdure.models.scripted import ScriptedModel, say
from perdure.runtime.internals import core_of
from perdure.services.tasks import CreateSessionTask, SessionTaskUpdate, TaskLinks
from tests.scenarios.conftest import NewStore, until

S = SessionId("s")


async def test_ended_task_accepts_additions_and_keeps_its_outcome(new_store: NewStore) -> None:
    async with Runtime(new_store(), agents=[Agent("a", model=ScriptedModel(say("hello")))]) as rt:
        await (await rt.session(S, agent="a")).ask("hi")
        await rt.tasks.create(CreateSessionTask(session_id=S, id="t", kind="external_agent", display_name="T"))
        ended = await rt.tasks.update(S, "t", SessionTaskUpdate(state="succeeded", summary="done"))
        assert ended is not None
        other = await rt.tasks.update(S, "t", SessionTaskUpdate(state="failed", summary="no", artifacts=("/x",)))
        assert other == ended, "another end is ignored, and all that came with it"
        await rt.tasks.update(S, "t", SessionTaskUpdate(artifacts=("/log",), links=TaskLinks(remote_task_id="r")))
        same = await rt.tasks.update(S, "t", SessionTaskUpdate(state="succeeded", result_path="/result"))
        assert same is not None
        assert (same.state, same.summary, same.finished_at) == ("succeeded", "done", ended.finished_at)
        assert (same.artifacts, same.result_path, same.links.remote_task_id) == (("/log",), "/result", "r")
        assert await rt.processes.list(session="s") == (), "the task is not live again"

        async def taken_in() -> bool:
            return not await core_of(rt).store.inbox(rt.get_process("t").stream)

        await until(taken_in, seconds=30)
    async with Runtime(new_store(), agents=[Agent("a", model=ScriptedModel(say("hello")))]) as rt:
        assert await rt.tasks.get(S, "t") == same
