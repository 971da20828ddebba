"""Calls that a body makes of resumable tools: each runs a body of its own, inside the one that calls.

Laws: the same as for calls of the model. What it records of itself belongs to it: `c1.0~call:3/step:render` is a step
of the third call of the program `c1.0`. It waits with the body around it and is parked with it; entered again, it runs
only what it had not finished. While it waits it holds no permit: others may have to go first for it to go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import cast

import msgspec

from perdure.codec import Json
from perdure.ids import EffectId, StreamId
from perdure.runtime.calls.clients import CallSite
from perdure.runtime.calls.honesty import LEFT_BEHIND, with_steps
from perdure.runtime.work import Limits
from perdure.runtime.worker.permits import Permits, Wanted
from perdure.tools.body import Body
from perdure.tools.clients.surface import Clients
from perdure.tools.context import ToolContext
from perdure.tools.errors import OutcomeUnknown, ToolError
from perdure.tools.places import inner_place
from perdure.tools.subagents import Spawner
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.outcomes import InDoubt, ToolOutput

Enter = Callable[[ToolContext[object], int | None], Awaitable[ToolOutput]]
"""Runs the function of a tool to its end, with this context, within so many milliseconds."""


@dataclass(frozen=True, slots=True)
class InnerCall:
    """A call of a resumable tool: its context, what was called, the name of its step and that of the step that runs it
    this time, how long it may take, and what its start uses up."""

    ctx: ToolContext[object]
    call: PreparedToolCall
    step: str
    run: str
    timeout_ms: int | None
    use: Callable[[], None] | None


@dataclass(frozen=True, slots=True)
class ChildBodies:
    """The bodies that are run inside another one, by the steps of a call at `site`."""

    around: Body
    site: CallSite
    clients: Callable[[CallSite], Clients]
    permit: LentPermit

    async def run(self, child: InnerCall, enter: Enter) -> None:
        """Run the body of a child, unless that has ended."""
        ctx, call = child.ctx, child.call
        inner = self._body(ctx, child.step)
        inner.permit, inner.life.on_rest = self.permit, self.permit.give_back
        clients = self.clients(self.site.inside(ctx.call_id, inner.place))
        ctx = replace(ctx, body=inner, clients=replace(clients, programs=None))

        async def body(left_ms: int | None) -> Json:
            output = self._ended(inner, await enter(ctx, left_ms))
            if isinstance(output, InDoubt):
                raise OutcomeUnknown(output.message)
            return msgspec.to_builtins(output)

        try:
            await self.permit.have()
            given: Json = {"tool": call.tool_id, "args": call.args}
            await self.around.run_inner(child.run, given, body, timeout_ms=child.timeout_ms, leave=child.use)
        finally:
            inner.life.close()
            self.permit.give_back()

    def _body(self, ctx: ToolContext[object], step: str) -> Body:
        around = self.around
        inner = around.inner(inner_place(around.place, ctx.session_id, step, ctx.call_id, ctx.tool_name))
        if around.spawner is not None:
            inner.spawner = cast("Spawner", around.spawner).of_call(ctx.call_id)
        return inner

    def _ended(self, inner: Body, output: ToolOutput) -> ToolOutput:
        """Its function is over: a step that it went on without is nobody's any more, and a failure says so."""
        controller, body = inner.controller, inner.place.body
        controller.doubt_unsettled_steps(LEFT_BEHIND, body=body)
        return with_steps(output, controller.journal.steps(body))


class LentPermit:
    """The permit of a body inside another: had before it does something, given back while it only waits."""

    def __init__(self, permits: Permits, stream: StreamId, part: EffectId, limits: Limits) -> None:
        self._permits = permits
        self._stream = stream
        self._part = part
        self._limits = limits
        self._wanted: Wanted | None = None
        self._news = asyncio.Event()

    async def have(self) -> None:
        """Have it, at once or when its turn comes."""
        if not self._limits:
            return
        if self._wanted is None:
            self._wanted = self._permits.want(self._stream, self._part, self._limits, self._news.set)
        wanted = self._wanted
        while not wanted.granted:  # a worker that leaves cancels its calls in the end
            self._news.clear()
            await self._news.wait()

    def give_back(self) -> None:
        """It is not needed now."""
        if self._wanted is not None:
            self._permits.give_back(self._wanted)
            self._wanted = None


def refuse_calls(ctx: ToolContext[object]) -> None:
    """A body inside another one makes no calls of other tools.

    Raises:
        ToolError: `nested_too_deep`.
    """
    if ctx.body is not None and ctx.body.place.inner:
        message = (
            f"{ctx.tool_name} was called by another tool or a program, and calls no other tools from there; nothing "
            "was run. Make those calls where it was called from, or have the model call it."
        )
        raise ToolError(message, code="nested_too_deep")
