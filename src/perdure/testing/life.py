"""One life of an application under test: from its start to the end of its script, or to the boundary it dies at.

Simulated (`testing/simulated.py`) it is an event loop that is stopped for good; real (`testing/children.py`) it is a
child process and its end is SIGKILL. What happens in between is the same, and is here.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, cast

from perdure.errors import Code, Error
from perdure.runtime.agent import Agent
from perdure.runtime.clock import SystemClock
from perdure.runtime.runtime import Runtime
from perdure.store.memory.store import MemoryStore
from perdure.store.protocol import Store
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.crash import Boundary, Crashed, Gate, gated
from perdure.testing.world import World
from perdure.tools.context import ToolContext
from perdure.tools.decorator import AnyTool

App: TypeAlias = Callable[[Store, World], Runtime]
"""How your process starts: a runtime on this store, whose tools act on this world."""

Script: TypeAlias = Callable[[Runtime], Awaitable[object]]
"""What your callers do. It is run again after a crash, so every input it sends needs a key."""

_CONTEXT = "perdure_testing_ctx"
_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Played:
    """What is lived: an application, the script of its callers, and how long one life may take."""

    app: App
    script: Script
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Home:
    """Where one experiment happens: what its lives share, in a folder of its own."""

    folder: Path
    memory: MemoryStore | None = None

    @staticmethod
    def at(folder: Path, *, in_memory: bool) -> Home:
        """A new one."""
        folder.mkdir(parents=True)
        return Home(folder, MemoryStore(SystemClock()) if in_memory else None)

    def store(self) -> Store:
        """A way to the data, as a new process has it."""
        return self.memory or SqliteStore(self.folder / "store.db", SystemClock())

    def world(self, gate: Gate | None = None) -> World:
        """The outside."""
        return World(self.folder / "world.jsonl", fsync=False, gate=gate)  # a kill takes nothing from the page cache

    @property
    def calls(self) -> World:
        """Every tool body that was begun, by our own account."""
        return World(self.folder / "calls.jsonl", fsync=False)

    @property
    def trace(self) -> Path:
        """The boundaries that were passed, one per line; one file, for a life each."""
        return self.folder / "trace"

    @property
    def failure(self) -> Path:
        """Why a child process failed."""
        return self.folder / "failure"

    @property
    def tenant(self) -> str:
        """Whose sessions these are."""
        return (self.folder / "tenant").read_text()


@dataclass(frozen=True, slots=True)
class Lived:
    """How a life went: the boundaries it passed, whether it died at one, or why it failed by itself."""

    passed: tuple[Boundary, ...]
    died: bool = False
    failure: str = ""
    unwind: Callable[[], None] = lambda: None
    """Clears up what is left of a simulated process, once nobody can be misled by that any more."""


async def live(played: Played, home: Home, gate: Gate, store: Store) -> None:
    """Start the application, run the script, let everything settle, end in order. Whatever fails is raised."""
    runtime = played.app(gated(store, gate), home.world(gate))
    _check(runtime, gate)
    (home.folder / "tenant").write_text(runtime.tenant)
    for name, agent in runtime.agents.items():
        runtime.agents[name] = _hooked_agent(agent, gate, home.calls)
    async with runtime:
        async with asyncio.timeout(played.timeout_s):
            await played.script(runtime)
            await _settled(runtime)
        gate.look_away()


def _check(runtime: object, gate: Gate) -> None:
    if not isinstance(runtime, Runtime):
        raise Error(
            Code.INVALID_ARGUMENT,
            f"the app made a {type(runtime).__name__}, not a Runtime",
            hint="def app(store, world): return Runtime(store, agents=[...])",
        )
    if getattr(runtime.store, "_gate", None) is not gate:
        raise Error(
            Code.INVALID_ARGUMENT,
            "the app opened a store of its own",
            because="only the store it is given can be crashed",
            hint="def app(store, world): return Runtime(store, agents=[...])",
        )


async def _settled(runtime: Runtime) -> None:
    """Until no session has anything left to do."""
    while any(  # noqa: ASYNC110 - only the store knows
        one.active or one.waiting_inputs for one in await runtime.sessions(limit=10_000)
    ):
        await asyncio.sleep(_POLL_S)


def _hooked_agent(agent: Agent, gate: Gate, calls: World) -> Agent:
    return replace(agent, tools=[_hooked(tool, gate, calls) for tool in agent.toolbox])


def _hooked(tool: AnyTool, gate: Gate, calls: World) -> AnyTool:
    """The same tool, with a boundary on each side of its body. Its contract stays what it was."""
    own = tool.arguments.context

    def enter(arguments: dict[str, object]) -> Boundary:
        boundary = gate.before("tool", tool.name)
        ctx = cast("ToolContext", arguments[own] if own else arguments.pop(_CONTEXT))
        calls.note(tool.name, key=ctx.idempotency_key, attempt=ctx.attempt, effect=tool.durability.effect)
        return boundary

    def body(**arguments: object) -> object:
        boundary = enter(arguments)
        try:
            return tool.function(**arguments)
        finally:
            gate.after(boundary)

    async def async_body(**arguments: object) -> object:
        try:
            boundary = enter(arguments)
            try:
                return await cast("Awaitable[object]", tool.function(**arguments))
            finally:
                gate.after(boundary)
        except Crashed:
            await gate.forever()

    hooked = copy.copy(tool)
    hooked.__dict__["contract"] = tool.contract
    hooked.__dict__["arguments"] = tool.arguments if own else replace(tool.arguments, context=_CONTEXT)
    hooked.function = async_body if tool.is_async else body
    return hooked
