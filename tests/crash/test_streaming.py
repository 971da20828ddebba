"""A worker is killed while its model writes: an observer sees one clean message in the end, from any cursor."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure import Agent, Runtime, RuntimeOptions, UsageLimits
from perdure.events import Event, RecordEvent, TextDelta
from perdure.ids import SessionId, StreamId, TurnId
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest, TextPiece
from perdure.observe.events import TextReset
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.models import ModelSources
from perdure.services.replies import PartialStreamState
from perdure.vocab.messages import Reply, Text
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import EffectSettled
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(90)]

CHILD = """
    import asyncio, sys
    from pathlib import Path
    from perdure import Agent, Runtime, RuntimeOptions, UsageLimits
    from perdure.models.protocol import HiddenDelta, TextPiece

    class Endless:
        name = "writer"
        async def stream(self, request):
            Path(sys.argv[2]).open("a").write("asked\\n")
            for n in range(500):
                yield TextPiece(f"old{n} ")
                await asyncio.sleep(0.001)
            Path(sys.argv[3]).touch()
            await asyncio.sleep(3600)

    async def main():
        options = RuntimeOptions(lease_s=1.0)
        async with Runtime(sys.argv[1], agents=[Agent("a", model=Endless())], options=options) as rt:
            await (await rt.session("s", agent="a")).send("go", key="k")
            await asyncio.sleep(3600)

    asyncio.run(main())
"""
LIMITED = "model=Endless(), limits=UsageLimits(turn_tokens=1_100)"
OLD = "".join(f"old{n} " for n in range(500))
NEW = "".join(f"new{n} " for n in range(1000))


class Writer:
    """The same model after the restart: it words its answer differently."""

    name = "writer"

    def __init__(self, asked: Path) -> None:
        self._asked = asked

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        note(self._asked)
        for n in range(1000):
            yield TextPiece(f"new{n} ")
            if n % 100 == 0:
                await asyncio.sleep(0.02)
        yield ModelReply(parts=(Text(text=NEW),), finish="stop", usage=Usage(output=1000, calls=1), model="writer")


def started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command)


def note(path: Path) -> None:
    with path.open("a") as file:
        file.write("asked\n")


async def hidden(rt: Runtime, stream: StreamId) -> bool:
    return not all(piece.text for piece in await core_of(rt).store.live.read(stream))


def there(path: Path) -> bool:
    return path.exists()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 's.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


class Watcher:
    """Reads a session from a cursor, and keeps what a screen would show."""

    def __init__(self, rt: Runtime, after: str = "", screen: str = "") -> None:
        self.events: list[Event] = []
        self.screen = screen
        self._task = asyncio.create_task(self._read(rt, after))

    async def _read(self, rt: Runtime, after: str) -> None:
        async for event in rt.get_session("s").events(after):
            self.events.append(event)
            if isinstance(event, TextDelta):
                self.screen += event.text
            elif isinstance(event, TextReset):
                assert event.chars == len(self.screen)
                self.screen = ""
            elif isinstance(event, RecordEvent) and (saved := reply_in(event)):
                self.screen = saved  # it replaces whatever was shown
            assert OLD.startswith(self.screen) or NEW.startswith(self.screen), "two answers in one"

    async def until(self, screen: str) -> None:
        while self.screen != screen:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.02)

    async def until_superseded(self, times: int) -> None:
        async def so_often() -> bool:
            return sum(isinstance(event, TextReset) for event in self.events) >= times

        await until(so_often, seconds=40)

    async def until_saved(self, reply: str) -> None:
        """Until the fact is told: all of its text may be shown before."""

        async def told() -> bool:
            return any(reply_in(event) == reply for event in self.events)

        await until(told, seconds=40)
        assert self.screen == reply

    async def leave(self) -> str:
        self._task.cancel()
        await asyncio.wait([self._task])
        return str(self.events[-1].cursor)


@pytest.mark.slow
async def test_killed_in_the_middle_of_a_reply(url: str, tmp_path: Path) -> None:
    asked, half = tmp_path / "asked", tmp_path / "half"
    command = [sys.executable, "-c", textwrap.dedent(CHILD), url, str(asked), str(half)]
    child = started(command)
    try:
        while not there(half):
            assert child.poll() is None
            await asyncio.sleep(0.05)
        async with Runtime(url, agents=[], worker=False) as looking:
            stays, goes = Watcher(looking), Watcher(looking)
            await stays.until(OLD)
            await goes.until(OLD)
            cursor = await goes.leave()
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            agents = [Agent("a", model=Writer(asked))]
            async with Runtime(url, agents=agents, options=RuntimeOptions(lease_s=1.0)) as rt:
                back = Watcher(looking, cursor, OLD)
                sent = await (await rt.session("s", agent="a")).send("go", key="k")
                assert sent.is_duplicate
                assert (await sent.result(timeout=40)).text == NEW
                for one in (stays, back):
                    await one.until_saved(NEW)
                    await one.leave()
                    assert [reply_in(event) for event in one.events if reply_in(event)] == [NEW]
                ledger = [(entry.effect, entry.usage) for entry in await sent.session.usage_entries()]
    finally:
        child.kill()
        child.wait()
    assert len(asked.read_text().splitlines()) == 2, "once before the kill and once after it"
    (first, lost), (second, whole) = ledger
    assert (first, lost.output, lost.calls, lost.estimated) == ("m1.1", 1_130, 1, 1), "3,390 characters were written"
    assert lost.input > 0
    assert (second, whole) == ("m1.2", Usage(output=1_000, calls=1))


@pytest.mark.slow
async def test_usage_before_a_kill_counts_against_limits(tmp_path: Path) -> None:
    url, asked, half = f"sqlite:///{tmp_path / 's.db'}", tmp_path / "asked", tmp_path / "half"
    child = started(
        [sys.executable, "-c", textwrap.dedent(CHILD.replace("model=Endless()", LIMITED)), url, str(asked), str(half)]
    )
    try:
        async with Runtime(url, agents=[], worker=False) as looking:
            while not there(half):
                assert child.poll() is None
                await asyncio.sleep(0.05)
            watcher = Watcher(looking)
            await watcher.until(OLD)
            await watcher.leave()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        agents = [Agent("a", model=Writer(asked), limits=UsageLimits(turn_tokens=1_100))]
        async with Runtime(url, agents=agents, options=RuntimeOptions(lease_s=1.0)) as rt:
            sent = await (await rt.session("s", agent="a")).send("go", key="k")
            result = await sent.result(timeout=40)
    finally:
        child.kill()
        child.wait()
    assert (result.status, result.reason) == ("stopped", "limit_reached")
    assert result.usage.estimated == 1
    assert len(asked.read_text().splitlines()) == 1, "the model is not called again"


def reply_in(event: Event) -> str:
    """The reply that a fact saves, if it does."""
    match event:
        case RecordEvent(record=EffectSettled(outcome=LlmCallOutcome(reply=Reply() as reply))):
            return reply.text
        case _:
            return ""


@pytest.mark.slow
@pytest.mark.parametrize("call_begun", [False, True], ids=["text", "call"])
async def test_text_before_a_kill_becomes_a_partial_reply(url: str, call_begun: bool, tmp_path: Path) -> None:
    asked, half = tmp_path / "asked", tmp_path / "half"
    script = CHILD.replace("model=Endless()", "model=Endless(), on_cut_reply='keep'")
    if call_begun:
        script = script.replace("Path(sys.argv[3]).touch()", "yield HiddenDelta(4); Path(sys.argv[3]).touch()")
    child = started([sys.executable, "-c", textwrap.dedent(script), url, str(asked), str(half)])
    try:
        async with Runtime(url, agents=[], worker=False) as looking:
            while not there(half):
                assert child.poll() is None
                await asyncio.sleep(0.05)
            watcher = Watcher(looking)
            await watcher.until(OLD)
            stream = ref_of(looking.get_session("s")).stream
            if call_begun:
                await until(lambda: hidden(looking, stream))
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            agents = [Agent("a", model=Writer(asked), on_cut_reply="keep")]
            async with Runtime(url, agents=agents, options=RuntimeOptions(lease_s=1.0)) as rt:
                sent = await (await rt.session("s", agent="a")).send("go", key="k")
                result = await sent.result(timeout=40)
                shown = NEW if call_begun else OLD
                await watcher.until(shown)
                await watcher.leave()
    finally:
        child.kill()
        child.wait()
    assert (result.text, result.partial) == (shown, "" if call_begun else "worker_lost")
    assert len(asked.read_text().splitlines()) == (2 if call_begun else 1)
    assert result.usage.estimated == 1


class Host:
    """A host's stored partial reply: a fixed text, nothing, or an error."""

    def __init__(self, knows: str | Exception | None) -> None:
        self.asked: list[tuple[str, str]] = []
        self._knows = knows

    async def get_partial_stream(self, session_id: SessionId, turn_id: TurnId) -> PartialStreamState | None:
        self.asked.append((session_id, turn_id))
        if isinstance(self._knows, Exception):
            raise self._knows
        return None if self._knows is None else PartialStreamState(self._knows)


@pytest.mark.parametrize(
    "knows", ["What the host has.", "", None, RuntimeError("no")], ids=["text", "", "not", "fails"]
)
async def test_a_host_may_remember_replies_that_broke_off_itself(
    url: str, knows: str | Exception | None, tmp_path: Path
) -> None:
    asked, half = tmp_path / "asked", tmp_path / "half"
    script = CHILD.replace("model=Endless()", "model=Endless(), on_cut_reply='keep'")
    child = started([sys.executable, "-c", textwrap.dedent(script), url, str(asked), str(half)])
    try:
        async with Runtime(url, agents=[], worker=False) as looking:
            while not there(half):
                assert child.poll() is None
                await asyncio.sleep(0.05)
            watcher = Watcher(looking)
            await watcher.until(OLD)
            await watcher.leave()
    finally:
        child.kill()
        child.wait()
    host = Host(knows)
    agents = [Agent("a", model=Writer(asked), on_cut_reply="keep")]
    sources = ModelSources(partial_streams=host)
    async with Runtime(url, agents=agents, model_sources=sources, options=RuntimeOptions(lease_s=1.0)) as rt:
        sent = await (await rt.session("s", agent="a")).send("go", key="k")
        result = await sent.result(timeout=40)
        assert core_of(rt).partial_streams is host
    assert host.asked == [("s", sent.turn_id)]
    stands = (knows or NEW) if isinstance(knows, str) else OLD
    assert (result.text, result.partial) == (stands, "" if stands == NEW else "worker_lost")
    assert result.usage.estimated == 1


@pytest.mark.slow
async def test_killed_twice_in_the_middle_of_a_reply(url: str, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    async with Runtime(url, agents=[], worker=False) as looking:
        watcher: Watcher | None = None
        for life in (1, 2):
            half = tmp_path / f"half{life}"
            child = started([sys.executable, "-c", textwrap.dedent(CHILD), url, str(asked), str(half)])
            try:
                while not there(half):
                    assert child.poll() is None
                    await asyncio.sleep(0.05)
                watcher = watcher or Watcher(looking)
                await watcher.until_superseded(life - 1)
                await watcher.until(OLD)
            finally:
                os.kill(child.pid, signal.SIGKILL)
                child.wait()
        assert watcher is not None
        async with Runtime(url, agents=[Agent("a", model=Writer(asked))], options=RuntimeOptions(lease_s=1.0)) as rt:
            sent = await (await rt.session("s", agent="a")).send("go", key="k")
            assert (await sent.result(timeout=40)).text == NEW
            await watcher.until(NEW)
            await watcher.leave()
            ledger = [
                (entry.effect, entry.usage.output, entry.usage.estimated)
                for entry in await sent.session.usage_entries()
            ]
    assert len(asked.read_text().splitlines()) == 3
    assert ledger == [("m1.1", 1_130, 1), ("m1.2", 1_130, 1), ("m1.3", 1_000, 0)]
    assert sum(isinstance(event, TextReset) for event in watcher.events) == 2
