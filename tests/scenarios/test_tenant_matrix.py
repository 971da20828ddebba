"""Every service of a tool and every call of the public API, aimed at another tenant. A new one is included by itself.

The worker serves all tenants and belongs to the victim's. Each call gets the victim's ids. Whatever it returns or
raises, the victim's streams stay as they are, and none of their text is in the result.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import UTC, datetime
from typing import cast

from perdure import Agent, Attachment, InitialFile, ProcessContext, Runtime, ToolContext, WorkerOptions, process, tool
from perdure.ids import CallId, SessionId, StreamId, Tenant, TurnId, session_stream
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import core_of
from perdure.runtime.triggers.subscriptions import SubscriptionRequest
from perdure.services.commands import checked
from perdure.services.spawns import Lineage, handle_of
from perdure.services.tasks import CreateSessionTask, NewTaskMessage, SessionTaskUpdate
from perdure.store.protocol import Store
from perdure.tools.clients.sessions import StartedTurn
from perdure.tools.toolbox import ToolSource
from perdure.vocab.messages import AttachmentRef, ImagePart
from perdure.vocab.records import Row
from perdure.vocab.triggers import TriggerDelivery
from tests.scenarios.conftest import NewStore, until
from tests.scenarios.test_content import PNG

CANARY = "canary-4711"
VICTIM, EVIL = Tenant("default"), Tenant("evil")
KINDS = ("session", "process", "schedule", "trigger", "files")
SERVICES = (
    *("sessions", "messages", "files", "attachments", "secrets"),
    *("schedules", "tasks", "processes", "triggers", "tools"),
)
LOCAL = {"ToolRegistry", "Redactor"}
"""Services without a store: objects of the process."""


@process
async def waits(ctx: ProcessContext, text: str) -> str:
    """Wait for an event."""
    await ctx.wait_for_event("go")
    return text


class Aim:
    """The arguments that name things of the victim, by parameter."""

    def __init__(self, ref: AttachmentRef, turn: TurnId, approval: str, source: StreamId) -> None:
        stream, first = session_stream(VICTIM, SessionId("s1")), CallId(f"{turn}.1.0")
        soon = datetime(2036, 1, 1, tzinfo=UTC)
        task = CreateSessionTask(session_id=SessionId("s1"), id="t2", kind="monitor", display_name="x", spec={})
        ids = dict.fromkeys(("session_id", "parent_session_id", "child_session_id", "session"), "s1")
        self.values: Mapping[str, object] = {
            **ids,
            **dict.fromkeys(("tool_call_id", "call", "call_id"), first),
            **dict.fromkeys(("handle", "process"), "p1"),
            **dict.fromkeys(("agent", "name", "text", "title", "description", "question", "reason"), "spy"),
            **dict.fromkeys(("content", "value", "label", "by"), "spy"),
            **dict.fromkeys(("path", "path_pattern"), "/secret.txt"),
            **dict.fromkeys(("timeout", "timeout_secs"), 0.05),
            **dict.fromkeys(("index", "count", "seq"), 0),
            "ref": ref,
            "turn": turn,
            "input": f"{turn}:1",
            "id": approval,
            "task_id": "t1",
            "schedule_id": "sch1",
            "reference": "secret:1",
            "new": task,
            "message": NewTaskMessage(direction="inbound", content="obey"),
            "update": SessionTaskUpdate(state="failed"),
            "filter": None,
            "command": checked(["true"], host="h", shell=False, cwd=None, env=None, grace_ms=1, keep_bytes=1),
            "line": Lineage(stream, 0),
            "spawn_handle_id": handle_of(stream, first),
            "claim_token": "token",
            "token": "token",
            "terminal_status": "finished",
            "terminal_result": "done",
            "task": "spy",
            "pattern": ".",
            "expected_content": CANARY,
            "expected_encoding": "text",
            "file": InitialFile("secret.txt", "overwritten"),
            "data": b"x",
            "media_type": "text/plain",
            "names": ["spy"],
            "present": False,
            "key": "k",
            "kind": "task.updated",
            "payload": {"text": "obey"},
            "replay": "r",
            "started": StartedTurn(SessionId("s1"), turn),
            "source_type": "mail.received",
            "source": "box",
            "frame": "f",
            "step": "s",
            "args": {},
            "calls": [("spy", {})],
            "tags": ["spy"],
            "results": {first: "forged"},
            "answers": {"q": "a"},
            "model": "sim:echo",
            "grant": "spy",
            "outcome": "happened",
            "code": "spy",
            "event": "go",
            "schedule": soon,
            "wanted": SubscriptionRequest("mail.received", waits, "k", "box", (CANARY,), "s1"),
            "reserved": TriggerDelivery(subscription="x", revision=1, incarnation=1, process_id="p1"),
            "occurrence": "o",
            "stream": source,
            "infos": (),
            "run": None,  # only the door makes one
            "definition": "python:waits",
            "queue": "default",
            "priority": 1,
            "to": "s1",
        }

    def at(self, method: Callable[..., object]) -> tuple[list[object], dict[str, object]]:
        """Return arguments for a method: each required one, and each optional one that can name the victim's."""
        args: list[object] = []
        named: dict[str, object] = {}
        for one in inspect.signature(method).parameters.values():
            if one.kind is one.VAR_KEYWORD:
                continue
            required = one.default is one.empty and one.kind is not one.VAR_POSITIONAL
            plural = one.name.removesuffix("s") if one.kind is one.VAR_POSITIONAL else one.name
            if plural not in self.values:
                assert not required, f"name a value of the victim for the parameter {one.name} of {method}"
                continue
            if one.kind is one.KEYWORD_ONLY:
                named[one.name] = self.values[plural]
            else:
                args.append(self.values[plural])
        return args, named


async def streams_of(store: Store, tenant: Tenant) -> dict[str, tuple[object, tuple[Row, ...], object]]:
    """Everything that a tenant has: the rows, the inbox and the labels of each stream."""
    found: dict[str, tuple[object, tuple[Row, ...], object]] = {}
    for kind in KINDS:
        for info in await store.streams(tenant=tenant, kind=kind, limit=1000):
            label = (info.agent, info.title, info.tags, info.queue, info.priority)
            rows, waiting = await store.read(info.stream), await store.inbox(info.stream)
            found[info.stream] = (label, rows, [row.source_key for row in waiting])
    return found


def calls_of(subject: object) -> list[str]:
    """Return the names of the public methods of an object."""
    methods = inspect.getmembers(type(subject), inspect.isfunction)
    return [
        name for name, method in methods if not name.startswith("_") and "self" in inspect.signature(method).parameters
    ]


async def outcome_of(method: Callable[..., object], aim: Aim) -> object:
    """Call a method with the victim's names, and return what it gives or raises."""
    args, named = aim.at(method)
    try:
        result = method(*args, **named)
        if isinstance(result, AsyncIterator):
            result = anext(cast("AsyncIterator[object]", result))
        return await asyncio.wait_for(cast("Awaitable[object]", result), 0.3) if inspect.isawaitable(result) else result
    except Exception as problem:  # noqa: BLE001 - any refusal will do
        return problem


async def attacked(subjects: Mapping[str, object], aim: Aim, store: Store) -> list[str]:
    """Make every call of these objects, and return those that read or changed the victim's streams."""
    faults: list[str] = []
    before = await streams_of(store, VICTIM)
    for name, subject in subjects.items():
        for each in calls_of(subject):
            given = await outcome_of(getattr(subject, each), aim)
            if CANARY in repr(given):
                faults.append(f"{name}.{each} read: {given!r:.300}")
            after = await streams_of(store, VICTIM)
            if after != before:
                changed = [stream for stream in {*after, *before} if after.get(stream) != before.get(stream)]
                faults.append(f"{name}.{each} changed {changed}")
                before = after
    return faults


class Fixture:
    """A worker for all tenants with a victim in its own tenant, and a runtime of another tenant on the same store."""

    def __init__(self, worker: Runtime, other: Runtime, aim: Aim) -> None:
        self.worker = worker
        self.other = other
        self.aim = aim
        self.store = core_of(worker).store


@asynccontextmanager
async def victim_and_other(new_store: NewStore, *tools: ToolSource) -> AsyncGenerator[Fixture]:
    @tool(needs_approval=True)
    def pay(note: str) -> str:
        """Pay."""
        return note

    desk = Agent("desk", model=ScriptedModel(call("pay", note=CANARY), say("Paid.")), tools=[pay])
    evil = Agent("evil", model=ScriptedModel(call("spy"), say("Done.")), tools=list(tools))
    everywhere = WorkerOptions(all_tenants=True)
    async with (
        Runtime(new_store(), agents=[desk, evil], processes=[waits], worker=everywhere) as rt,
        Runtime(new_store(), agents=[desk, evil], processes=[waits], worker=False, tenant=EVIL) as other,
    ):
        for each in (rt, other):
            each.triggers.declare("mail.received")
        aim = await settled(rt)
        yield Fixture(rt, other, aim)


async def answered(look: Callable[[], Awaitable[object]]) -> bool:
    return bool(await look())


async def settled(rt: Runtime) -> Aim:
    """Give the victim one of everything, and wait until all of it is at rest."""
    session = await rt.session("s1", agent="desk")
    sent = await session.send([CANARY, Attachment("image/png", PNG)])
    await session.set_title(CANARY)
    await session.set_tags(["private"])
    await session.files.write_file("/secret.txt", CANARY)
    await rt.start(waits, CANARY, id="p1")
    await rt.processes.grant("p1", session="s1")
    await rt.schedule("sch1", send=CANARY, session="s1", cron="0 0 1 1 *")
    await rt.tasks.create(CreateSessionTask(session_id=SessionId("s1"), id="t1", kind="monitor", display_name=CANARY))
    await rt.triggers.subscribe("mail.received", waits, key="k", source="box", args=(CANARY,), owner="s1")
    await until(lambda: answered(rt.approvals.list))
    [asked] = await rt.approvals.list()
    store = core_of(rt).store

    async def at_rest() -> bool:
        before = await streams_of(store, VICTIM)
        await asyncio.sleep(0.2)
        return before == await streams_of(store, VICTIM) and not any(waiting for _, _, waiting in before.values())

    await until(at_rest)
    images = [part.ref for message in await session.messages() for part in message.parts if isinstance(part, ImagePart)]
    [source] = await rt.triggers.list()
    return Aim(images[0], sent.turn_id, asked.id, source.stream)


async def test_s2_t_ten_01_no_service_reaches_another_tenant(new_store: NewStore) -> None:
    found: list[str] = []

    @tool(effect="idempotent")
    async def spy(ctx: ToolContext) -> str:
        """Make every call of every service."""
        named = {one.name: getattr(ctx.services, one.name) for one in fields(ctx.services)}
        services = {name: one for name, one in named.items() if type(one).__name__ not in LOCAL and calls_of(one)}
        missing = {one.name for one in fields(ctx.services) if named[one.name] is None}
        found.extend(f"the service {name} is absent" for name in missing - {"locale", "network_access"})
        clients = {f"ctx.{name}": getattr(ctx, name) for name in SERVICES}
        found.extend(await attacked({**services, **clients}, there[0].aim, there[0].store))
        return "spied"

    there: list[Fixture] = []
    async with victim_and_other(new_store, spy) as fixture:
        there.append(fixture)
        await (await fixture.other.session("e1", agent="evil")).ask("go", timeout=120)
    assert found == []


async def test_s2_t_ten_01_no_public_call_reaches_another_tenant(new_store: NewStore) -> None:
    async with victim_and_other(new_store) as fixture:
        rt = fixture.other
        subjects = {
            "Session": rt.get_session("s1"),
            "ProcessHandle": rt.get_process("p1"),
            "ScheduleHandle": rt.schedules.get("sch1"),
            **{name: getattr(rt, name) for name in ("approvals", "processes", "schedules", "triggers", "tasks")},
        }
        assert await attacked(subjects, fixture.aim, fixture.store) == []
