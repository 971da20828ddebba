"""Bodies that wait, killed anywhere: a resumable tool of three steps, a sleep and an event, beside two other calls.

What must be true after a kill is read off the killed run's own trace, by the rule users are told: a `once` effect is in
doubt exactly if its intent was durable and its outcome was not; whatever is not in doubt has happened exactly once.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from perdure import Agent, Code, Error, Runtime, RuntimeOptions, Session, ToolContext, ToolError, tool
from perdure.codec import Json
from perdure.events import RecordEvent
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.stores import store_for
from perdure.store.shapes import Accepted, AlreadyResolved
from perdure.testing.crash import KILL_AT, TRACE, Boundary, die, tripwire_from_environment
from perdure.tools.toolbox import ToolSource
from perdure.vocab.messages import Message, ToolResultPart
from perdure.vocab.outcomes import PendingCompletion
from perdure.vocab.promises import Ok
from perdure.vocab.records import EffectStarted
from perdure.vocab.tools import RetryPolicy
from tests.crash.harness import assert_valid_for_a_provider, final_history, processes
from tests.crash.scenarios import Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

WHEN = "PERDURE_TEST_ANSWER"
DIE = "PERDURE_TEST_DIE"


def publishing(ledger: Ledger) -> list[ToolSource]:
    async def note(name: str, key: str) -> str:
        ledger.write(name, key)
        if os.environ.get(DIE) == name:
            die()
        return f"{name} done"

    @tool(effect="resumable", retries=RetryPolicy(kind="idempotent", max_attempts=2, base_delay_ms=10))
    async def publish(ctx: ToolContext) -> str:
        """Publish."""
        rendered = await ctx.step("render", note, "render", ctx.step_key("render"))
        if ctx.attempt == 1:
            raise ToolError("the second attempt replays what the first one finished")
        await ctx.step("store", note, "store", ctx.step_key("store"), effect="idempotent")
        await ctx.sleep("cool", "60ms")
        verdict = await ctx.wait_for_event("reviewed", timeout="1h")
        return await ctx.step("upload", note, f"upload {rendered} {verdict}".replace(" ", "-"), ctx.step_key("upload"))

    @tool(effect="pure")
    async def look(ctx: ToolContext) -> str:
        """Look."""
        await asyncio.sleep(0.02)
        return "seen"

    @tool
    async def charge(ctx: ToolContext) -> str:
        """Charge."""
        return await note("charge", ctx.idempotency_key)

    return [publish, look, charge]


def changing(ledger: Ledger) -> list[ToolSource]:
    @tool(effect="resumable")
    async def publish(ctx: ToolContext) -> str:
        """Publish."""
        await ctx.step("render", ledger.write, "render", f"by-{os.getpid()}")
        if not ledger.path.with_name("go").exists():
            die()
        return "published"

    return [publish]


def ordering(ledger: Ledger) -> list[ToolSource]:
    @tool
    async def order(ctx: ToolContext) -> PendingCompletion:
        """Order."""
        key = await ctx.completion_key()
        ledger.write("order", key.text)
        if not ledger.path.with_name("go").exists():
            die()
        return ctx.pending()

    return [order]


TOOLS = {"publish": publishing, "change": changing, "order": ordering}
MODELS = {
    "publish": lambda: ScriptedModel(calls(call("publish"), call("look"), call("charge")), say("all done")),
    "change": lambda: ScriptedModel(call("publish"), say("all done")),
    "order": lambda: ScriptedModel(call("order"), say("all done")),
}


async def _answer(session: Session) -> None:
    """Resolve the event once a body waits for it."""
    async for event in session.events():
        if isinstance(event, RecordEvent) and isinstance(event.record, EffectStarted) and "/event:" in event.record.id:
            await session.resolve("reviewed", "fine")
            return


async def _answer_early(session: Session) -> None:
    """Resolve the event before a body waits; or not at all, if the turn came to its end before the crash."""
    try:
        await session.resolve("reviewed", "fine")
    except Error as problem:
        if problem.code is not Code.EVENT_KEY_INVALID:
            raise


async def _run(name: str, folder: Path, text: str) -> None:
    clock = SystemClock()
    store = tripwire_from_environment(store_for(store_url(folder), clock, lease_ms=10_000))
    agent = Agent("a", model=MODELS[name](), tools=TOOLS[name](Ledger(folder / "ledger")))
    async with Runtime(store, agents=[agent], options=RuntimeOptions(clock=clock, idle_timeout_s=0.0)) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send(text, key=text)
        answering = asyncio.create_task(_answer(session)) if os.environ.get(WHEN) == "late" else None
        if os.environ.get(WHEN) == "early":
            await _answer_early(session)
        result = await sent.result(timeout=30)
        (folder / "answer").write_text(f"{result.status} {result.text}")
        if answering:
            answering.cancel()


def _child(name: str, folder: str, environment: dict[str, str], text: str) -> None:
    os.environ.update(environment)
    asyncio.run(_run(name, Path(folder), text))


def child(name: str, folder: Path, environment: dict[str, str], text: str = "go") -> int:
    process = processes.Process(target=_child, args=(name, str(folder), environment, text))
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


class Written:
    """Writes of a killed run: durable ones, and possible ones, whose confirmation was in flight."""

    def __init__(self, trace: Path | None, kill: str = "") -> None:
        lines = [Boundary.parse(line) for line in trace.read_text().splitlines()] if trace else []
        self.certain = [b.what for b in lines if b.side == "after"]
        self.possible = [b.what for b in lines if b.side == "before" and f"{b.n}:{b.side}" != kill]

    def in_doubt(self, effect: str) -> set[bool]:
        """Whether an effect is in doubt, by the rule: its intent is durable, its outcome is not."""
        started, settled = f"effect_started {effect}", f"effect_settled {effect}"
        return {_has(w, started) and not _has(w, settled) for w in (self.certain, self.possible)} | {
            _has(self.possible, started) and not _has(self.certain, settled)
        }


def _has(written: list[str], what: str) -> bool:
    return any(what in plan.removeprefix("append ").split(", ") for plan in written)


def told_unknown(output: Json) -> bool:
    return output != str(output) and output["code"] == "outcome_unknown"


async def check(folder: Path, written: Written) -> None:
    history = await final_history(folder)
    assert_valid_for_a_provider(history)
    published, seen, charged = outputs(history)
    assert (folder / "answer").read_text().startswith("finished all done")
    assert seen == "seen"
    ledger = Ledger(folder / "ledger")
    render, upload = written.in_doubt("c1.0/step:render"), written.in_doubt("c1.0/step:upload")
    assert told_unknown(published) in {one or other for one in render for other in upload}
    if not told_unknown(published):
        assert published == "upload-render-done-fine done"
        assert [ledger.count(name) for name in ("render", "upload-render-done-fine")] == [1, 1]
    assert all(ledger.count(name) <= 1 for name in ("render", "upload-render-done-fine", "charge"))
    assert len({key for name, key in ledger.lines() if name == "store"}) <= 1
    assert told_unknown(charged) in written.in_doubt("c1.2.1")
    if not told_unknown(charged):
        assert (charged, ledger.count("charge")) == ("charge done", 1)


async def answer_from_outside(folder: Path) -> None:
    async with Runtime(store_url(folder), worker=False) as rt:
        assert await rt.get_session("s").resolve("reviewed", "fine") in (Accepted(), AlreadyResolved(Ok(value="fine")))


WRITES = 21
"""What an undisturbed run writes when the answer comes late; a batch more or less, as its calls overlap."""

POINTS = [("late", n) for n in range(1, WRITES + 1)] + [("early", n) for n in range(9, 16)]


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize(("when", "n"), POINTS)
async def test_killed_at_any_write(when: str, n: int, side: str, tmp_path: Path) -> None:
    await killed_at(when, f"{n}:{side}", tmp_path)


@pytest.mark.parametrize(("when", "n"), POINTS[::2])
async def test_killed_at_every_other_write_on_a_database_server(when: str, n: int, on_postgres: Path) -> None:
    await killed_at(when, f"{n}:before", on_postgres)


async def killed_at(when: str, point: str, folder: Path, *, answered_meanwhile: bool = False) -> None:
    trace = folder / "trace"
    ended = child("publish", folder, {WHEN: when, KILL_AT: f"{point}:", TRACE: str(trace)})
    assert ended in (-9, 0)
    if ended == 0:
        assert int(point.partition(":")[0]) > 13, "the turn made fewer writes than it needs"
    else:
        if answered_meanwhile:
            await answer_from_outside(folder)
        assert child("publish", folder, {} if answered_meanwhile else {WHEN: when}) == 0
    await check(folder, Written(trace if ended else None, point))


@pytest.mark.parametrize("name", ["render", "store", "charge", "upload-render-done-fine"])
async def test_killed_inside_a_step_right_after_its_outside_effect(name: str, folder: Path) -> None:
    trace = folder / "trace"
    assert child("publish", folder, {WHEN: "late", DIE: name, TRACE: str(trace)}) == -9
    assert child("publish", folder, {WHEN: "late"}) == 0
    await check(folder, Written(trace))


@pytest.mark.parametrize("n", [6, 10, 12, 16, 18])
async def test_body_resumes_with_an_answer_given_without_worker(n: int, folder: Path) -> None:
    await killed_at("late", f"{n}:before", folder, answered_meanwhile=True)


async def test_a_step_whose_argument_changed_ends_its_call_and_not_the_session(folder: Path) -> None:
    assert child("change", folder, {}) == -9
    (folder / "go").touch()
    assert child("change", folder, {}) == 0
    [published] = outputs(await final_history(folder))
    assert published["code"] == "replay_mismatch"
    assert "$.command.input[1]" in published["error"]
    assert Ledger(folder / "ledger").count("render") == 1
    assert child("change", folder, {}, "once more") == 0
    async with Runtime(store_url(folder), worker=False) as rt:
        assert outputs(await rt.get_session("s").messages())[-1] == "published"


async def test_call_with_external_key_is_pending_after_a_crash(folder: Path) -> None:
    assert child("order", folder, {}) == -9
    (folder / "go").touch()
    [(_, key)] = Ledger(folder / "ledger").lines()
    async with Runtime(store_url(folder), worker=False) as rt:
        assert await rt.resolve(key, {"parcel": 7}) == Accepted()
    assert child("order", folder, {}) == 0
    assert outputs(await final_history(folder)) == [{"parcel": 7}]
    assert Ledger(folder / "ledger").count("order") == 1
