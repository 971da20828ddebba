"""A turn that kills every worker that takes it up is ended by the third that does; one that gets further never is."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from perdure import Agent, Error, Runtime, ToolContext, TurnHandle, tool
from perdure.errors import Code
from perdure.models.protocol import Model, ModelEvent, ModelRequest
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.runtime.instructions import InstructionsContext
from perdure.testing.crash import die
from perdure.tools.decorator import AnyTool
from perdure.vocab.messages import Text
from perdure.vocab.outcomes import Done, InDoubt, NotRun, ToolCallOutcome
from perdure.vocab.records import EffectSettled, EffectStarted, TurnEnded
from perdure.vocab.tools import EffectClass
from tests.crash.harness import processes
from tests.crash.scenarios import Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(90)]

HARMLESS = "PERDURE_TEST_HARMLESS"


class Deadly:
    """A model whose client takes the process with it, unless it is told not to."""

    name = "deadly"

    def __init__(self, ledger: Ledger, folder: Path, model: ScriptedModel) -> None:
        self._ledger, self._folder, self._model = ledger, folder, model

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self._ledger.write("model", "-")
        if not os.environ.get(HARMLESS):
            await self._until_stored(self._ledger.count("model"))
            die()
        async for event in self._model.stream(request):
            yield event

    async def _until_stored(self, calls: int) -> None:
        """A model is asked before its turn is in the store: this one waits for that, as others see it."""
        async with Runtime(store_url(self._folder), worker=False) as rt:
            begun = 0
            while begun < calls:
                await asyncio.sleep(0.02)
                begun = sum(isinstance(row.record, EffectStarted) for row in await rt.get_session("s").journal())


def deadly_model(ledger: Ledger, folder: Path) -> tuple[Model, list[AnyTool]]:
    return Deadly(ledger, folder, ScriptedModel(say("all well"))), []


def deadly_from_the_start(ledger: Ledger, folder: Path) -> tuple[Model, list[AnyTool]]:
    """See `agent_of`: its instructions kill, before anything of the turn can be in the store."""
    return ScriptedModel(say("all well")), []


def deadly_tool(ledger: Ledger, folder: Path) -> tuple[Model, list[AnyTool]]:
    @tool(effect="idempotent")
    async def index() -> str:
        ledger.write("index", "-")
        if not os.environ.get(HARMLESS):
            die()
        return "indexed"

    @tool(effect="once")
    async def charge() -> str:
        ledger.write("charge", "-")
        await asyncio.sleep(30)  # it is still under way when the other one kills us
        return "charged"

    @tool(effect="pure", sequential=True)
    async def report() -> str:
        ledger.write("report", "-")
        return "reported"

    script = (calls(call("charge"), call("index"), call("report")), say("all well"))
    return ScriptedModel(*script), [index, charge, report]


class Fatal:
    """A model whose client takes the process with it when a tool asks, once that is in the store."""

    name = "fatal"

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self._ledger, self._folder = ledger, folder

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        said = request.messages[-1].parts[-1]
        if isinstance(said, Text) and said.text == "what now?":
            self._ledger.write("asked", "-")
            async with Runtime(store_url(self._folder), worker=False) as rt:
                begun = 0
                while begun < self._ledger.count("asked"):
                    await asyncio.sleep(0.02)
                    records = [row.record for row in await rt.get_session("s").journal()]
                    begun = sum(isinstance(one, EffectStarted) and one.estimated_usage is not None for one in records)
            die()
        async for event in ScriptedModel(call("consult")).stream(request):
            yield event


def asking(effect: EffectClass) -> Callable[[Ledger, Path], tuple[Model, list[AnyTool]]]:
    """A tool that asks a model, and is killed by it each time."""

    def play(ledger: Ledger, folder: Path) -> tuple[Model, list[AnyTool]]:
        @tool(effect=effect)
        async def consult(ctx: ToolContext) -> str:
            return await ctx.complete("what now?", source="me")

        return Fatal(ledger, folder), [consult]

    return play


def stairs(ledger: Ledger, folder: Path) -> tuple[Model, list[AnyTool]]:
    """Five steps, and it dies once in every one: slow, but it gets somewhere."""

    @tool(effect="resumable")
    async def climb(ctx: ToolContext) -> str:
        for number in range(5):

            async def step(number: int = number) -> int:
                ledger.write(f"step{number}", "-")
                if ledger.count(f"step{number}") == 1:
                    die()
                return number

            await ctx.step(f"step{number}", step, effect="idempotent")
        return "up"

    return ScriptedModel(call("climb"), say("all well")), [climb]


PLAYS: dict[str, Callable[[Ledger, Path], tuple[Model, list[AnyTool]]]] = {
    "model": deadly_model,
    "start": deadly_from_the_start,
    "tool": deadly_tool,
    "stairs": stairs,
    "asks in a body": asking("resumable"),
    "asks": asking("idempotent"),
}


def agent_of(play: str, folder: Path) -> Agent:
    ledger = Ledger(folder / "ledger")
    model, tools = PLAYS[play](ledger, folder)

    def deadly(context: InstructionsContext) -> str:
        ledger.write("start", "-")
        if not os.environ.get(HARMLESS):
            die()
        return "Be kind."

    return Agent("a", model=model, tools=tools, instructions=deadly if play == "start" else "Be kind.")


async def _work(play: str, folder: Path) -> None:
    async with Runtime(store_url(folder), agents=[agent_of(play, folder)]) as rt:
        session = rt.get_session("s")
        while (await session.why()).status not in ("idle", "failed"):  # noqa: ASYNC110 - or it is killed
            await asyncio.sleep(0.01)


def work(play: str, folder: str, harmless: bool) -> None:
    """Run as a worker until the session is idle or the process is killed."""
    if harmless:
        os.environ[HARMLESS] = "1"
    asyncio.run(_work(play, Path(folder)))


def lives(play: str, folder: Path, *, harmless: bool = False, limit: int = 12) -> int:
    """Start workers one after the other until one survives; how many were killed."""
    for killed in range(limit):
        worker = processes.Process(target=work, args=(play, str(folder), harmless))
        worker.start()
        worker.join(30)
        if worker.exitcode == 0:
            return killed
        assert worker.exitcode == -signal.SIGKILL
    raise AssertionError(f"{limit} workers were killed")


@asynccontextmanager
async def sending(play: str, folder: Path) -> AsyncGenerator[TurnHandle]:
    """Open a runtime without worker and send one input."""
    async with Runtime(store_url(folder), agents=[agent_of(play, folder)], worker=False) as rt:
        yield await (await rt.session("s", agent="a")).send("go")


async def test_third_takeover_stops_a_turn_that_kills_its_workers(folder: Path) -> None:
    async with sending("model", folder) as sent:
        assert lives("model", folder) == 3
        assert Ledger(folder / "ledger").count("model") == 3, "the sealing worker does not try once more"
        result = await sent.result(timeout=10)
        assert (result.status, result.reason) == ("stopped", "no_forward_progress")
        assert result.message == "the turn was taken over 3 times without getting any further"
        assert (result.usage.calls, result.usage.estimated) == (3, 3), "each was bought, and counts once"
        bought = [(entry.effect, entry.usage.estimated) for entry in await sent.session.usage_entries()]
        assert bought == [("m1.1", 1), ("m1.2", 1), ("m1.3", 1)]
        why = await sent.session.why()
        assert (why.status, why.turn) == ("failed", sent.turn_id)

        again = await sent.session.retry()
        assert again.turn_id != sent.turn_id
        assert await sent.session.retry() == replace(again, is_duplicate=True)
        assert (await sent.session.why()).status == "queued"
        assert lives("model", folder, harmless=True) == 0
        assert (await again.result(timeout=10)).text.startswith("all well")
        assert (await sent.session.why()).status == "idle", "the session is as good as any"
        with pytest.raises(Error) as caught:
            await sent.session.retry()
        assert caught.value.code is Code.TURN_NOT_RETRYABLE


async def test_workers_that_die_before_their_first_append_are_counted_too(folder: Path) -> None:
    async with sending("start", folder) as sent:
        behind = await sent.session.send("go on")
        assert lives("start", folder) == 6, "three for each of the inputs"
        assert Ledger(folder / "ledger").count("start") == 6
        for each in (sent, behind):
            assert (await each.result(timeout=10)).reason == "no_forward_progress"
        again = await sent.session.retry()
        assert lives("start", folder, harmless=True) == 0
        assert (await again.result(timeout=10)).status == "finished"


async def test_dead_lettered_turn_records_calls_and_repeats_no_charge(folder: Path) -> None:
    async with sending("tool", folder) as sent:
        assert lives("tool", folder) == 4, "the second one got as far as noting the doubt about the charge"
        ledger = Ledger(folder / "ledger")
        assert (ledger.count("charge"), ledger.count("index"), ledger.count("report")) == (1, 4, 0)
        assert (await sent.result(timeout=10)).reason == "no_forward_progress"
        outputs = {
            row.record.outcome.launch.result.tool_name: row.record.outcome.launch.result.output
            for row in await sent.session.journal()
            if isinstance(row.record, EffectSettled)
            and isinstance(row.record.outcome, ToolCallOutcome)
            and isinstance(row.record.outcome.launch, Done)
        }
        assert {name: type(output) for name, output in outputs.items()} == {
            "charge": InDoubt,
            "index": InDoubt,
            "report": NotRun,
        }
        assert lives("tool", folder, harmless=True) == 0
        ended = [row.record for row in await sent.session.journal() if isinstance(row.record, TurnEnded)]
        assert [record.reason for record in ended] == ["no_forward_progress"]


@pytest.mark.parametrize("play", ["asks in a body", "asks"])
async def test_a_tool_whose_model_client_kills_every_worker_is_stopped_too(folder: Path, play: str) -> None:
    async with sending(play, folder) as sent:
        assert lives(play, folder) == 3
        assert Ledger(folder / "ledger").count("asked") == 3, "the sealing worker does not try once more"
        result = await sent.result(timeout=10)
        assert (result.status, result.reason) == ("stopped", "no_forward_progress")
        assert result.usage.estimated == 3, "each was bought, and counts once"
        ledger = await sent.session.usage_entries()
        assert [entry.usage.estimated for entry in ledger if entry.source.startswith("direct:")] == [1, 1, 1]


@pytest.mark.slow
async def test_a_turn_that_gets_further_between_kills_is_never_dead_lettered(folder: Path) -> None:
    async with sending("stairs", folder) as sent:
        assert lives("stairs", folder) == 5
        assert (await sent.result(timeout=10)).text.startswith("all well")


async def test_a_cancelled_turn_is_cancelled_and_not_dead_lettered(folder: Path) -> None:
    async with sending("model", folder) as sent:
        for _ in range(2):
            worker = processes.Process(target=work, args=("model", str(folder), False))
            worker.start()
            worker.join(30)
        assert await sent.session.cancel() == "requested"
        assert lives("model", folder) == 0
        assert (await sent.result(timeout=10)).reason == "cancelled"
