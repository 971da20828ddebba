"""Waits for a client, a person or a completion, killed anywhere: answered before, during and after the outage.

What must be true is short: the outcome is the first answer, at any kill; nothing that is run elsewhere is
ever in doubt; what has a due moment keeps it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from perdure import Agent, Error, Runtime, RuntimeOptions, Session, ToolContext, tool
from perdure.codec import Json
from perdure.errors import Code
from perdure.events import RecordEvent
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.runtime.stores import store_for
from perdure.store.shapes import Accepted, AlreadyResolved
from perdure.testing.crash import KILL_AT, TRACE, tripwire_from_environment
from perdure.tools.client_side import asking, client_tool
from perdure.tools.toolbox import ToolSource
from perdure.vocab.effects import AwaitEvent
from perdure.vocab.messages import Message, ToolResultPart
from perdure.vocab.outcomes import PendingCompletion
from perdure.vocab.promises import ClientResult, Ok, UserAnswer
from perdure.vocab.records import EffectStarted
from tests.crash.harness import assert_valid_for_a_provider, final_history, processes
from tests.crash.scenarios import Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

ANSWER = "PERDURE_TEST_ANSWER"
CLIENT_ALONE = "the client alone"
"""Set: the process that runs the turn answers as well, as soon as it sees what is asked."""

QUESTION: dict[str, Json] = {
    "id": "size",
    "question": "Which size?",
    "kind": "choice",
    "options": ["S", "M"],
    "default": "S",
}
LOOK = client_tool("look", "Look at the screen.", {"type": "object"}, result_type={"type": "string"}, timeout="1h")


def parts(ledger: Ledger, due: str) -> tuple[ScriptedModel, list[ToolSource]]:
    @tool
    async def charge(ctx: ToolContext) -> str:
        """Charge."""
        ledger.write("charge", ctx.idempotency_key)
        return "charged"

    @tool
    async def order(ctx: ToolContext) -> PendingCompletion:
        """Order."""
        key = await ctx.completion_key(deadline="5s")  # without a key no caller can resolve the wait
        ledger.write("key", key.text)
        return ctx.pending()

    asked = call("ask_user", questions=[QUESTION])
    model = ScriptedModel(calls(call("look"), call("charge")), asked, call("order"), say("all done"))
    return model, [LOOK, charge, asking(timeout=due), order]


async def answer_what_is_asked(session: Session) -> None:
    """A client and a person in one: each answers what it sees, as often as it sees it."""
    async for event in session.events():
        match event:
            case RecordEvent(record=EffectStarted(command=AwaitEvent(key=key, about=about))):
                call_id = about.call_id if about else ""
                if isinstance(key.wait, ClientResult):
                    await session.post_result(call_id, "a button")
                elif isinstance(key.wait, UserAnswer) and os.environ[ANSWER] != CLIENT_ALONE:
                    await session.answer(call_id, {"size": "M"}, by="ann")
            case _:
                pass


async def complete(rt: Runtime, ledger: Ledger) -> None:
    """Resolve every key that was handed out."""
    while True:
        for name, key in ledger.lines():
            if name == "key":
                await rt.resolve(key, "shipped")
        await asyncio.sleep(0.02)


async def _run(folder: Path, due: str) -> None:
    clock = SystemClock()
    store = tripwire_from_environment(store_for(store_url(folder), clock, lease_ms=10_000))
    ledger = Ledger(folder / "ledger")
    model, tools = parts(ledger, due)
    async with Runtime(
        store, agents=[Agent("a", model=model, tools=tools)], options=RuntimeOptions(idle_timeout_s=0.0)
    ) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go", key="go")
        others = [asyncio.create_task(complete(rt, ledger))]
        if os.environ.get(ANSWER):
            others.append(asyncio.create_task(answer_what_is_asked(session)))
        result = await sent.result(timeout=30)
        (folder / "answer").write_text(f"{result.status} {result.text}")
        for other in others:
            other.cancel()


def _child(folder: str, environment: dict[str, str], due: str) -> None:
    os.environ.update(environment)
    asyncio.run(_run(Path(folder), due))


def child(folder: Path, environment: dict[str, str], due: str = "1h") -> int:
    process = processes.Process(target=_child, args=(str(folder), environment, due))
    process.start()
    process.join(60)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError(f"hung with {environment}")
    assert process.exitcode is not None
    return process.exitcode


def outputs(history: tuple[Message, ...]) -> list[Json]:
    return [part.output for message in history for part in message.parts if isinstance(part, ToolResultPart)]


def doubtful(output: Json) -> bool:
    return output != str(output) and output.get("code") == "outcome_unknown"


async def check(folder: Path) -> None:
    """Everything is answered by what was said first; only what was dispatched here can be in doubt."""
    assert (folder / "answer").read_text().startswith("finished all done")
    history = await final_history(folder)
    assert_valid_for_a_provider(history)
    looked, charged, asked, ordered = outputs(history)
    assert looked == "a button"
    assert asked["answers"]["size"]["value"] == "M"
    assert asked["answers"]["size"]["by"] == "ann"
    ledger = Ledger(folder / "ledger")
    assert ledger.count("charge") <= 1
    assert ledger.count("key") <= 1
    assert charged == "charged" or doubtful(charged)
    handed_out = ledger.count("key") == 1
    assert ordered == "shipped" if handed_out else ordered["code"] in ("tool_completion_timeout", "outcome_unknown")
    if charged == "charged":
        assert ledger.count("charge") == 1


WRITES = 22
"""What an undisturbed run writes, at most; a batch more or less, as answers and the turn overlap."""


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("n", range(1, WRITES + 1))
async def test_killed_at_any_write_with_the_answers_after_the_outage(n: int, side: str, tmp_path: Path) -> None:
    await killed_and_carried_on(n, side, tmp_path)


FACTS = [
    "after:effect_started c1.0.1.completion",
    "before:effect_settled c1.0.1.completion",
    "after:effect_started c2.0.1.completion",
    "before:effect_settled c2.0.1.completion",
    "after:effect_started c3.0.1.completion",
    "before:turn_ended",
]
"""Where it is killed on a database server: appends are grouped there, so the n-th is another one in every run."""


@pytest.mark.parametrize("fact", FACTS)
async def test_killed_on_a_database_server(fact: str, on_postgres: Path) -> None:
    assert child(on_postgres, {ANSWER: "1", KILL_AT: f"0:{fact}"}) == -9
    assert child(on_postgres, {ANSWER: "1"}) == 0
    await check(on_postgres)


async def killed_and_carried_on(n: int, side: str, folder: Path) -> None:
    ended = child(folder, {ANSWER: "1", KILL_AT: f"{n}:{side}:", TRACE: str(folder / "trace")})
    assert ended in (-9, 0)
    if ended == 0:
        assert n > 12, "the turn made fewer writes than it needs"
    else:
        assert child(folder, {ANSWER: "1"}) == 0
    await check(folder)


@pytest.mark.parametrize("n", range(3, 16, 2))
async def test_turn_resumes_with_an_answer_given_without_worker(n: int, tmp_path: Path) -> None:
    await killed_and_answered({ANSWER: "1", KILL_AT: f"{n}:after:", TRACE: str(tmp_path / "trace")}, tmp_path)


@pytest.mark.parametrize(("asked", "answers"), [("c1.0.1", ""), ("c2.0.1", CLIENT_ALONE)])
async def test_turn_resumes_with_an_answer_on_postgres(asked: str, answers: str, on_postgres: Path) -> None:
    killed = {ANSWER: answers, KILL_AT: f"0:after:effect_started {asked}.completion"}
    assert await killed_and_answered(killed, on_postgres) == 1


async def killed_and_answered(environment: dict[str, str], folder: Path) -> int:
    """Kill it, answer whatever is asked, start it again; how much was asked."""
    assert child(folder, environment) == -9
    async with Runtime(store_url(folder), worker=False) as rt:
        session = rt.get_session("s")
        asked = await session.pending()
        for item in asked:
            match item.kind:
                case "client_call":
                    posted = await session.post_result(item.id, "a button")
                    assert posted in (Accepted(), AlreadyResolved(Ok(value="a button")))
                case "question":
                    await session.answer(item.id, {"size": "M"}, by="ann")
                case _:
                    pass
    assert child(folder, {ANSWER: "1"}) == 0
    await check(folder)
    return len(asked)


async def test_question_keeps_its_deadline_after_a_crash(folder: Path) -> None:
    """Killed when it was asked; the next worker comes when the time is over, and asks for no more of it."""
    ledger = Ledger(folder / "ledger")
    asked = "0:after:effect_started c2.0.1.completion"
    assert child(folder, {ANSWER: CLIENT_ALONE, KILL_AT: asked}, due="2s") == -9
    async with Runtime(store_url(folder), worker=False) as rt:
        [item] = await rt.get_session("s").pending()
        assert item.until is not None
        due = item.until
        await asyncio.sleep(max(0, due - core_of(rt).clock.wall_ms()) / 1000)
    process = processes.Process(target=_child, args=(str(folder), {}, "2s"))
    process.start()
    async with Runtime(store_url(folder), worker=False) as rt:
        session = rt.get_session("s")
        async for event in session.events():
            if isinstance(event, RecordEvent) and "c2.0.1.completion" in getattr(event.record, "id", ""):
                if isinstance(event.record, EffectStarted):
                    assert event.record.due_at == due
                    continue
                break
        with pytest.raises(Error) as caught:
            await session.answer(item.id, {"size": "M"}, by="ann")
        assert caught.value.code is Code.TOOL_CALL_ANSWERED
    process.join(60)
    assert process.exitcode == 0
    silent = outputs(await final_history(folder))[2]
    assert silent == {"answers": {"size": {"value": "S", "answered_by": "default"}}}
    assert ledger.count("charge") == 1
