"""Cost of a turn, counted: commits an owner waits for, statements, bytes. Counts, not times."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from perdure import Agent, Runtime, RuntimeOptions, ToolContext, tool
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import core_of
from perdure.store.shapes import Accepted


@tool
async def lookup(item: str) -> str:
    """Look an item up."""
    return "tool result: " + "t" * 180


def agent() -> Agent:
    return Agent("a", model=ScriptedModel(call("lookup", item="x" * 20), say("a" * 190)), tools=[lookup])


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that has a disk."""
    return f"sqlite:///{tmp_path / 's.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


async def test_a_turn_with_one_once_tool_waits_for_three_commits_sending_included(address: str) -> None:
    async with Runtime(address, agents=[agent()]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("warm up")
        counters = core_of(rt).store.counters
        awaited, commits, statements = counters.awaited, counters.commits, counters.statements
        turns = 20
        for _ in range(turns):
            await session.ask("look it up, " + "q" * 80)
        sent = turns  # `send` waits for the append that opens the turn
        assert counters.awaited - awaited + sent <= 3 * turns
        assert counters.commits - commits <= 4 * turns + 2  # a lease renewal may fall into the measured time
        assert counters.statements - statements <= 25 * turns


async def test_a_session_that_its_sender_opens_and_serves_is_not_read(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender wrote all records itself, and its last append reported no others."""
    async with Runtime(address, agents=[agent()]) as rt:
        await (await rt.session("warm", agent="a")).ask("warm up")

        def read(*_: object, **__: object) -> NoReturn:
            raise AssertionError("what is known was read")

        for name in ("load", "read", "inbox"):
            monkeypatch.setattr(core_of(rt).store, name, read)
        for n in range(3):
            await (await rt.session(f"s{n}", agent="a")).ask("look it up")


async def test_a_turn_late_in_a_session_costs_what_an_early_one_does(tmp_path: Path) -> None:
    """Statements, over blocks of turns: looking for work and renewing a lease fall into some of them."""
    async with Runtime(f"sqlite:///{tmp_path / 's.db'}", agents=[agent()]) as rt:
        session = await rt.session("s", agent="a")
        costs: list[int] = []
        for _ in range(5):
            before = core_of(rt).store.counters.statements
            for _ in range(20):
                await session.ask("look it up")
            costs.append(core_of(rt).store.counters.statements - before)
        assert costs[-1] <= 1.3 * min(costs)


async def test_storage_follows_new_content(tmp_path: Path) -> None:
    """About 0.9 KB of text a turn; a conversation stored again and again would be a hundred times that."""
    path = tmp_path / "s.db"
    sizes: list[int] = []
    for _ in range(2):  # the empty tables are in both
        async with Runtime(f"sqlite:///{path}", agents=[agent()]) as rt:
            session = await rt.session("s", agent="a")
            for _ in range(100):
                await session.ask("look it up, " + "q" * 80)
        sizes.append(path.stat().st_size)
    assert sizes[1] - sizes[0] <= 300_000


@tool(effect="resumable")
async def flow(ctx: ToolContext, count: int) -> int:
    """Run steps, one after the other."""

    async def work() -> str:
        return "done"

    for n in range(count):
        await ctx.step(f"s{n}", work)
    return count


async def test_one_more_step_is_one_more_commit(tmp_path: Path) -> None:
    """Outcome i and intent i+1 are one append: k steps in a row wait for k + 1 commits."""
    costs: dict[int, tuple[int, int, int]] = {}
    for count in (20, 60):
        agent = Agent("a", model=ScriptedModel(call("flow", count=count), say("done")), tools=[flow])
        lasting = RuntimeOptions(lease_s=600)  # a renewal is a commit, and a slow machine sees many
        async with Runtime(f"sqlite:///{tmp_path / f'{count}.db'}", agents=[agent], options=lasting) as rt:
            session = await rt.session("s", agent="a")
            await session.ask("run")
            counters = core_of(rt).store.counters
            costs[count] = (counters.awaited, counters.plans, counters.commits)
    awaited, plans, commits = (more - fewer for fewer, more in zip(costs[20], costs[60], strict=True))
    assert (awaited, plans) == (40, 40)
    assert commits <= 40 + 2  # the first renewal may come alone


async def test_an_answer_from_outside_is_one_commit(tmp_path: Path) -> None:
    async with Runtime(f"sqlite:///{tmp_path / 'a.db'}", agents=[agent()], worker=False) as rt:
        session = await rt.session("s", agent="a")
        await session.send("run")
        await session.resolve("another", 1)  # the first act of a month opens its audit log
        before = core_of(rt).store.counters.commits
        assert await session.resolve("reviewed", "yes") == Accepted()
        assert core_of(rt).store.counters.commits - before == 1


async def test_s25_audit_entry_of_an_act_is_no_commit_of_its_own(address: str) -> None:
    """S25: an act is one commit with its entry; only the first act of a month commits the new stream before."""
    async with Runtime(address, agents=[agent()], worker=False) as rt:
        session = await rt.session("s", agent="a")
        await session.send("opens the session")
        counters, costs = core_of(rt).store.counters, list[int]()
        for act in (session.pause, session.resume, session.pause, session.resume):
            before = counters.commits
            assert await act(by="ann")
            costs.append(counters.commits - before)
        assert costs == [2, 1, 1, 1]
        assert len(await rt.audit.list()) == 4


async def test_s16_counting_a_queue_adds_no_statement_to_a_send(address: str) -> None:
    """S16: the room of a queue is counted in the statements that admit an input."""
    async with Runtime(address, agents=[agent()], worker=False) as rt:
        session = await rt.session("s", agent="a")
        await session.send("opens the session")
        counters = core_of(rt).store.counters
        before = counters.statements
        for n in range(20):
            await session.send(f"waits {n}")
        plain = (counters.statements - before) / 20
        assert plain == (6 if address.startswith("sqlite") else 3)  # two of them check that the session is readable
