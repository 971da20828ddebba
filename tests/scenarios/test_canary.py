"""A secret leaves by no path: every client of a tool, every error, file, command, log record and prompt (law 13).

Each path gets secrets of its own, and says them in every form. Afterwards every byte of the store, its log files, its
side channel and the folders of commands is searched, with all prompts, events, log records and outputs.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import logging
import os
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from perdure import (
    Agent,
    OutcomeUnknown,
    ProcessContext,
    Runtime,
    RuntimeOptions,
    ToolContext,
    ToolError,
    process,
    tool,
)
from perdure.codec import encode
from perdure.errors import Error
from perdure.models.protocol import ModelEvent, ModelRequest
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.secret_store import StoredSecrets
from perdure.services.secrets import Redactor
from perdure.services.tasks import CreateSessionTask, NewTaskMessage, SessionTaskUpdate
from perdure.store.postgres.driver import dial
from perdure.store.postgres.store import PostgresStore
from perdure.store.protocol import Store
from perdure.store.sqlite.store import SqliteStore
from perdure.tools.execution_result import Image, ToolResult
from tests.e2e.command import in_this_process
from tests.postgres import Server
from tests.scenarios.conftest import until
from tests.scenarios.test_content import PNG

SH = "/bin/sh"
_ids = count(1)


@dataclass(frozen=True)
class Canary:
    """The secret of one path: as a value with signs that are escaped, and as a value that fits into a name."""

    mark: str = field(default_factory=lambda: f"{os.urandom(6).hex()}q{next(_ids):03}")

    @property
    def value(self) -> str:
        return f'cä"{self.mark}\n\\end of it'

    @property
    def plain(self) -> str:
        return f"tok-{self.mark}"

    @property
    def spread(self) -> str:
        """The value in every form, in one text."""
        data, once = self.value.encode(), json.dumps(self.value)
        coded = [b64encode(b"x" * before + data).decode() for before in range(3)]
        forms = [self.value, once, json.dumps(once), repr(self.value), quote(self.value), data.hex(), *coded]
        return " | ".join([*forms, self.plain])

    @property
    def traces(self) -> list[bytes]:
        """What remains of the secret in any form: its mark as it is, in base64 and in hexadecimal."""
        plain = self.mark.encode()
        coded = [b64encode(b"\0" * before + plain + b"\0\0\0")[4 : 4 + len(plain)] for before in range(3)]
        found = [plain, plain.hex().encode(), *coded]
        return [*found, *(one.hex().encode() for one in found)]  # bytes in a dump of Postgres are hexadecimal


@process
async def keeps(ctx: ProcessContext, text: str) -> str:
    """Wait for a signal and return the input."""
    told = await ctx.wait_for_signal("go", timeout=20)
    await ctx.step("again", lambda: f"{text} {told}")
    raise RuntimeError(f"{text} {told}")


Leak = Callable[[ToolContext, Canary], Awaitable[object]]
PATHS: dict[str, Leak] = {}
REFUSED: set[str] = set()
"""Paths that end in an error, because what they name cannot be hidden."""


def path(*names: str, refused: bool = False) -> Callable[[Leak], Leak]:
    """Add a path under its name, which begins with the client and the method that it uses."""

    def added(leak: Leak) -> Leak:
        for name in names:
            assert name not in PATHS
            PATHS[name] = leak
            REFUSED.update({name} if refused else ())
        return leak

    return added


# --- the end of a call


@path("result")
async def _(ctx: ToolContext, it: Canary) -> object:
    return {"said": it.spread, it.value: [it.value, {"deep": it.plain}]}


@path("result of two pieces of text")
async def _(ctx: ToolContext, it: Canary) -> object:
    return ToolResult.success({"long": "x" * 70_000 + it.spread})


@path("picture")
async def _(ctx: ToolContext, it: Canary) -> object:
    data = PNG + it.value.encode() + it.plain.encode()
    return ToolResult.success_with_images({"said": it.plain}, [Image(b64encode(data).decode(), "image/png")])


@path("error", refused=True)
async def _(ctx: ToolContext, it: Canary) -> object:
    raise ToolError(it.spread, code=f"no-{it.plain}")


@path("traceback", refused=True)
async def _(ctx: ToolContext, it: Canary) -> object:
    try:
        raise KeyError(it.value)
    except KeyError as problem:
        raise RuntimeError(it.spread) from problem


@path("outcome unknown", refused=True)
async def _(ctx: ToolContext, it: Canary) -> object:
    raise OutcomeUnknown(it.spread)


@path("log of another library")
async def _(ctx: ToolContext, it: Canary) -> object:
    logging.getLogger("a.library").debug("connecting with %s", it.spread)
    try:
        raise ValueError(it.value)
    except ValueError:
        logging.getLogger("a.library").exception("failed")
    return "logged"


# --- steps


@path("step")
async def _(ctx: ToolContext, it: Canary) -> object:
    async def same(given: str, more: str) -> str:
        return given + more

    return await ctx.step("same", same, it.spread, it.value)


@path("step error")
async def _(ctx: ToolContext, it: Canary) -> object:
    async def worse(given: str) -> str:
        raise ToolError(f"not {given}")

    with pytest.raises(ToolError) as caught:
        await ctx.step("worse", worse, it.spread)
    return caught.value.message


@path("step name", "sleep", "wait_for_event", refused=True)
async def _(ctx: ToolContext, it: Canary) -> object:
    return await ctx.step(it.plain, lambda: 1)


@path("map")
async def _(ctx: ToolContext, it: Canary) -> object:
    async def same(given: str) -> str:
        return given

    return await ctx.map("each", same, [it.spread, it.value])


# --- live output


@path("progress")
async def _(ctx: ToolContext, it: Canary) -> object:
    ctx.progress(it.spread)
    return 1


@path("output")
async def _(ctx: ToolContext, it: Canary) -> object:
    ctx.output(it.spread)
    return 1


@path("output in pieces")
async def _(ctx: ToolContext, it: Canary) -> object:
    for letter in f"a {it.value} b {it.plain} c":
        ctx.output(letter)
        await asyncio.sleep(0)
    return 1


# --- files and attachments


@path("files.write_file")
async def _(ctx: ToolContext, it: Canary) -> object:
    await ctx.files.write_file("/a.txt", it.spread)
    await ctx.files.write_file("/b.bin", b64encode(it.spread.encode()).decode(), "base64")
    file = await ctx.files.read_file("/a.txt")
    assert file is not None
    assert "[secret]" in (file.content or "")
    return file.content


@path("files.write_file large")
async def _(ctx: ToolContext, it: Canary) -> object:
    await ctx.files.write_file("/large.txt", "x" * 600_000 + it.spread)
    return 1


@path("files.write_file name", "files.create_directory")
async def _(ctx: ToolContext, it: Canary) -> object:
    await ctx.files.write_file(f"/{it.plain}.txt", "text")
    await ctx.files.create_directory(f"/d/{it.plain}")
    return 1


@path("files.write_file_if_content_matches")
async def _(ctx: ToolContext, it: Canary) -> object:
    await ctx.files.write_file("/c.txt", "old")
    await ctx.files.write_file_if_content_matches("/c.txt", "old", "text", it.spread)
    return 1


@path("attachments.put")
async def _(ctx: ToolContext, it: Canary) -> object:
    return encode(await ctx.attachments.put(it.spread.encode(), "text/plain", name=f"{it.plain}.txt")).decode()


# --- models, agents, other sessions


@path("complete")
async def _(ctx: ToolContext, it: Canary) -> object:
    return await ctx.complete(f"Is {it.spread} good?", source="test", instructions=it.spread)


@path("complete source", refused=True)
async def _(ctx: ToolContext, it: Canary) -> object:
    return await ctx.complete("Is it good?", source=f"account-{it.plain}")


@path("agent")
async def _(ctx: ToolContext, it: Canary) -> object:
    return await ctx.agent("other").ask(f"use {it.spread}", name="help")


@path("sessions.start_turn")
async def _(ctx: ToolContext, it: Canary) -> object:
    started = await ctx.sessions.start_turn("o", f"k{next(_ids)}", f"use {it.spread}")
    return await ctx.sessions.turn_result(started, 20)


@path("sessions.start_turn key", refused=True)
async def _(ctx: ToolContext, it: Canary) -> object:
    return (await ctx.sessions.start_turn("o", it.plain, "text")).turn_id


@path("sessions.create_session", refused=True)
async def _(ctx: ToolContext, it: Canary) -> object:
    return await ctx.sessions.create_session(f"ses-{it.plain}", agent="other")


@path("sessions.create")
async def _(ctx: ToolContext, it: Canary) -> object:
    return (await ctx.sessions.create("other", title=f"about {it.plain}")).title


@path("sessions.get")
async def _(ctx: ToolContext, it: Canary) -> object:
    other = ctx.sessions.get("o")
    await other.files.write_file("/theirs.txt", it.spread)
    return (await other.set_title(it.plain)).title


@path("tools.call", "tools.batch")
async def _(ctx: ToolContext, it: Canary) -> object:
    one = await ctx.tools.call("echo", {"text": it.spread}, step=f"s{next(_ids)}")
    more = await ctx.tools.batch([("echo", {"text": it.spread}), ("echo", {"text": it.value})])
    return [repr(one), repr(more)]


# --- background work


@path("start_command", refused=True)
async def _(ctx: ToolContext, it: Canary) -> object:
    return (await ctx.start_command([SH, "-c", "true", it.plain])).id


@path("start_command environment", refused=True)
async def _(ctx: ToolContext, it: Canary) -> object:
    return (await ctx.start_command([SH, "-c", "true"], env={"TOKEN": it.value})).id


@path("start_command output")
async def _(ctx: ToolContext, it: Canary) -> object:
    source = cast("Deps", ctx.deps).folder / f"{it.mark[-3:]}.txt"
    source.write_text(it.spread)
    says = "import sys; sys.stdout.write('x' * (16384 - 5) + open(sys.argv[1]).read())"
    return (await ctx.start_command([sys.executable, "-c", says, str(source)], label=f"with {it.plain}")).id


@path("processes.start", "processes.signal", "processes.cancel")
async def _(ctx: ToolContext, it: Canary) -> object:
    handle = await ctx.processes.start(keeps, it.spread, label=it.plain, wake_on_end=True)
    await ctx.processes.signal(handle, "go", {"text": it.spread})
    second = await ctx.processes.start(keeps, it.spread)
    await ctx.processes.cancel(second, it.spread)
    return 1


@path("processes.start id", refused=True)
async def _(ctx: ToolContext, it: Canary) -> object:
    return await ctx.processes.start(keeps, "text", id=it.plain)


@path("schedules.create_schedule")
async def _(ctx: ToolContext, it: Canary) -> object:
    soon = datetime(2036, 1, 1, tzinfo=UTC)
    made = await ctx.schedules.create_schedule(ctx.session_id, f"remember {it.spread}", scheduled_at=soon)
    return made.description


@path("tasks.create", "tasks.update", "tasks.send_message")
async def _(ctx: ToolContext, it: Canary) -> object:
    new = CreateSessionTask(
        session_id=ctx.session_id, kind="monitor", display_name=f"with {it.plain}", spec={"text": it.spread}
    )
    made = await ctx.tasks.create(new)
    await ctx.tasks.update(ctx.session_id, made.id, SessionTaskUpdate(state_detail=it.spread, summary=it.spread))
    message = NewTaskMessage(direction="inbound", content=[{"type": "text", "text": it.spread}])
    await ctx.tasks.send_message(ctx.session_id, made.id, message)
    return made.display_name


@path("tasks.create kind", refused=True)
async def _(ctx: ToolContext, it: Canary) -> object:
    new = CreateSessionTask(session_id=ctx.session_id, kind=f"kind-{it.plain}", display_name="a task")
    return (await ctx.tasks.create(new)).id


@path("triggers.emit", "triggers.subscribe")
async def _(ctx: ToolContext, it: Canary) -> object:
    await ctx.triggers.subscribe("mail.received", keeps, key=f"k{next(_ids)}", source="box", args=(it.spread,))
    return (await ctx.triggers.emit("mail.received", {"text": it.spread}, source="box")).occurrence_id


@path("triggers.emit key", refused=True)
async def _(ctx: ToolContext, it: Canary) -> object:
    return (await ctx.triggers.emit("mail.received", {}, key=it.plain, source="box")).occurrence_id


# --- the table is complete

PLAIN = {
    "agent": "a path", "args": "arguments", "attempt": "a number", "deps": "of the application",
    "idempotency_key": "derived", "locale": "of the agent", "max_attempts": "a number", "readable_key": "derived",
    "tenant": "a name", "session_id": "a name", "turn_id": "a name", "call_id": "a name", "tool_name": "a name",
    "turn_index": "a number", "protocol_iteration": "a number", "cancellation": "no text", "secrets": "the source",
    "completion_key": "signed", "pending": "takes no text", "event_key": "a name, as of a step",
    "now": "a name, as of a step", "random": "a name, as of a step", "uuid": "a name, as of a step",
    "step_key": "derived", "plugin_input": "of the sender", "services": "what the clients use",
    "messages": "reads", "emit": "within a background run, whose events are those of processes",
    "sessions.close_session": "names only", "sessions.model": "a handle that reads",
    "sessions.set_tool_membership": "names of tools only", "sessions.shared_tool_catalog": "reads",
    "sessions.hand_over": "ends the conversation; its reason is content like that of a cancel",
    "sessions.snapshot": "reads", "sessions.snapshot_current": "reads", "sessions.tool_catalog": "reads",
    "sessions.turn_result": "reads", "attachments.get": "reads", "files.delete_file": "names of files that exist",
    "files.grep_files": "reads", "files.list_directory": "reads", "files.read_file": "reads",
    "files.stat_file": "reads",
    "processes.await_process": "reads", "processes.cancel_all": "as processes.cancel",
    "processes.cancel_unreferenced_handles": "handles only", "processes.complete_external": "processes of the host",
    "processes.list_all_handles": "reads", "processes.list_handles": "reads", "processes.release_session": "names only",
    "processes.list_handles_filtered": "reads", "processes.transfer_handles": "handles only",
    "processes.transfer_handles_to_frame": "handles only", "processes.validate_handles": "reads",
    "processes.registration_originator": "reads", "schedules.cancel_schedule": "names only",
    "schedules.count_active_schedules": "reads", "schedules.list_schedules": "reads", "tasks.get": "reads",
    "tasks.list": "reads", "tasks.messages": "reads", "tasks.cancel": "names only",
    "tools.visible": "reads",
}  # fmt: skip
"""What needs no path, with the reason: it takes no text, or only names of things that exist."""


def surface(ctx: ToolContext) -> set[str]:
    """Everything that a tool can call: methods of the context, and methods of its clients."""
    found: set[str] = set()
    for name in dir(type(ctx)):
        if name.startswith("_") or name == "deps":
            continue
        if inspect.isfunction(inspect.getattr_static(type(ctx), name)):
            found.add(name)
            continue
        client = getattr(ctx, name)
        methods = inspect.getmembers(cast("type[object]", type(client)), inspect.isfunction)
        public = {f"{name}.{method}" for method, _ in methods if not method.startswith("_")}
        found |= public if type(client).__module__.startswith("perdure") and public else {name}
    return found


# --- the scenario


@dataclass(frozen=True)
class Place:
    """A kind of store, and how its bytes are found."""

    store: Store
    url: str
    folder: Path
    dump: Callable[[], Awaitable[bytes]]


@dataclass
class Deps:
    """The dependencies of the tools: a folder that is not part of the store."""

    folder: Path


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    folder = tmp_path / "store"
    folder.mkdir()
    if request.param == "sqlite":

        async def nothing_more() -> bytes:
            return b""

        return Place(SqliteStore(folder / "s.db", SystemClock()), f"sqlite:///{folder}/s.db", folder, nothing_more)
    url: str = request.getfixturevalue("postgres_url")
    server: Server = request.getfixturevalue("postgres")
    return Place(PostgresStore(url, SystemClock()), url, folder, lambda: dumped(server, url))


async def dumped(server: Server, url: str) -> bytes:
    """Return every column of every table of a schema, and the write-ahead log of the server."""
    [schema] = parse_qs(urlsplit(url).query)["schema"]
    connection = await dial(server.url(), settings={}, cached=0, connect_s=10, command_s=30)
    try:
        tables = await connection.fetch("SELECT tablename::text FROM pg_tables WHERE schemaname = $1", schema)
        assert len(tables) > 10
        rows = [await connection.fetch(f'SELECT t::text FROM {schema}."{name}" t') for (name,) in tables]
        await connection.fetch("SELECT pg_switch_wal()")
    finally:
        await connection.close()
    logs = [file.read_bytes() for file in (server.folder / "data" / "pg_wal").iterdir() if file.is_file()]
    return b"\n".join([*(str(row[0]).encode() for table in rows for row in table), *logs])


class Recorded:
    """A scripted model that keeps each request as bytes."""

    name = "recorded"

    def __init__(self, script: ScriptedModel, prompts: list[bytes]) -> None:
        self._script = script
        self._prompts = prompts

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self._prompts.append(b"\n".join([encode(request.messages), request.instructions.encode()]))
        self._prompts.extend(request.attachments.values())
        async for event in self._script.stream(request):
            yield event


class Scenario:
    """One session that says its secrets by every path, and all that can be observed of it."""

    def __init__(self, place: Place, deps: Deps) -> None:
        self.canaries = {name: Canary() for name in (*PATHS, "host", "model")}
        self.place = place
        self.deps = deps
        self.prompts: list[bytes] = []
        self.events: list[str] = []
        self.ended: dict[str, str] = {}
        self.surface: set[str] = set()

    async def run(self) -> list[bytes]:
        """Run all paths, and return what the API shows afterwards."""
        turns = {name: [call("leak", path=name), say("done")] for name in PATHS}
        own = Recorded(ScriptedModel.by_input(turns, default=[say("noted")]), self.prompts)
        others = Recorded(ScriptedModel.by_input({}, default=[say("noted")]), self.prompts)
        agents = [
            Agent("a", model=own, tools=[self._leaking(), echo]),  # pyright: ignore[reportArgumentType] - a model of its own
            Agent("other", model=others),
        ]
        options = RuntimeOptions(commands_in=self.place.folder / "commands")
        async with Runtime(self.place.store, agents=agents, processes=[keeps], deps=self.deps, options=options) as rt:
            rt.triggers.declare("mail.received")
            await (await rt.session("o", agent="other")).ask("hello", timeout=20)
            session = await rt.session("s", agent="a")
            await session.ask("hello", timeout=20)
            watching = asyncio.create_task(self._watch(session.events()))
            await self._register(rt)
            for name in PATHS:
                await session.ask(name, timeout=30)
            await self._as_host(rt)
            await until(lambda: at_rest(rt), seconds=30)
            shown = [line async for line in lines_of(rt)]
            watching.cancel()
        return shown

    def _leaking(self) -> object:
        @tool(effect="resumable")
        async def leak(ctx: ToolContext, path: str) -> object:
            """Say a secret by one path."""
            it = self.canaries[path]
            self.surface |= surface(ctx)
            try:
                given = await PATHS[path](ctx, it)
            except Exception as problem:
                self.ended[path] = f"{type(problem).__name__}"
                raise
            self.ended[path] = "hidden"
            return given

        return leak

    async def _register(self, rt: Runtime) -> None:
        core, stream = core_of(rt), ref_of(rt.get_session("s")).stream
        vault = StoredSecrets(core.store, core.secrets, stream, Redactor(core.seen_secrets, stream), core.audit_log)
        for name, it in self.canaries.items():
            await vault.put("call", name, it.value)
            await vault.put("call", f"{name}, plain", it.plain)

    async def _as_host(self, rt: Runtime) -> None:
        """What a host does in the session with text that contains a secret."""
        it, session = self.canaries["host"], rt.get_session("s")
        await session.ask(f"my key is {it.spread}", timeout=20)
        await session.set_title(f"about {it.plain}")
        await session.set_tags([f"tag-{it.plain}"])
        await session.files.write_file("/of the host.txt", it.spread)
        await session.pause(reason=it.spread)
        sent = await session.send(f"later {it.spread}", key="later")
        assert (await session.send(f"later {it.spread}", key="later")).is_duplicate
        await session.cancel_input(sent.input_id, reason=it.spread)
        await session.resume()

    async def _watch(self, events: AsyncIterator[object]) -> None:
        with suppress(Error):  # the runtime was closed
            async for event in events:
                self.events.append(f"{event!r} {event}")


async def at_rest(rt: Runtime) -> bool:
    live = await rt.processes.list()
    idle = [(await rt.get_session(name).why()).status == "idle" for name in ("s", "o")]
    return all(idle) and all(one.registration.definition in ("python:keeps", "external") for one in live)


def printed(url: str) -> list[bytes]:
    """Return what the command line prints about the sessions."""
    asked = [("journal", "show"), ("why",), ("sessions", "show"), ("usage",)]
    ran = [in_this_process(*words, name, "--db", url) for words in asked for name in ("s", "o")]
    assert [one.code for one in ran] == [0] * len(ran), [one.err for one in ran]
    return [one.out.encode() for one in ran]


async def lines_of(rt: Runtime) -> AsyncIterator[bytes]:
    for name in ("s", "o"):
        session = rt.get_session(name)
        yield encode(await session.export())
        yield repr(await session.messages()).encode()
        yield repr(await session.why()).encode()
        for row in await session.journal():
            yield row.data


@tool
async def echo(text: str) -> str:
    """Return the text."""
    return f"<{text}>"


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_t_sec_01_t_tool_08_secret_leaves_by_no_path(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    scenario = Scenario(place, Deps(outside))
    logged = io.StringIO()
    handler = logging.StreamHandler(logged)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with caplog.at_level(logging.DEBUG):
            shown = await scenario.run()
    finally:
        root.removeHandler(handler)
    stored = [file.read_bytes() for file in place.folder.rglob("*") if file.is_file()]
    names = [str(file).encode() for file in place.folder.rglob("*")]
    found = {
        "the store": [*stored, *names, await place.dump()],
        "the prompts": scenario.prompts,
        "the events": [event.encode() for event in scenario.events],
        "the log records": [logged.getvalue().encode()],
        "the API": shown,
        "the command line": await asyncio.to_thread(printed, place.url),
    }
    leaks = [
        f"{name} is in {where}"
        for where, texts in found.items()
        for name, it in scenario.canaries.items()
        if any(trace in text for text in texts for trace in it.traces)
    ]
    assert leaks == []
    assert {name for name, end in scenario.ended.items() if end != "hidden"} == REFUSED, scenario.ended
    assert scenario.ended.keys() == PATHS.keys()
    everything = b"".join([*found["the prompts"], *found["the API"]])
    assert everything.count(b"[secret]") > 100
    named = {name.partition(" ")[0] for name in PATHS} | PLAIN.keys()
    missing = {one for one in scenario.surface if not {one, one.partition(".")[0]} & named}
    assert missing == set(), "each client of a tool needs a path in this file, or a reason in PLAIN"
