"""Crash sweeps on a database server: workers killed at every durable boundary, the server crashed under them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Agent, Runtime, RuntimeOptions, tool
from perdure.ids import Seq, WorkerId
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.store.postgres import PostgresStore
from perdure.testing.crash import Boundary, tripwire
from tests.crash.harness import assert_valid_for_a_provider, at, inside, trace
from tests.crash.scenarios import SCENARIOS, Ledger, writes
from tests.crash.test_bodies import MODELS, outputs, publishing
from tests.crash.test_sweep import ONE_ONCE_WRITES, SWEEPS, check
from tests.postgres import Server
from tests.scenarios.test_streaming import PIECES, Reader, Typist
from tests.unit.store.parties import entry, owned, plan

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

WHOLE = ("one_once", "probed")
"""The main turn, and the turn in which it matters that the dead are known to be dead: killed on both sides of a write.
A kill after one write is nearly a kill before the next, so one side will do for the others."""

POINTS = [
    (name, point) for name in SWEEPS for point in SWEEPS[name].points if name in WHOLE or point.endswith(":before")
]


@pytest.mark.parametrize("scenario", SWEEPS)
def test_the_scenario_writes_what_the_table_says(scenario: str, on_postgres: Path) -> None:
    boundaries = trace(scenario, on_postgres)
    assert [b.what for b in boundaries if b.side == "before"] == SWEEPS[scenario].writes
    assert {f"{b.n}:{b.side}" for b in boundaries} == set(SWEEPS[scenario].points)


@pytest.mark.parametrize(("scenario", "point"), POINTS)
async def test_killed_at_a_durable_boundary(scenario: str, point: str, on_postgres: Path) -> None:
    n, side = point.split(":")
    await check(scenario, on_postgres, at(Boundary(int(n), side, "")), SWEEPS[scenario].points[point])


@pytest.mark.parametrize(("scenario", "place"), [(name, place) for name in SWEEPS for place in SWEEPS[name].inside])
async def test_killed_inside(scenario: str, place: str, on_postgres: Path) -> None:
    await check(scenario, on_postgres, inside(place), SWEEPS[scenario].inside[place])


# --- the server


@pytest.fixture(scope="module")
def mortal_server() -> Iterator[Server]:
    """A server of their own for tests that crash it."""
    server = Server()
    yield server
    server.remove()


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("n", range(1, len(ONE_ONCE_WRITES) + 1))
async def test_the_server_crashes_at_every_write_and_the_turn_goes_on(
    n: int, side: str, mortal_server: Server, tmp_path: Path
) -> None:
    """Before: the write finds its connection gone. After: it was durable, and whatever comes next finds that."""
    ledger = Ledger(tmp_path / "ledger")
    model, tools = SCENARIOS["one_once"](ledger)
    crashes: list[str] = []

    def on_boundary(boundary: Boundary) -> None:
        if (boundary.n, boundary.side) == (n, side) and not crashes:
            crashes.append(boundary.what)
            mortal_server.stop("immediate")
            mortal_server.start()

    real = PostgresStore(mortal_server.url(schema=f"crash_{n}_{side}"), SystemClock())
    store = tripwire(real, on_boundary)
    async with Runtime(store, agents=[Agent("a", model=model, tools=tools)]) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go", key="the-only-input")
        assert (await sent.result(timeout=30)).status == "finished"
        rows = await session.journal()
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
        assert_valid_for_a_provider(await session.messages())
        assert (await session.why()).status == "idle"
    assert crashes == [ONE_ONCE_WRITES[n - 1]]
    assert ledger.count("charge") == 1


ONE_EACH = {
    "retried": {"charge": 2},  # it failed safely the first time
    "stream_cut": {"charge": 1},
    "three_classes": {"look": 1, "put": 1, "charge": 1},
    "queued": {"first": 1, "second": 1, "third": 1},
}


@pytest.mark.parametrize("scenario", ONE_EACH)
async def test_the_server_crashes_before_each_write_of_a_turn(
    scenario: str, mortal_server: Server, tmp_path: Path
) -> None:
    """All in one turn, and nothing is dispatched more often than if nothing had happened."""
    ledger, crashes = Ledger(tmp_path / "ledger"), list[str]()

    def on_boundary(boundary: Boundary) -> None:
        if boundary.side == "before":
            crashes.append(boundary.what)
            mortal_server.stop("immediate")
            mortal_server.start()

    model, tools = SCENARIOS[scenario](ledger)
    real = PostgresStore(mortal_server.url(schema=f"each_{scenario}"), SystemClock(), lease_ms=60_000)
    agent, tuning = Agent("a", model=model, tools=tools), RuntimeOptions(lease_s=60)
    async with Runtime(writes.watched(tripwire(real, on_boundary)), agents=[agent], options=tuning) as rt:
        sent = await (await rt.session("s", agent="a")).send("go", key="the-only-input")
        assert (await sent.result(timeout=100)).status == "finished"
        assert_valid_for_a_provider(await sent.session.messages())
    facts = {fact for write in SWEEPS[scenario].writes for fact in write.removeprefix("append ").split(", ")}
    assert facts <= {fact for write in crashes for fact in write.removeprefix("append ").split(", ")}
    assert {name: ledger.count(name) for name in ONE_EACH[scenario]} == ONE_EACH[scenario]


async def test_the_server_crashes_before_each_write_of_a_turn_that_waits(mortal_server: Server, tmp_path: Path) -> None:
    """Steps, a retry, a sleep, an event and a charge; a crash at every single one of their writes, all in one turn."""
    ledger = Ledger(tmp_path / "ledger")
    crashes: list[str] = []

    def on_boundary(boundary: Boundary) -> None:
        if boundary.side == "before":
            crashes.append(boundary.what)
            mortal_server.stop("immediate")
            mortal_server.start()

    real = PostgresStore(mortal_server.url(schema="crash_each"), SystemClock(), lease_ms=60_000)
    agent = Agent("a", model=MODELS["publish"](), tools=publishing(ledger))
    tuning = RuntimeOptions(idle_timeout_s=0.0, lease_s=60)
    async with Runtime(tripwire(real, on_boundary), agents=[agent], options=tuning) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go", key="the-only-input")
        await session.resolve("reviewed", "fine")
        assert (await sent.result(timeout=100)).status == "finished"
        rows = await session.journal()
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
        assert_valid_for_a_provider(await session.messages())
        assert outputs(await session.messages()) == ["upload-render-done-fine done", "seen", "charge done"]
    assert len(crashes) >= 10
    names = [name for name, _ in ledger.lines()]
    assert sorted(names) == ["charge", "render", "store", "upload-render-done-fine"]


async def test_long_call_stays_with_its_worker_after_server_outage(mortal_server: Server, tmp_path: Path) -> None:
    ledger, called, enough = Ledger(tmp_path / "ledger"), asyncio.Event(), asyncio.Event()

    @tool(effect="idempotent")
    async def index() -> str:
        """Index."""
        ledger.write("index", "-")
        called.set()
        await enough.wait()
        return "indexed"

    agent = Agent("a", model=ScriptedModel(call("index"), say("done")), tools=[index])
    url, tuning = mortal_server.url(schema="away"), RuntimeOptions(lease_s=1)
    async with Runtime(url, agents=[agent], options=tuning) as ann, Runtime(url, agents=[agent], options=tuning) as bob:
        sent = await (await ann.session("s", agent="a")).send("go")
        await asyncio.wait_for(called.wait(), 20)
        await asyncio.to_thread(mortal_server.stop, "immediate")
        await asyncio.sleep(1.5)
        await asyncio.to_thread(mortal_server.start)
        async with asyncio.timeout(30):
            while not (core_of(bob).store.lease_live(bob.worker_id) and core_of(ann).store.lease_live(ann.worker_id)):  # noqa: ASYNC110 - they come back
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.6)  # a look for work or two
        enough.set()
        assert (await sent.result(timeout=30)).status == "finished"
    assert ledger.count("index") == 1, "the call was taken from a live worker"


async def test_the_server_crashes_while_an_append_is_under_way(mortal_server: Server) -> None:
    """Many appends in flight, a crash among them: each is written once, and each gets its receipt."""
    ann = WorkerId("ann")
    store = PostgresStore(mortal_server.url(schema="crash_among"), SystemClock())
    await store.open()
    await store.register(ann, pid=1, version="1", now=0)
    claims = [await owned(store, f"s{i}", ann) for i in range(10)]

    async def work(index: int) -> None:
        for n in range(1, 41):
            receipt = await store.append(plan(claims[index], ann, n, entry(str(n))))
            assert receipt.first_seq == n + 1

    async def crash() -> None:
        for _ in range(3):
            await asyncio.sleep(0.02)
            await asyncio.to_thread(mortal_server.stop, "immediate")
            await asyncio.to_thread(mortal_server.start)

    await asyncio.gather(crash(), *(work(index) for index in range(10)))
    for claim in claims:
        rows = await store.read(claim.stream, after=Seq(1))
        assert [row.data for row in rows] == [entry(str(n)).data for n in range(1, 41)]
    await store.close()


async def test_the_server_crashes_while_a_reply_is_written(mortal_server: Server) -> None:
    """Deltas in flight to remote observers may be lost; the reply is not, and is bought once."""
    model, url = Typist(PIECES), mortal_server.url(schema="crash_stream")
    async with (
        Runtime(url, agents=[Agent("a", model=model)]) as rt,
        Runtime(url, agents=[Agent("a", model=model)], worker=False) as elsewhere,
    ):
        sent = await (await rt.session("s", agent="a")).send("go")
        reader = Reader(elsewhere.get_session("s"))
        model.go_on(2)
        await reader.shows("Hello, dear ")
        mortal_server.stop("immediate")
        mortal_server.start()
        late = Reader(elsewhere.get_session("s"))
        model.go_on()
        assert (await sent.result(timeout=60)).text == "".join(PIECES)
        for one in (reader, late):
            await one.has_replies("".join(PIECES))
            assert one.text in "".join(PIECES), "nothing of it is shown twice"
            await one.leave()
    assert model.asked == 1
