"""The limit of background runs per worker: waiting runs, and runs resumed by other workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from perdure import Agent, Error, Runtime, RuntimeOptions
from perdure.codec import Json
from perdure.errors import Code
from perdure.ids import SessionId, process_stream
from perdure.models.scripted import ScriptedModel, say
from perdure.runtime.internals import core_of
from perdure.runtime.tasks import background
from perdure.runtime.worker import stream_pool
from perdure.services.background import MAX_ACTIVE_PER_WORKER
from perdure.services.tasks import CreateSessionTask, SessionTask
from perdure.vocab.records import ProcessFirstStarted
from tests.scenarios.conftest import NewStore, until
from tests.scenarios.runs import start_run
from tests.scenarios.test_background import Blocks, Gate

S = SessionId("s")


class House:
    """Opens runtimes on one store, and closes them."""

    def __init__(self, new_store: NewStore, stack: AsyncExitStack) -> None:
        self.new_store = new_store
        self.stack = stack

    async def open(self, gate: Gate, *, worker: bool = True, idempotent: bool = False) -> Runtime:
        model = ScriptedModel.by_input({}, default=[say("noted")])
        agent = Agent("a", model=model, tools=[Blocks(gate, idempotent=idempotent)])
        tuning = RuntimeOptions(drain_s=0.1)
        return await self.stack.enter_async_context(
            Runtime(self.new_store(), agents=[agent], worker=worker, options=tuning)
        )


@pytest.fixture
async def house(new_store: NewStore) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        yield House(new_store, stack)


def run(session: SessionId, id: str, *, reattachable: bool = False) -> CreateSessionTask:
    spec: Json = {
        "tool": "test_background_blocking",
        "arguments": {},
        "reattachable": reattachable,
        "signal_on_completion": False,
        "run_id": f"bg_{id}",
    }
    return CreateSessionTask(session, "background_tool", id, spec, id=id, state="running")


async def over(rt: Runtime, session: SessionId, id: str) -> SessionTask:
    async def look() -> bool:
        task = await rt.tasks.get(session, id)
        return task is not None and task.is_over

    await until(look, seconds=40)
    found = await rt.tasks.get(session, id)
    assert found is not None
    return found


async def test_concurrent_spawns_stay_within_the_worker_limit(house: House) -> None:
    gate = Gate()
    rt = await house.open(gate)
    sessions = [SessionId(f"s{number}") for number in range(14)]
    for session in sessions:
        await (await rt.session(session, agent="a")).ask("hello", timeout=30)
    asked = [run(session, f"{session}-{number}") for session in sessions for number in range(5)]
    made = await asyncio.gather(*(start_run(rt, one) for one in asked), return_exceptions=True)
    refused = [one for one in made if isinstance(one, BaseException)]
    assert len(made) - len(refused) == MAX_ACTIVE_PER_WORKER == 64
    for problem in refused:
        assert isinstance(problem, Error)
        assert problem.code is Code.TASK_LIMIT_EXCEEDED
        assert problem.message == (
            "Worker is already running the maximum 64 active background runs. Try again after an existing run finishes."
        )
    entered = [task.id for session in sessions for task in await rt.tasks.list(session)]
    assert len(entered) == 64, "a refused run is not registered"
    streams = [await core_of(rt).store.stream(process_stream(rt.tenant, one.id or "")) for one in asked]
    assert sum(stream is not None for stream in streams) == 64
    gate.release.set()
    for task in made:
        if isinstance(task, SessionTask):
            assert (await over(rt, task.session_id, task.id)).state == "succeeded"
    assert core_of(rt).background.count == 0
    again = next(one for one, answer in zip(asked, made, strict=True) if isinstance(answer, Error))
    await start_run(rt, again)
    assert (await over(rt, again.session_id, again.id or "")).state == "succeeded"


async def test_refused_spawn_releases_its_slot(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_ACTIVE_PER_WORKER", 6)
    gate = Gate()
    rt = await house.open(gate)
    for session in ("s", "t"):
        await (await rt.session(session, agent="a")).ask("hello", timeout=30)
    for number in range(5):
        await start_run(rt, run(S, f"r{number}"))
    for number in range(5, 8):
        with pytest.raises(Error, match="per session"):
            await start_run(rt, run(S, f"r{number}"))
    await start_run(rt, run(SessionId("t"), "other"))
    gate.release.set()


async def test_a_run_that_finds_no_room_waits_and_is_not_begun(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "MAX_ACTIVE_PER_WORKER", 1)
    gate = Gate()
    rt = await house.open(gate)
    sender = await house.open(gate, worker=False)
    await (await rt.session("s", agent="a")).ask("hello", timeout=30)
    await start_run(rt, run(S, "first"))
    await start_run(sender, run(S, "second"))

    async def deferred() -> bool:
        return "worker background run limit reached; start deferred" in caplog.text

    await until(deferred, seconds=30)
    rows = await rt.get_process("second").journal()
    assert not any(isinstance(row.record, ProcessFirstStarted) for row in rows)
    gate.release.set()
    assert [(await over(rt, S, id)).state for id in ("first", "second")] == ["succeeded", "succeeded"]
    assert gate.begun == 2


async def test_run_without_a_slot_starts_when_one_is_free(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not when its worker would have tried again: that would be in an hour."""
    monkeypatch.setattr(background, "MAX_ACTIVE_PER_WORKER", 1)
    monkeypatch.setattr(stream_pool, "_FIRST_BACKOFF_S", 7200)
    monkeypatch.setattr(stream_pool, "_LAST_BACKOFF_S", 3600)
    gate = Gate()
    rt = await house.open(gate)
    sender = await house.open(gate, worker=False)
    await (await rt.session("s", agent="a")).ask("hello", timeout=30)
    await start_run(rt, run(S, "first"))
    for id in ("second", "third"):
        await start_run(sender, run(S, id))

    async def deferred() -> bool:
        return caplog.text.count("worker background run limit reached; start deferred") == 2

    await until(deferred, seconds=30)
    gate.release.set()
    for id in ("first", "second", "third"):
        assert (await over(rt, S, id)).state == "succeeded"
    assert gate.begun == 3


async def test_run_of_a_stopped_worker_resumes_in_a_free_slot(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "MAX_ACTIVE_PER_WORKER", 1)
    left, stays = Gate(), Gate()
    own = AsyncExitStack()
    leaving = await House(house.new_store, own).open(left, idempotent=True)
    await (await leaving.session("s", agent="a")).ask("hello", timeout=30)
    await start_run(leaving, run(S, "moved", reattachable=True))

    async def begun(gate: Gate) -> bool:
        return gate.begun == 1

    await until(lambda: begun(left), seconds=30)
    staying = await house.open(stays, idempotent=True)
    await (await staying.session("t", agent="a")).ask("hello", timeout=30)
    await start_run(staying, run(SessionId("t"), "here", reattachable=True))
    await until(lambda: begun(stays), seconds=30)
    await own.aclose()

    async def deferred() -> bool:
        return "worker background run limit reached; re-attach deferred" in caplog.text

    await until(deferred, seconds=30)
    waiting = await staying.tasks.get(S, "moved")
    assert waiting is not None
    assert (waiting.state, waiting.attempt) == ("running", 1)
    stays.release.set()
    moved = await over(staying, S, "moved")
    assert (moved.state, moved.attempt, stays.begun) == ("succeeded", 2, 2)
    assert moved.result_path is not None
    assert moved.result_path != "/.background/bg_moved/result.json", "an attempt has a directory of its own"
