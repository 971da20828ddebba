"""A run in the background, killed at every boundary: begun once if it may run only once, else run again; told once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Literal

import pytest

from perdure import Agent, BaseTool, Runtime, Session, ToolContext, ToolHints
from perdure.codec import Json, decode
from perdure.ids import SessionId
from perdure.models.scripted import ScriptedModel, call, say
from perdure.services.background import BackgroundEventSink, BackgroundOutcome
from perdure.services.tasks import SessionTask
from perdure.store.protocol import Store
from perdure.testing import CrashReport, World, every_boundary
from perdure.tools import ToolResult
from perdure.tools.background import SpawnBackgroundTool
from perdure.vocab.messages import Text
from tests.crash.harness import processes
from tests.scenarios.conftest import until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

S = SessionId("s")
ANY: Json = {"type": "object"}
CHARGED: list[str] = []
"""What was done to the world in one experiment; the kit would miss what an orphan did not do."""
ENDS: list[str] = []


class Charges(BaseTool):
    """Does something to the world, once."""

    name = "charge"
    description = "Charge"
    parameters_schema = ANY
    hints = ToolHints(supports_background=True)

    def __init__(self, world: World) -> None:
        self.world = world

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.tool_error("only in the background")

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        await sink.output("stdout", "charging")
        CHARGED.append(context.idempotency_key)
        return BackgroundOutcome("charged", {"done": "charge"})


class Reads(Charges):
    """May run twice."""

    name = "read"
    hints = ToolHints(supports_background=True, readonly=True)

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        if not self.world.has(context.idempotency_key):
            self.world.note("read", key=context.idempotency_key)
        return BackgroundOutcome("read", {"done": "read"})


def _app(store: Store | str, tool: BaseTool, *, signal: bool = False) -> Runtime:
    spawn = call("spawn_background", tool=tool.name, args={}, signal_on_completion=signal)
    model = ScriptedModel.by_input({"go": [spawn, say("started")]}, default=[say("noted", exact=True)])
    return Runtime(store, agents=[Agent("a", model=model, tools=[SpawnBackgroundTool(), tool])])


def charging(store: Store, world: World) -> Runtime:
    return _app(store, Charges(world))


def reading(store: Store, world: World) -> Runtime:
    return _app(store, Reads(world))


async def ended(rt: Runtime) -> SessionTask:
    async def is_over() -> bool:
        tasks = await rt.tasks.list(S)
        return bool(tasks) and tasks[0].is_over

    await until(is_over, seconds=18)
    (task,) = await rt.tasks.list(S)
    return task


async def script(rt: Runtime) -> None:
    session = await rt.session("s", agent="a")
    await session.ask("go", key="k")
    task = await ended(rt)
    ENDS.append(task.state)
    if task.state == "failed":
        assert task.error is not None
        assert task.error.kind == "orphaned"
        assert (task.spec["tool"], task.attempt) == ("charge", 1), "a repeatable run starts again"
        return
    assert task.result_path is not None
    found = await session.files.read_file(task.result_path)
    assert found is not None
    assert decode(found.content or "") == {"done": task.spec["tool"]}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["memory", "kill"])
def test_repeatable_run_ends_at_every_crash_boundary(mode: Literal["memory", "kill"]) -> None:
    facts = ["create", "process_first_started", "amend", "process.completed"]
    where = [f"{side} {what}" for what in facts for side in ("before", "after")] if mode == "kill" else None
    crashes = every_boundary(reading, script, mode=mode, at=where)
    assert {len(crash.world) for crash in crashes} == {1}


def test_nonrepeatable_run_starts_once_at_every_crash_boundary() -> None:
    CHARGED.clear()
    ENDS.clear()
    seen: list[tuple[str, int]] = []

    def begun_once(crash: CrashReport) -> None:
        before = 1 + sum(count for _, count in seen)  # the undisturbed run, and the experiments so far
        seen.append((ENDS[-1], len(CHARGED) - before))

    every_boundary(charging, script, mode="memory", check=begun_once)
    assert set(seen) <= {("succeeded", 1), ("failed", 0), ("failed", 1)}
    assert ("succeeded", 1) in seen
    assert ("failed", 0) in seen, "killed once it was to begin, and before it did"


# --- killed while the tool runs, with a message to be sent


def dying(url: str, ledger: str) -> None:
    """Spawn a run that is killed in the middle, before its first second is over."""

    class Dies(Noting):
        async def execute_background(
            self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
        ) -> BackgroundOutcome:
            note(ledger)
            os.kill(os.getpid(), signal.SIGKILL)
            return BackgroundOutcome("never")

    async def live() -> None:
        async with _app(url, Dies(ledger), signal=True) as rt:
            await (await rt.session("s", agent="a")).send("go", key="k")
            await asyncio.sleep(60)

    asyncio.run(live())


def note(ledger: str) -> None:
    with Path(ledger).open("a") as file:
        file.write("charged\n")


class Noting(BaseTool):
    """Writes to a file; may run once only, unless it says otherwise."""

    name = "charge"
    description = "Charge"
    parameters_schema = ANY
    hints = ToolHints(supports_background=True)

    def __init__(self, ledger: str) -> None:
        self.ledger = ledger

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.tool_error("only in the background")

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        note(self.ledger)
        return BackgroundOutcome("charged", {"done": "charge"})


async def test_killed_nonrepeatable_run_fails_and_signals_its_session_once(url: str, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    child = processes.Process(target=dying, args=(url, str(ledger)))
    child.start()
    await asyncio.to_thread(child.join, 60)
    assert child.exitcode == -signal.SIGKILL
    async with _app(url, Noting(str(ledger)), signal=True) as rt:
        task = await ended(rt)
        assert task.error is not None
        assert (task.state, task.error.kind) == ("failed", "orphaned")
        session = rt.get_session("s")

        async def told() -> bool:
            return bool(await signals_of(session)) and (await session.why()).status == "idle"

        await until(told, seconds=30)
        (message,) = await signals_of(session)
        assert message.startswith("Background run failed.")
        assert '- summary: "its worker is gone, and no other worker may continue it' in message
        assert await asyncio.to_thread(ledger.read_text) == "charged\n"
    async with _app(url, Noting(str(ledger)), signal=True) as rt:
        assert (await rt.get_session("s").why()).status == "idle"
        assert len(await signals_of(rt.get_session("s"))) == 1


async def signals_of(session: Session) -> list[str]:
    parts = [part for message in await session.messages() for part in message.parts if isinstance(part, Text)]
    return [part.text for part in parts if part.text.startswith("Background run")]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that processes share."""
    return f"sqlite:///{tmp_path / 's.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
