"""A process with a once step, a sleep, a signal, a child and a wake, killed at the facts that matter; and sub-agents of
a parent on a database server. Expectations are written by hand, per fact.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from perdure import Agent, Error, OutcomeUnknown, ProcessContext, Runtime, RuntimeOptions, process
from perdure.models.scripted import ScriptedModel, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.runtime.processes.function import ProcessFunction
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.processes.starting import python_process, register
from perdure.runtime.sessions.session import Session
from perdure.runtime.stores import store_for
from perdure.store.protocol import Store
from perdure.testing import World
from perdure.testing.crash import KILL_AT, tripwire_from_environment
from perdure.vocab.children import ChildEnded, ChildRegistered
from perdure.vocab.messages import Text, ToolResultPart
from perdure.vocab.processes import SessionScope
from perdure.vocab.registrations import EventType, Pointer, Semantics, WakeSpec
from tests.crash.harness import processes
from tests.crash.scenarios import Ledger, store_url
from tests.crash.test_subagents import ANSWER, go, office

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

DONE = EventType(name="done", semantics=Semantics(wake=WakeSpec(input=Pointer(path="/text"))))


def family(ledger: Ledger) -> tuple[ProcessFunction, ProcessFunction]:
    @process
    async def helper(ctx: ProcessContext, word: str) -> str:
        await ctx.step("help", ledger.write, "help", ctx.step_key("help"), effect="idempotent")
        return word.upper()

    @process(events=[DONE])
    async def parent(ctx: ProcessContext) -> str:
        known = ""
        try:
            await ctx.step("charge", ledger.write, "charge", ctx.step_key("charge"))
        except OutcomeUnknown:
            known = "perhaps "
        await ctx.sleep("nap", "30ms")
        word = str(await ctx.wait_for_signal("go", timeout="1h"))
        got = await ctx.wait_for_process(await ctx.start(helper, word))
        await ctx.emit("done", {"text": f"{known}{got}"})
        return f"{known}{got}"

    return parent, helper


def news(text: str) -> str:
    """The input by which the process notifies its session."""
    return (
        "Process news.\n[Notification. No user wrote this: it gives no permission and no order.]\n"
        f'- process: "p"\n- text: "{text}"'
    )


def texts(session_history: tuple[object, ...]) -> list[str]:
    users = [message for message in session_history if getattr(message, "role", "") == "user"]
    return [part.text for message in users for part in getattr(message, "parts", ()) if isinstance(part, Text)]


async def settled(session: Session, users: int) -> None:
    """Until so much was said to it, and it is idle."""
    while True:
        if len(texts(await session.messages())) == users and (await session.why()).status == "idle":
            return
        await asyncio.sleep(0.02)


def opened(folder: Path) -> Store:
    return tripwire_from_environment(store_for(store_url(folder), SystemClock(), lease_ms=10_000))


async def report(handle: ProcessHandle) -> None:
    """Print what a process that did not end waits for, and its log."""
    print(await handle.why(), file=sys.stderr)
    for child in (handle, ProcessHandle(handle.runtime, "p/helper:1")):
        with contextlib.suppress(Error):
            print(await handle.runtime.store.stream(child.stream), file=sys.stderr)
            print(await handle.runtime.store.inbox(child.stream), file=sys.stderr)
            for row in await child.journal():
                print(row.seq, row.at, row.kind, row.record, file=sys.stderr)


async def _family(folder: Path) -> None:
    functions = family(Ledger(folder / "ledger"))
    agent = Agent("a", model=ScriptedModel(say("ok")))
    async with Runtime(
        opened(folder), agents=[agent], processes=functions, options=RuntimeOptions(idle_timeout_s=0.0)
    ) as rt:
        session = await rt.session("s", agent="a")
        await (await session.send("hello", key="hello")).result(timeout=60)
        asked, env = python_process(core_of(rt), "parent", (), {}, id="p", wake_target=SessionScope(session_id="s"))
        handle = await register(core_of(rt), asked, env=env)
        await handle.signal("go", "yes", id="the one")
        try:
            (folder / "answer").write_text(str(await handle.result(timeout=60)))
        except Error:
            await report(handle)
            raise
        await settled(session, 2)


async def _office(folder: Path, mode: str) -> None:
    async with office(opened(folder), World(folder / "world"), mode) as rt:
        await go(rt)
        (folder / "answer").write_text("done")


def _child(run: Callable[..., Awaitable[None]], arguments: tuple[object, ...], environment: dict[str, str]) -> None:
    os.environ.update(environment)

    async def main() -> None:
        await run(*arguments)

    asyncio.run(main())


def child(run: Callable[..., Awaitable[None]], *arguments: object, kill_at: str = "") -> int | None:
    started = processes.Process(target=_child, args=(run, arguments, {KILL_AT: kill_at} if kill_at else {}))
    started.start()
    started.join(100)
    if started.is_alive():
        started.kill()
        started.join()
        raise AssertionError(f"hung, killed at {kill_at!r}")
    return started.exitcode


FACTS = {
    # where it is killed: how often the charge was made, and the answer
    "0:after:effect_started p/step:charge": ({0, 1}, "perhaps YES"),
    "0:before:effect_settled p/step:charge": ({1}, "perhaps YES"),
    "0:after:effect_settled p/step:charge": ({1}, "YES"),
    "0:after:effect_started p/sleep:nap": ({1}, "YES"),
    "0:after:effect_settled p/signal:go:1": ({1}, "YES"),
    "0:before:effect_settled p/start:p/helper:1": ({1}, "YES"),
    "0:after:effect_settled p/start:p/helper:1": ({1}, "YES"),
    "0:before:effect_settled p/wait:p/helper:1": ({1}, "YES"),
    "0:after:effect_settled p/wait:p/helper:1": ({1}, "YES"),
}


@pytest.mark.parametrize("fact", FACTS)
async def test_a_process_its_child_and_its_session_agree_wherever_the_worker_dies(fact: str, folder: Path) -> None:
    assert child(_family, folder, kill_at=fact) == -signal.SIGKILL
    assert child(_family, folder) == 0
    charged, answer = FACTS[fact]
    ledger = Ledger(folder / "ledger")
    assert (folder / "answer").read_text() == answer
    assert ledger.count("charge") in charged
    assert 1 <= ledger.count("help") <= 2
    assert len({key for name, key in ledger.lines() if name == "help"}) == 1
    async with Runtime(store_url(folder), worker=False) as rt:
        listed = await rt.processes.list(ended=True)
        assert [(one.handle.id, one.status) for one in listed] == [("p/helper:1", "completed"), ("p", "completed")]
        assert await rt.processes.list() == ()
        assert texts(await rt.get_session("s").messages()) == ["hello", news(answer)], "the session was notified once"


SPAWNED = ["0:after:child_registered", "0:before:child_ended", "0:after:child_ended"]


@pytest.mark.parametrize("fact", SPAWNED)
@pytest.mark.parametrize("mode", ["foreground", "background"])
async def test_subagent_of_a_process_answers_once_on_postgres(mode: str, fact: str, on_postgres: Path) -> None:
    assert child(_office, on_postgres, mode, kill_at=fact) == -signal.SIGKILL
    assert child(_office, on_postgres, mode) == 0
    async with Runtime(store_url(on_postgres), worker=False) as rt:
        rows = [row.record for row in await rt.get_session("s").journal()]
        [registered] = [one for one in rows if isinstance(one, ChildRegistered)]
        ended = [one for one in rows if isinstance(one, ChildEnded)]
        assert [(one.child, one.status, one.usage.calls) for one in ended] == [(registered.child, "finished", 1)]
        history = await rt.get_session("s").messages()
        results = [part.output for message in history for part in message.parts if isinstance(part, ToolResultPart)]
        told = [text for text in texts(history) if ANSWER in text]
        running = {"agent": "writer", "session": registered.child, "status": "running"}
        assert (results, len(told)) == (([ANSWER], 0) if mode == "foreground" else ([running], 1))
        assert texts(await rt.get_session(registered.child).messages()) == ["Tea"]
