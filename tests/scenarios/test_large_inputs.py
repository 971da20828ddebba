"""Large inputs of models, tools, clients, files and servers: no step of the event loop takes 50 ms of CPU time.

The watchdog of `tests/watchdog.py` measures the steps; these tests only cause them.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path

import pytest

from perdure import Agent, Attachment, Runtime, Session, ToolContext, tool
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, Step, call, say
from perdure.runtime.clock import SystemClock
from perdure.security import AesGcmCodec
from perdure.store.sqlite.store import SqliteStore
from perdure.tools.files import file_tools
from perdure.vocab.messages import ToolResultPart
from tests.scenarios.conftest import NewStore

MB = 1024 * 1024
LARGE = 16 * MB
LINE = "a line of forty characters, as in a book\n"
TEXT = LINE * (LARGE // len(LINE))
ENCODED = b64encode(TEXT.encode()).decode()
LONG = "x" * (LARGE - 1000)
WIDE: Json = [{"a": n, "b": [n]} for n in range(30_000)]

pytestmark = pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])


def codec(sealed: bool) -> AesGcmCodec | None:
    return AesGcmCodec({"k": bytes(range(32))}) if sealed else None


@tool(effect="once")
async def put(ctx: ToolContext, encoding: str, times: int = 1) -> str:
    """Write a large file."""
    await ctx.files.write_file("/big.txt", times * (TEXT if encoding == "text" else ENCODED), encoding)
    return "written"


@tool(effect="pure")
async def produce(kind: str) -> Json:
    """Return a large result."""
    return WIDE if kind == "wide" else LONG


@tool(effect="once")
async def attach(ctx: ToolContext) -> int:
    """Attach a large file, and read it back."""
    ref = await ctx.attachments.put(LONG.encode(), "text/plain")
    return len(await ctx.attachments.get(ref))


async def told(new_store: NewStore, sealed: bool, *steps: Step) -> list[Json]:
    """Return the results of the calls."""
    tools = [put, produce, attach, *file_tools()]
    agent = Agent("a", model=ScriptedModel(*steps, say("done")), tools=tools)
    async with Runtime(new_store(), agents=[agent], payload_codec=codec(sealed)) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go", timeout=50)
        return await outputs(session)


async def outputs(session: Session) -> list[Json]:
    return [part.output for one in await session.messages() for part in one.parts if isinstance(part, ToolResultPart)]


@pytest.mark.parametrize("encoding", ["text", "base64"])
async def test_t_tool_03_large_files_hold_no_step(new_store: NewStore, sealed: bool, encoding: str) -> None:
    edit: dict[str, Json] = {"expected_hash": "sha256:0", "edits": [{"old_text": "a", "new_text": "b"}]}
    written, read, stale = await told(
        new_store,
        sealed,
        call("put", encoding=encoding),
        call("read_file", path="/big.txt"),
        call("edit_file", path="/big.txt", **edit),
    )
    assert written == "written"
    assert read["size_bytes"] == len(TEXT)
    assert "error" in stale or "changed since" in str(stale)


async def test_t_tool_03_very_large_file_holds_no_step_on_sqlite(tmp_path: Path, sealed: bool) -> None:
    steps = call("put", encoding="text", times=4), call("read_file", path="/big.txt")
    _, read = await told(lambda: SqliteStore(tmp_path / "s.db", SystemClock()), sealed, *steps)
    assert read["size_bytes"] == 4 * len(TEXT)


@pytest.mark.parametrize("kind", ["long", "wide"])
async def test_t_tool_03_large_results_hold_no_step(new_store: NewStore, sealed: bool, kind: str) -> None:
    (shown,) = await told(new_store, sealed, call("produce", kind=kind))
    assert shown["truncated"]


async def test_t_tool_03_large_attachments_hold_no_step(new_store: NewStore, sealed: bool) -> None:
    assert await told(new_store, sealed, call("attach")) == [len(LONG)]


async def test_t_tool_03_large_inputs_and_archives_hold_no_step(new_store: NewStore, sealed: bool) -> None:
    agent = Agent("a", model=ScriptedModel(*[say("seen")] * 3))
    async with Runtime(new_store(), agents=[agent], payload_codec=codec(sealed)) as rt:
        session = await rt.session("s", agent="a")
        for letter in (b"x", b"y"):
            await session.ask(["look", Attachment("text/plain", letter * LARGE)], timeout=20)
        data = await session.export()
        await asyncio.sleep(0)
        again = await rt.import_session("t", data)
        assert [m.role for m in await again.messages()] == ["user", "assistant"] * 2


async def test_t_tool_03_long_histories_hold_no_step(new_store: NewStore, sealed: bool) -> None:
    agent = Agent("a", model=ScriptedModel(*[say("word " * 2000, exact=True)] * 60))
    async with Runtime(new_store(), agents=[agent], payload_codec=codec(sealed)) as rt:
        session = await rt.session("s", agent="a")
        for _ in range(60):
            await session.ask("go")
            await asyncio.sleep(0)
        for read in (session.journal, session.messages, session.export):
            assert await read()
            await asyncio.sleep(0)
