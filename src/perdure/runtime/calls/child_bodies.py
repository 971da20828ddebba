"""Calls of resumable tools made by a body: each runs in an inner body.

Laws: the same as for calls of the model. The parts of an inner body belong to it: `c1.0~call:3/step:render` is a step
of the third call of the program `c1.0`. An inner body waits and parks together with the outer one. After re-entry, only
unfinished work runs. A waiting inner body holds no permit, because other calls may have to run before it can continue.
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
from perdure.runtime.calls.failure_context import LEFT_BEHIND, with_steps
from perdure.runtime.work import Limits
from perdure.runtime.worker.permits import Permits, PermitWaiter
from perdure.tools.body import Body
from perdure.tools.body_scope import inner_place
from perdure.tools.context import ToolContext, origin_of
from perdure.tools.errors import OutcomeUnknown, ToolError
from perdure.tools.origin import Clients
from perdure.tools.subagents import Spawner
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.outcomes import InDoubt, ToolOutput

Enter = Callable[[ToolContext[object], int | None], Awaitable[ToolOutput]]
"""Runs the function of a tool to its end, with this context and this many milliseconds left."""


@dataclass(frozen=True, slots=True)
class InnerCall:
    """A call of a resumable tool.

    `step` names the call and `run` the step of its current attempt. The start consumes the approval with `use`.
    """

    ctx: ToolContext[object]
    call: PreparedToolCall
    step: str
    run: str
    timeout_ms: int | None
    use: Callable[[], None] | None


@dataclass(frozen=True, slots=True)
class ChildBodies:
    """The inner bodies of one body, run by the steps of a call at `site`."""

    around: Body
    site: CallSite
    clients: Callable[[CallSite], Clients]
    permit: LentPermit

    async def run(self, child: InnerCall, enter: Enter) -> None:
        """Run the body of a child, unless it has ended."""
        ctx, call = child.ctx, child.call
        inner = self._body(ctx, child.step)
        inner.permit, inner.life.on_rest = self.permit, self.permit.give_back
        clients = self.clients(self.site.inside(ctx.call_id, inner.place))
        origin = replace(origin_of(ctx), body=inner, clients=replace(clients, programs=None))
        ctx = replace(ctx, _call=origin)

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
        """Settle the steps that an ended inner body left behind. Return its output; a failure then names the steps."""
        controller, body = inner.controller, inner.place.body
        controller.doubt_unsettled_steps(LEFT_BEHIND, body=body)
        return with_steps(output, controller.journal.steps(body))


class LentPermit:
    """The permit of an inner body: acquired before the body runs, released while it only waits."""

    def __init__(self, permits: Permits, stream: StreamId, part: EffectId, limits: Limits) -> None:
        self._permits = permits
        self._stream = stream
        self._part = part
        self._limits = limits
        self._wanted: PermitWaiter | None = None
        self._news = asyncio.Event()

    async def have(self) -> None:
        """Acquire the permit, waiting for it if necessary."""
        if not self._limits:
            return
        if self._wanted is None:
            self._wanted = self._permits.want(self._stream, self._part, self._limits, self._news.set)
        wanted = self._wanted
        while not wanted.granted:  # a draining worker cancels its calls in the end
            self._news.clear()
            await self._news.wait()

    def give_back(self) -> None:
        """Release the permit."""
        if self._wanted is not None:
            self._permits.give_back(self._wanted)
            self._wanted = None


def refuse_calls(ctx: ToolContext[object]) -> None:
    """Refuse calls of other tools from an inner body.

    Raises:
        ToolError: `nested_too_deep`.
    """
    body = origin_of(ctx).body
    if body is not None and body.place.inner:
        message = (
            f"{ctx.tool_name} was called by another tool or a program, and calls no other tools from there; nothing "
            "was run. Make those calls where it was called from, or have the model call it."
        )
        raise ToolError(message, code="nested_too_deep")
