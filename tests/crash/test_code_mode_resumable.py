"""A program that calls two resumable tools, killed at every write: each goes on inside itself, and repeats nothing.

`press` has a step of each class and a sleep, `post` a `once` and an `idempotent` step. The table says, by the fact that
is about to be written or has just been written when the process dies, how often each step reaches the world in all, and
what the program is told of the two calls. Whatever is not said happens once, and is told as ever.

Nobody waits for the outcome of the last step of a body before the end of the body is written: if the two are one append
in that run, or the first was still on its way when the process died, the step may have to run again; the trace says so.
And nobody waits for the beginning of a sleep: until that is confirmed, and the process dies of it, the sleep may be
over and the `pure` step behind it have run.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from perdure import Agent, Runtime, RuntimeOptions, Session, ToolContext, tool
from perdure.codec import Json
from perdure.codemode import code_mode
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest, TextPiece
from perdure.models.scripted import ScriptedModel, call, say
from perdure.observe.verify import verify
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.stores import store_for
from perdure.session.fold import CODE
from perdure.testing.crash import KILL_AT, TRACE, Boundary, die, tripwire_from_environment
from perdure.tools.decorator import AnyTool
from perdure.vocab.messages import Text, ToolResultPart
from perdure.vocab.records import EffectSettled, EffectStarted
from perdure.vocab.usage import Usage
from tests.crash.harness import assert_valid_for_a_provider, final_history, processes
from tests.crash.scenarios import Ledger, store_url
from tests.scenarios.conftest import until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

TOGETHER = "PERDURE_TEST_TOGETHER"
"""Both are gathered, and the process dies when both are in their `once` steps; or when the one named here has ended."""

SAFE = """
import asyncio
async def safe(one):
    try:
        return await one
    except RuntimeError as problem:
        return str(problem).split(":")[0]
"""
ONE_BY_ONE = SAFE + "[await safe(press(doc='x')), await safe(post(to='ana'))]"
GATHERED = SAFE + "await asyncio.gather(safe(press(doc='x')), safe(post(to='ana')))"


def tools_of(ledger: Ledger) -> list[AnyTool]:
    inside: set[str] = set()
    both = asyncio.Event()

    async def act(what: str, key: str) -> str:
        ledger.write(what, key)
        spared = os.environ.get(TOGETHER)
        if spared is not None and what in ("paint", "send"):
            inside.add(what)
            if len(inside) == 2:
                both.set()
            await both.wait()
            if not spared:
                die()
            if what != spared:
                await asyncio.Event().wait()
        return what

    @tool(effect="resumable")
    async def press(ctx: ToolContext, doc: str) -> str:
        """Print a document."""
        await ctx.step("paint", act, "paint", ctx.step_key("paint"))
        await ctx.step("dry", act, "dry", ctx.step_key("dry"), effect="idempotent")
        await ctx.sleep("cool", 0.03)
        await ctx.step("look", act, "look", ctx.step_key("look"), effect="pure")
        return f"{doc} printed"

    @tool(effect="resumable")
    async def post(ctx: ToolContext, to: str) -> str:
        """Send it."""
        await ctx.step("send", act, "send", ctx.step_key("send"))
        await ctx.step("file", act, "file", ctx.step_key("file"), effect="idempotent")
        return f"sent to {to}"

    return [press, post]


async def _run(folder: Path, code: str) -> None:
    clock = SystemClock()
    store = tripwire_from_environment(store_for(store_url(folder), clock, lease_ms=10_000))
    model = ScriptedModel(call("run_python", code=code), say("done", exact=True))
    agent = Agent("a", model=model, tools=[*tools_of(Ledger(folder / "ledger")), code_mode()])
    async with Runtime(store, agents=[agent], options=RuntimeOptions(clock=clock)) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go", key="go")
        result = await sent.result(timeout=60)
        (folder / "answer").write_text(f"{result.status} {result.text}")


def _child(folder: str, code: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    asyncio.run(_run(Path(folder), code))


def child(folder: Path, code: str, environment: dict[str, str]) -> int:
    process = processes.Process(target=_child, args=(str(folder), code, environment))
    process.start()
    process.join(60)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError(f"hung with {environment}")
    assert process.exitcode is not None
    return process.exitcode


UNKNOWN = "outcome_unknown"
PRINTED, SENT = "x printed", "sent to ana"

PAINT_LOST = ({"paint": 0, "dry": 0, "look": 0}, [UNKNOWN, SENT])
PAINT_DOUBTED = ({"paint": 1, "dry": 0, "look": 0}, [UNKNOWN, SENT])
SEND_LOST = ({"send": 0, "file": 0}, [PRINTED, UNKNOWN])
SEND_DOUBTED = ({"send": 1, "file": 0}, [PRINTED, UNKNOWN])
AS_EVER: tuple[dict[str, int], list[str]] = ({}, [PRINTED, SENT])


def twice(step: str) -> tuple[dict[str, int], list[str]]:
    return {step: 2}, [PRINTED, SENT]


TABLE: dict[str, tuple[dict[str, int], list[str]]] = {
    # the program, and the call of `press`: nothing of it has begun
    "before:effect_started c1.0/code:program": AS_EVER,
    "after:effect_started c1.0/code:program": AS_EVER,
    "before:effect_settled c1.0/checkpoint:1": AS_EVER,
    "before:effect_started c1.0/step:call:1": AS_EVER,
    "after:effect_started c1.0/step:call:1": AS_EVER,
    # a `once` step: in doubt exactly if its intent is durable and its outcome is not, and then its body ends with that
    "before:effect_started c1.0~call:1/step:paint": AS_EVER,
    "after:effect_started c1.0~call:1/step:paint": PAINT_LOST,
    "before:effect_settled c1.0~call:1/step:paint": PAINT_DOUBTED,
    "after:effect_settled c1.0~call:1/step:paint": AS_EVER,
    # an `idempotent` step has no intent: what is not recorded runs again, under the same key
    "before:effect_settled c1.0~call:1/step:dry": twice("dry"),
    "after:effect_settled c1.0~call:1/step:dry": AS_EVER,
    # a sleep begins in the append that settles the step before it, and goes on to the moment that it had
    "before:effect_started c1.0~call:1/sleep:cool": twice("dry"),
    "after:effect_started c1.0~call:1/sleep:cool": AS_EVER,
    # nothing is waited for before a `pure` step, so it has run when the end of the sleep is on its way
    "before:effect_settled c1.0~call:1/sleep:cool": twice("look"),
    "before:effect_settled c1.0~call:1/step:look": twice("look"),
    "after:effect_settled c1.0~call:1/step:look": AS_EVER,
    # the end of the call of `press`: its steps are all there, and none runs again
    "before:effect_settled c1.0/step:call:1": AS_EVER,
    "after:effect_settled c1.0/step:call:1": AS_EVER,
    # the call of `post`
    "before:effect_started c1.0/step:call:2": AS_EVER,
    "after:effect_started c1.0/step:call:2": AS_EVER,
    "before:effect_started c1.0~call:2/step:send": AS_EVER,
    "after:effect_started c1.0~call:2/step:send": SEND_LOST,
    "before:effect_settled c1.0~call:2/step:send": SEND_DOUBTED,
    "after:effect_settled c1.0~call:2/step:send": AS_EVER,
    "before:effect_settled c1.0~call:2/step:file": twice("file"),
    "after:effect_settled c1.0~call:2/step:file": AS_EVER,
    "before:effect_settled c1.0/step:call:2": AS_EVER,
    "after:effect_settled c1.0/step:call:2": AS_EVER,
    "before:effect_settled c1.0/code:program": AS_EVER,
    "after:effect_settled c1.0/code:program": AS_EVER,
}


@pytest.mark.parametrize("point", TABLE)
async def test_killed_at_every_write(tmp_path: Path, point: str) -> None:
    await killed_at(tmp_path, point)


WAITED_FOR = [
    "after:effect_started c1.0/step:call:1",
    "after:effect_started c1.0~call:1/step:paint",
    "before:effect_settled c1.0~call:1/step:paint",
    "after:effect_settled c1.0~call:1/step:paint",
    "after:effect_started c1.0~call:2/step:send",
    "after:effect_settled c1.0~call:2/step:send",
]
"""Writes that somebody waits for: on a database server, the others may be grouped in one way or the other."""


@pytest.mark.parametrize("point", WAITED_FOR)
async def test_killed_at_what_is_waited_for_on_a_database_server(on_postgres: Path, point: str) -> None:
    await killed_at(on_postgres, point)


async def killed_at(folder: Path, point: str) -> None:
    dispatched, expected = TABLE[point]
    trace = folder / "trace"
    assert child(folder, ONE_BY_ONE, {KILL_AT: f"0:{point}", TRACE: str(trace)}) == -signal.SIGKILL
    assert child(folder, ONE_BY_ONE, {}) == 0
    await check(folder, dispatched, expected, lost=lost_outcomes(trace))


def lost_outcomes(trace: Path) -> dict[str, set[int]]:
    """Steps that may run again whose outcomes were about to be written, or on their way, when the process died."""
    *before, last = [Boundary.parse(line) for line in trace.read_text().splitlines()]
    done = {one.n for one in before if one.side == "after"}
    under_way = [one for one in before if one.side == "before" and one.n not in done and one.n != last.n]
    found: dict[str, set[int]] = {}
    if last.side == "after" and "effect_started c1.0~call:1/sleep:cool" in last.what:
        found["look"] = {1, 2}
    for step in ("dry", "look", "file"):
        if last.side == "before" and f"/step:{step}" in last.what:
            found[step] = {2}
        elif last.side == "before" and any(f"/step:{step}" in one.what for one in under_way):
            found[step] = {1, 2}
    return found


ONE_AFTER_THE_OTHER = [
    "effect_started c1.0/code:program",
    "effect_started c1.0/step:call:1",
    "effect_settled c1.0~call:1/step:paint",
    "effect_settled c1.0~call:1/step:dry",
    "effect_settled c1.0~call:1/step:look",
    "effect_settled c1.0/step:call:1",
    "effect_started c1.0/step:call:2",
    "effect_settled c1.0~call:2/step:send",
    "effect_settled c1.0~call:2/step:file",
    "effect_settled c1.0/step:call:2",
]


@pytest.mark.slow
async def test_killed_after_one_write_after_the_other(folder: Path) -> None:
    for fact in ONE_AFTER_THE_OTHER:
        assert child(folder, ONE_BY_ONE, {KILL_AT: f"0:after:{fact}"}) == -signal.SIGKILL, fact
    assert child(folder, ONE_BY_ONE, {}) == 0
    await check(folder, {}, [PRINTED, SENT], lost={"look": {1, 2}})


async def check(
    folder: Path, dispatched: dict[str, int], expected: list[str], lost: dict[str, set[int]] | None = None
) -> None:
    assert (folder / "answer").read_text() == "finished done"
    ledger = Ledger(folder / "ledger")
    for step in ("paint", "dry", "look", "send", "file"):
        assert ledger.count(step) in (lost or {}).get(step, {dispatched.get(step, 1)}), step
    assert len(set(ledger.lines())) == len({name for name, _ in ledger.lines()}), "under one key"
    history = await final_history(folder)
    assert_valid_for_a_provider(history)
    [told] = [part.output for message in history for part in message.parts if isinstance(part, ToolResultPart)]
    told = msgspec.convert(told, dict[str, Json])
    assert told["result"] == expected
    assert str(told.get("note", "")).count("may or may not have taken effect") == expected.count(UNKNOWN)
    async with Runtime(store_url(folder), worker=False) as rt:
        rows = await rt.get_session("s").journal()
        [info] = await core_of(rt).session_streams()
        verdict = verify(
            info, await core_of(rt).store.read(info.stream), await core_of(rt).store.load(info.stream, code=CODE)
        )
    assert verdict.problems == ()
    intents = Counter(str(row.record.id) for row in rows if isinstance(row.record, EffectStarted))
    ends = Counter(str(row.record.id) for row in rows if isinstance(row.record, EffectSettled))
    assert set(intents.values()) == {1}
    assert set(ends.values()) == {1}


# --- beside each other


@pytest.mark.parametrize("spared", ["", "paint", "send"])
async def test_killed_while_both_are_in_a_step(folder: Path, spared: str) -> None:
    steps = {"paint": "c1.0~call:1/step:paint", "send": "c1.0~call:2/step:send"}
    killing = {KILL_AT: f"0:after:effect_settled {steps[spared]}"} if spared else {}
    assert child(folder, GATHERED, {TOGETHER: spared, **killing}) == -signal.SIGKILL
    assert child(folder, GATHERED, {}) == 0
    paint_known, send_known = spared == "paint", spared == "send"
    dispatched = {"dry": int(paint_known), "look": int(paint_known), "file": int(send_known)}
    await check(folder, dispatched, [PRINTED if paint_known else UNKNOWN, SENT if send_known else UNKNOWN])


# --- while they wait


def waiting_tools(folder: Path) -> list[AnyTool]:
    ledger = Ledger(folder / "ledger")

    async def act(what: str, key: str) -> str:
        ledger.write(what, key)
        return what

    @tool(effect="resumable")
    async def review(ctx: ToolContext, doc: str) -> Json:
        """Have it reviewed."""
        await ctx.step("render", act, f"render-{doc}", ctx.step_key("render"))
        verdict = await ctx.wait_for_event(f"review {doc}")
        await ctx.step("upload", act, f"upload-{doc}", ctx.step_key("upload"))
        return verdict

    return [review]


REVIEWS = "import asyncio\nawait asyncio.gather(*[review(doc=d) for d in 'abc'])"


async def _wait(folder: Path, idle_timeout_s: float) -> None:
    model = ScriptedModel(call("run_python", code=REVIEWS), say("done", exact=True))
    agent = Agent("a", model=model, tools=[*waiting_tools(folder), code_mode()])
    tuning = RuntimeOptions(lease_s=1.0, idle_timeout_s=idle_timeout_s)
    async with Runtime(store_url(folder), agents=[agent], options=tuning) as rt:
        await (await rt.session("s", agent="a")).send("go", key="go")
        await asyncio.sleep(3600)


def wait(folder: str, idle_timeout_s: float) -> None:
    """Run as a worker that is killed."""
    asyncio.run(_wait(Path(folder), idle_timeout_s))


async def killed_once(
    folder: Path,
    life: Callable[..., None],
    args: tuple[object, ...],
    so: Callable[[Runtime, Session], Awaitable[bool]],
) -> None:
    """Start a worker, wait until `so` says so of the session, and kill the worker."""
    worker = processes.Process(target=life, args=args)
    await asyncio.to_thread(worker.start)
    try:
        async with Runtime(store_url(folder), worker=False) as looking:

            async def there() -> bool:
                assert worker.is_alive()
                session = looking.get_session("s")
                return await core_of(looking).store.stream(ref_of(session).stream) is not None and await so(
                    looking, session
                )

            await until(there, seconds=40, every=0.05)
    finally:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        await asyncio.to_thread(worker.join)


@pytest.mark.parametrize("is_parked", [True, False])
async def test_killed_while_three_of_them_wait(folder: Path, is_parked: bool) -> None:
    async def waits(looking: Runtime, session: Session) -> bool:
        begun = [row.record.id for row in await session.journal() if isinstance(row.record, EffectStarted)]
        [info] = await core_of(looking).session_streams()
        return sum("/event:" in id for id in begun) == 3 and info.parked is is_parked

    await killed_once(folder, wait, (str(folder), 0.0 if is_parked else 60.0), waits)
    model = ScriptedModel(call("run_python", code=REVIEWS), say("done", exact=True))
    agent = Agent("a", model=model, tools=[*waiting_tools(folder), code_mode()])
    async with Runtime(store_url(folder), agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        for doc in "cab":
            await session.resolve(f"review {doc}", f"fine {doc}")
        sent = await session.send("go", key="go")
        assert sent.is_duplicate
        assert (await sent.result(timeout=40)).status == "finished"
        [told] = [p.output for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)]
    assert told == {"result": ["fine a", "fine b", "fine c"]}
    lines = Ledger(folder / "ledger").lines()
    assert Counter(name for name, _ in lines) == Counter(f"{what}-{d}" for what in ("render", "upload") for d in "abc")
    assert len({key for _, key in lines}) == 6


# --- while they ask a model


class Judge:
    """Calls the program, and answers the questions of its tools; in a worker that is to die, the second one of each
    without an end."""

    name = "judge"

    def __init__(self, folder: Path, *, hangs: bool) -> None:
        self._sold = folder / "sold"
        self._hangs = hangs

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        said = request.messages[-1].parts[-1]
        question = said.text if isinstance(said, Text) else "done"
        if question == "go":
            code = "import asyncio\nawait asyncio.gather(judge(of='a'), judge(of='b'))"
            async for event in ScriptedModel(call("run_python", code=code)).stream(request):
                yield event
            return
        with self._sold.open("a") as file:
            file.write(f"{question}\n")
        if question.startswith("second") and self._hangs:
            yield TextPiece("some of it")
            await asyncio.sleep(3600)
        usage = Usage(input=6, output=4, calls=1)
        yield ModelReply(parts=(Text(text=question),), finish="stop", usage=usage, model="judge")


def judging(folder: Path, *, hangs: bool) -> Agent:
    @tool(effect="resumable")
    async def judge(ctx: ToolContext, of: str) -> str:
        """Judge."""
        first = await ctx.complete(f"first-{of}", source="judge", key="first")
        return f"{first}, {await ctx.complete(f'second-{of}', source='judge', key='second')}"

    return Agent("a", model=Judge(folder, hangs=hangs), tools=[judge, code_mode()])


async def _ask(folder: Path) -> None:
    agents = [judging(folder, hangs=True)]
    async with Runtime(store_url(folder), agents=agents, options=RuntimeOptions(lease_s=1.0)) as rt:
        await (await rt.session("s", agent="a")).send("go", key="go")
        await asyncio.sleep(3600)


def ask(folder: str) -> None:
    """Run as a worker that is killed."""
    asyncio.run(_ask(Path(folder)))


def sold(folder: Path) -> list[str]:
    path = folder / "sold"
    return path.read_text().split() if path.exists() else []


async def test_usage_of_two_killed_bodies_is_counted_once(folder: Path) -> None:
    async def asks(_: Runtime, session: Session) -> bool:
        begun = [row.record for row in await session.journal() if isinstance(row.record, EffectStarted)]
        return sum(one.estimated_usage is not None for one in begun) == 4 and len(sold(folder)) == 4

    await killed_once(folder, ask, (str(folder),), asks)
    async with Runtime(store_url(folder), agents=[judging(folder, hangs=False)]) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go", key="go")
        assert sent.is_duplicate
        assert (await sent.result(timeout=40)).status == "finished"
        ledger = await session.usage_entries()
        usage = await session.usage()
        [told] = [p.output for m in await session.messages() for p in m.parts if isinstance(p, ToolResultPart)]
    assert told == {"result": ["first-a, second-a", "first-b, second-b"]}
    assert sorted(sold(folder)) == sorted(
        ["first-a", "first-b", "second-a", "second-b", "second-a", "second-b", "done"]
    ), "what was answered is not asked again, what was lost is"
    direct = {one.effect: one.usage for one in ledger if one.source == "direct:judge"}
    assert sorted(direct) == sorted(
        f"c1.0~call:{n}/{part}" for n in (1, 2) for part in ("direct:first", "direct:second", "again:2.second")
    )
    assert len([one for one in ledger if one.source == "direct:judge"]) == 6
    assert [one.estimated for id, one in direct.items() if id.endswith("/direct:second")] == [1, 1]
    assert all(
        one == Usage(input=6, output=4, calls=1) for id, one in direct.items() if not id.endswith("direct:second")
    )
    assert sum((one.usage for one in ledger), Usage()) == usage
