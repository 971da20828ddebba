"""Every service of a tool and every call of the public API, aimed at another tenant. A new one is included by itself.

The worker serves all tenants and belongs to the victim's. Each call gets the victim's ids. Whatever it returns or
raises, the victim's streams stay as they are, and none of their text is in the result.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import fields
from datetime import UTC, datetime
from typing import cast

from perdure import (
    Agent,
    Attachment,
    InitialFile,
    ProcessContext,
    Runtime,
    ToolContext,
    WorkerOptions,
    process,
    runtime,
    services,
    tool,
)
from perdure.ids import CallId, SessionId, Tenant, TurnId, session_stream
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import core_of
from perdure.runtime.triggers.subscriptions import SubscriptionRequest
from perdure.runtime.triggers.triggers import Source
from perdure.services.commands import checked
from perdure.services.spawns import Lineage, handle_of
from perdure.services.tasks import CreateSessionTask, NewTaskMessage, SessionTaskUpdate
from perdure.store.protocol import Store
from perdure.tools.clients.sessions import StartedTurn
from perdure.tools.toolbox import ToolSource
from perdure.vocab.messages import AttachmentRef, ImagePart
from perdure.vocab.promises import EventKey
from perdure.vocab.records import Row
from perdure.vocab.triggers import TriggerDelivery
from tests.scenarios.conftest import NewStore, until
from tests.scenarios.test_content import PNG

CANARY = "canary-4711"
VICTIM, EVIL = Tenant("default"), Tenant("evil")
KINDS = ("session", "process", "schedule", "trigger", "files", "audit")
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


IDS: Mapping[str, str] = {
    **dict.fromkeys(("Runtime.session", "Runtime.get_session", "Runtime.import_session"), "s1"),
    **dict.fromkeys(("Runtime.start", "Runtime.get_process", "Runtime.start_command"), "p1"),
    **dict.fromkeys(("Runtime.schedule", "Schedules.get", "Schedules.create"), "sch1"),
}
"""What the parameter `id` names, by call. Elsewhere it names the approval or the subscription of the victim."""


class Aim:
    """The arguments that name things of the victim, by parameter."""

    def __init__(self, ref: AttachmentRef, turn: TurnId, approval: str, source: Source, key: EventKey) -> None:
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
            "stream": source.stream,
            "source_type": "mail.received",
            "tenant": EVIL,  # a host may name any tenant
            "argv": ["true"],
            "send": "obey",
            "cron": "0 0 1 1 *",
            "infos": (),
            "values": ["spy"],
            "run": None,  # only the door makes one
            "definition": "python:waits",
            "queue": "default",
            "priority": 1,
            "to": "s1",
        }

        [self.subscription] = source.state.known
        self.key = key

    def value(self, method: Callable[..., object], name: str) -> object:
        """Return the victim's value for a parameter of a method."""
        where, call = method.__qualname__.rsplit(".", 1)
        match name:
            case "id" if where in ("SubscriptionHandle", "Triggers"):
                return self.subscription
            case "id":
                return IDS.get(f"{where}.{call}", self.values["id"])
            case "key" if where == "Runtime":
                return self.key
            case _:
                return self.values[name]

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
                named[one.name] = self.value(method, plural)
            else:
                args.append(self.value(method, plural))
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


async def attacked(subjects: Mapping[str, object], aim: Aim, store: Store, faults: list[str]) -> list[object]:
    """Make every call of these objects. Note those that read or changed the victim's streams; return the results."""
    results: list[object] = []
    before = await streams_of(store, VICTIM)
    for name, subject in subjects.items():
        for each in (one for one in calls_of(subject) if f"{type(subject).__name__}.{one}" not in ENDS):
            given = await outcome_of(getattr(subject, each), aim)
            results.append(given)
            if CANARY in repr(given):
                faults.append(f"{name}.{each} read: {given!r:.300}")
            after = await streams_of(store, VICTIM)
            if after != before:
                changed = [stream for stream in {*after, *before} if after.get(stream) != before.get(stream)]
                faults.append(f"{name}.{each} changed {changed}")
                before = after
    return results


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
    await session.export(by="spy", via=CANARY)
    await session.files.write_file("/secret.txt", CANARY)
    await rt.start(waits, CANARY, id="p1")
    await rt.processes.share("p1", session="s1")
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
    return Aim(images[0], sent.turn_id, asked.id, source, await sent.cancel_key())


async def test_s2_t_ten_01_no_service_reaches_another_tenant(new_store: NewStore) -> None:
    found: list[str] = []

    @tool(effect="idempotent")
    async def spy(ctx: ToolContext) -> str:
        """Make every call of every service."""
        named = {one.name: getattr(ctx.services, one.name) for one in fields(ctx.services)}
        stored = {name: one for name, one in named.items() if type(one).__name__ not in LOCAL and calls_of(one)}
        missing = {one.name for one in fields(ctx.services) if named[one.name] is None}
        found.extend(f"the service {name} is absent" for name in missing - {"locale", "network_access"})
        clients = {f"ctx.{name}": getattr(ctx, name) for name in SERVICES}
        await attacked({**stored, **clients}, there[0].aim, there[0].store, found)
        return "spied"

    there: list[Fixture] = []
    async with victim_and_other(new_store, spy) as fixture:
        there.append(fixture)
        await (await fixture.other.session("e1", agent="evil")).ask("go", timeout=120)
    assert found == []


# --- the public API: everything that can be reached from a Runtime

ENDS = {"Runtime.drain"}
"""Calls that end the runtime of the attacker."""

PLAIN = {
    "Agent": "a declaration of the application",
    "Models": "the application's, and the same for all tenants",
    "SystemClock": "a clock",
    "RedactedStore": "the store: every call names the stream with its tenant",
    "RuntimeCore": "the inside of a runtime: handles refer to it, and no document names it",
}
"""Classes with async methods that are no part of the matrix, and why."""


def is_handle(one: type) -> bool:
    """Return whether a class of ours has public async methods."""
    if not one.__module__.startswith(("perdure.runtime.", "perdure.services.")) or one.__name__ in PLAIN:
        return False
    methods = (method for name, method in inspect.getmembers(one, inspect.isfunction) if not name.startswith("_"))
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in methods)


def attributes_of(subject: object) -> list[object]:
    """Return the values of the public attributes and properties of an object."""
    names = {name for name in {*dir(type(subject)), *getattr(subject, "__dict__", {})} if not name.startswith("_")}
    found: list[object] = []
    for name in sorted(names - set(calls_of(subject))):
        with suppress(Exception):
            found.append(getattr(subject, name))
    return found


async def surface(queue: list[object], aim: Aim, store: Store) -> tuple[list[str], dict[str, type]]:
    """Make every call that can be reached from these objects. Return the faults and the reached classes."""
    faults: list[str] = []
    reached: dict[str, type] = {}
    while queue:
        subject = queue.pop(0)
        kind = type(subject).__name__
        if kind in reached:
            continue
        reached[kind] = type(subject)
        given = await attacked({kind: subject}, aim, store, faults)
        queue.extend(one for one in (*given, *attributes_of(subject)) if is_handle(type(one)))
    return faults, reached


def named_in(annotation: object, known: Mapping[str, type]) -> dict[str, type]:
    """Return the handles that the annotation of a result names."""
    words = re.findall(r"[A-Za-z_]\w*", annotation if isinstance(annotation, str) else str(annotation))
    return {word: known[word] for word in words if word in known and is_handle(known[word])}


def classes() -> dict[str, type]:
    """Return the classes of the runtime and of its services, by name."""
    found: dict[str, type] = {}
    for package in (runtime, services):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            members = inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
            found |= {name: one for name, one in members if one.__module__ == module.name}
    return found


def promised_by(reached: Mapping[str, type]) -> dict[str, type]:
    """Return the handles that the public calls and properties of these classes return, by their annotations."""
    known, found = classes(), dict[str, type]()
    for one in reached.values():
        for name, member in inspect.getmembers(one):
            read = member.fget if isinstance(member, property) else member
            if not name.startswith("_") and inspect.isfunction(read):
                found |= named_in(inspect.signature(read).return_annotation, known)
    return found


async def test_s2_t_ten_01_no_public_call_reaches_another_tenant(new_store: NewStore) -> None:
    async with victim_and_other(new_store) as fixture:
        rt = fixture.other
        own = await (await rt.session("s1", agent="evil")).send("go")  # the same ids, in the other tenant
        faults, reached = await surface([rt, own], fixture.aim, fixture.store)
        assert faults == []
        handles = {"Session", "TurnHandle", "ProcessHandle", "ScheduleHandle", "SubscriptionHandle", "SessionFiles"}
        managers = {"Approvals", "Audit", "Processes", "Schedules", "Triggers", "StoredTasks", "Files"}
        assert {"Runtime"} | handles | managers <= set(reached)
        missing = {
            name
            for name, one in promised_by(reached).items()
            if not any(one in known.__mro__ for known in reached.values())
        }
        assert missing == set(), "a handle that no call here returned: aim at it"


async def test_t_ten_01_foreign_call_is_found_by_the_matrix(new_store: NewStore) -> None:
    """A call that reads or changes the victim is a fault: the matrix can fail."""
    async with victim_and_other(new_store) as fixture:
        subjects = {
            "Audit": fixture.worker.audit,
            "Tasks": fixture.worker.tasks,
            "Session": fixture.worker.get_session("s1"),
        }
        faults: list[str] = []
        await attacked(subjects, fixture.aim, fixture.store, faults)
        assert any(fault.startswith("Audit.list read") for fault in faults)
        assert any(fault.startswith("Tasks.get read") for fault in faults)
        assert any(fault.startswith("Session.delete changed") for fault in faults)
