"""A worker is killed while one of its tools asks a model: what that bought is counted once, and a job that a provider
works on by itself is waited for instead of being bought again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure import Agent, Runtime, RuntimeOptions, Session, ToolContext, UsageLimits, tool
from perdure.codec import Json
from perdure.models.protocol import JobBegun, ModelEvent, ModelReply, ModelRequest, TextPiece
from perdure.models.scripted import ScriptedModel, call
from perdure.runtime.internals import core_of, ref_of
from perdure.vocab.messages import Text
from perdure.vocab.records import EffectSettled, EffectStarted, ModelJobBegun
from perdure.vocab.tools import EffectClass
from perdure.vocab.usage import Usage
from tests.crash.harness import processes
from tests.crash.scenarios import store_url
from tests.scenarios.conftest import until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(90)]

TEN = Usage(input=6, output=4, calls=1)


class Asked:
    """Makes one call and answers its questions; in a worker that is to die, the second one without an end."""

    name = "asked"

    def __init__(self, folder: Path, *, hangs: bool, job: bool) -> None:
        self._sold = folder / "sold"
        self._given_up = folder / "given_up"
        self._hangs = hangs
        self._job = job

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        said = request.messages[-1].parts[-1]
        question = said.text if isinstance(said, Text) else "done"
        if question == "go":
            async for event in ScriptedModel(call("judge")).stream(request):
                yield event
            return
        if request.job is None:
            with self._sold.open("a") as file:
                file.write(f"{question}\n")
        if question == "second" and self._hangs:
            yield TextPiece("thirty characters are written.")
            if self._job:
                yield JobBegun({"id": "job_1"})
            await asyncio.sleep(3600)
        text = f"{question} {request.job}" if request.job else question
        yield ModelReply(parts=(Text(text=text),), finish="stop", usage=TEN, model="asked")

    async def cancel(self, job: Json) -> None:
        with self._given_up.open("a") as file:
            file.write(f"{job['id']}\n")


def given_up(folder: Path) -> list[str]:
    path = folder / "given_up"
    return path.read_text().split() if path.exists() else []


def agent_of(folder: Path, effect: EffectClass, *, hangs: bool, job: bool = False, limit: int | None = None) -> Agent:
    @tool(effect=effect)
    async def judge(ctx: ToolContext) -> str:
        """Judge."""
        first = await ctx.complete("first", source="one")
        return f"{first}, {await ctx.complete('second', source='two')}"

    return Agent("a", model=Asked(folder, hangs=hangs, job=job), tools=[judge], limits=UsageLimits(turn_tokens=limit))


async def _die_asking(folder: Path, effect: EffectClass, job: bool, limit: int | None) -> None:
    agent = agent_of(folder, effect, hangs=True, job=job, limit=limit)
    async with Runtime(store_url(folder), agents=[agent], options=RuntimeOptions(lease_s=1.0)) as rt:
        await (await rt.session("s", agent="a")).send("go", key="k")
        await asyncio.sleep(3600)


def die_asking(folder: str, effect: EffectClass, job: bool, limit: int | None) -> None:
    """Run as a worker that is killed."""
    asyncio.run(_die_asking(Path(folder), effect, job, limit))


async def killed_while_it_asks(
    folder: Path, effect: EffectClass, *, job: bool = False, limit: int | None = None
) -> None:
    """A worker whose tool has one answer and waits for the second; once that is in the store, it is killed."""
    worker = processes.Process(target=die_asking, args=(str(folder), effect, job, limit))
    await asyncio.to_thread(worker.start)
    try:
        async with Runtime(store_url(folder), worker=False) as looking:

            async def waits() -> bool:
                assert worker.is_alive()
                if await core_of(looking).store.stream(ref_of(looking.get_session("s")).stream) is None:
                    return False
                records = [row.record for row in await looking.get_session("s").journal()]
                begun = sum(isinstance(one, EffectStarted) and one.estimated_usage is not None for one in records)
                jobs = sum(isinstance(one, ModelJobBegun) for one in records)
                return begun == 2 and jobs == job and len(sold(folder)) == 2

            await until(waits, seconds=40, every=0.05)
    finally:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        await asyncio.to_thread(worker.join)


def sold(folder: Path) -> list[str]:
    path = folder / "sold"
    return path.read_text().split() if path.exists() else []


async def bought(session: Session) -> list[tuple[str, str, int, int]]:
    """Return the usage of tools, from a ledger that adds up to the usage of the session."""
    ledger = await session.usage_entries()
    assert sum((one.usage for one in ledger), Usage()) == await session.usage()
    direct = [one for one in ledger if one.source.startswith("direct:")]
    assert {one.model for one in direct} == {"asked"}
    assert all(one.usage.input > 0 and one.usage.calls == 1 for one in direct)
    return [(one.source, one.effect.rpartition("/")[2], one.usage.output, one.usage.estimated) for one in direct]


FIRST, LOST = ("direct:one", "asked:1", 4, 0), ("direct:two", "asked:2", 0, 1)


@pytest.mark.parametrize("effect", ["resumable", "idempotent", "once"])
async def test_usage_of_a_killed_tool_completion_is_counted_once(folder: Path, effect: EffectClass) -> None:
    await killed_while_it_asks(folder, effect)
    async with Runtime(store_url(folder), agents=[agent_of(folder, effect, hangs=False)]) as rt:
        sent = await (await rt.session("s", agent="a")).send("go", key="k")
        assert sent.is_duplicate
        assert (await sent.result(timeout=40)).status == "finished"
        direct = await bought(sent.session)
        ends = [row.record.id for row in await sent.session.journal() if isinstance(row.record, EffectSettled)]
    assert len(ends) == len(set(ends))
    if effect == "resumable":
        (one, first, *exact), (two, second, *lost), (also_two, again, *answered) = direct
        assert (one, exact, two, lost, also_two, answered) == ("direct:one", [4, 0], "direct:two", [0, 1], two, [4, 0])
        assert first.startswith("direct:")
        assert again == second.replace("direct:", "again:2.")
        assert sold(folder) == ["first", "second", "second", "done"]
    elif effect == "idempotent":
        assert direct == [FIRST, LOST, ("direct:one", "asked:3", 4, 0), ("direct:two", "asked:4", 4, 0)]
        assert sold(folder) == ["first", "second", "first", "second", "done"]
    else:
        assert direct == [FIRST, LOST]
        assert sold(folder) == ["first", "second", "done"], "a call in doubt is not repeated"


async def test_usage_of_lost_completions_counts_against_limits(folder: Path) -> None:
    await killed_while_it_asks(folder, "resumable", limit=30)
    async with Runtime(store_url(folder), agents=[agent_of(folder, "resumable", hangs=False)]) as rt:
        sent = await (await rt.session("s", agent="a")).send("go", key="k")
        result = await sent.result(timeout=40)
        assert (result.status, result.reason) == ("stopped", "limit_reached")
        assert result.usage.estimated == 1
        assert [estimated for *_, estimated in await bought(sent.session)] == [0, 1]
    assert sold(folder) == ["first", "second"], "the model is not called again"


@pytest.mark.parametrize("effect", ["resumable", "idempotent"])
async def test_a_job_that_a_provider_began_for_a_tool_is_waited_for(folder: Path, effect: EffectClass) -> None:
    await killed_while_it_asks(folder, effect, job=True)
    async with Runtime(store_url(folder), agents=[agent_of(folder, effect, hangs=False)]) as rt:
        sent = await (await rt.session("s", agent="a")).send("go", key="k")
        assert (await sent.result(timeout=40)).status == "finished"
        direct = await bought(sent.session)
        ends = [row.record for row in await sent.session.journal() if isinstance(row.record, EffectSettled)]
    assert sold(folder).count("second") == 1
    assert [(source, output, estimated) for source, _, output, estimated in direct if source == "direct:two"] == [
        ("direct:two", 4, 0)
    ]
    assert given_up(folder) == []
    assert any("second {'id': 'job_1'}" in str(one.outcome) for one in ends), "the tool has the answer of the job"


async def test_a_job_of_a_call_that_does_not_run_again_is_ended(folder: Path) -> None:
    await killed_while_it_asks(folder, "once", job=True)
    async with Runtime(store_url(folder), agents=[agent_of(folder, "once", hangs=False)]) as rt:
        sent = await (await rt.session("s", agent="a")).send("go", key="k")
        assert (await sent.result(timeout=40)).status == "finished"
        assert await bought(sent.session) == [FIRST, LOST]
    assert given_up(folder) == ["job_1"], "the job is cancelled"


@pytest.mark.parametrize("effect", ["resumable", "idempotent", "once"])
async def test_a_job_of_a_turn_that_was_cancelled_meanwhile_is_given_up(folder: Path, effect: EffectClass) -> None:
    await killed_while_it_asks(folder, effect, job=True)
    async with Runtime(store_url(folder), worker=False) as rt:
        assert await rt.get_session("s").cancel() == "requested"
    async with Runtime(store_url(folder), agents=[agent_of(folder, effect, hangs=False)]) as rt:
        sent = await (await rt.session("s", agent="a")).send("go", key="k")
        assert (await sent.result(timeout=40)).reason == "cancelled"
        direct = await bought(sent.session)
    assert [(source, output, estimated) for source, _, output, estimated in direct] == [
        ("direct:one", 4, 0),
        ("direct:two", 0, 1),
    ]
    assert given_up(folder) == ["job_1"]
    assert sold(folder) == ["first", "second"]
