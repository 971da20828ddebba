"""Calls that a tool makes of other tools. What such a call may be depends on whether it can be recorded.

The body of an ordinary tool is one attempt: nothing inside it is recorded by itself. A `pure` call may run there, since
running it again does no harm. What must not run twice may not.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from perdure.codec import to_json
from perdure.effects import keys
from perdure.effects.controller import InlineController, Local
from perdure.errors import Error
from perdure.ids import CallId
from perdure.runtime.clients import CallSite
from perdure.tools.batch import collected, run_batch
from perdure.tools.catalog import ActiveCatalog
from perdure.tools.clients.dispatch import MAX_BATCH_CALLS, ChildCall, ChildResult
from perdure.tools.context import CancelToken, ToolContext
from perdure.tools.execute import ToolThreads, run_to_end
from perdure.tools.prepare import Preparation, ToolPrepareContext, answered, judge, refused
from perdure.tools.provider import ProvidedTool
from perdure.tools.toolbox import Prepared, Toolbox
from perdure.vocab.effects import (
    BatchedCall,
    CallTools,
    EffectKind,
    Envelope,
    Invocation,
    PreparedToolBatch,
    PreparedToolCall,
    Scope,
)
from perdure.vocab.messages import ToolCall
from perdure.vocab.outcomes import Failed, Failure, Outcome, ToolOutput, into_tool_batch
from perdure.vocab.tools import ToolManifest


@dataclass(frozen=True, slots=True)
class _Child:
    """A child call that may run."""

    call: PreparedToolCall
    prepared: Prepared


class DispatchClient:
    """`ctx.dispatch` of one call. Its children have the other clients of their parent, and no children of their own."""

    def __init__(self, parent: ToolContext[object], site: CallSite, toolbox: Toolbox, threads: ToolThreads) -> None:
        self._parent = parent
        self._site = site
        self._toolbox = toolbox
        self._threads = threads
        self._catalog = ActiveCatalog(site.turn.composition)

    def callable_tool_manifest(self, name: str) -> ToolManifest | None:
        """The manifest of a tool this turn may call."""
        return self._catalog.callable_tool_manifest(name)

    def callable_tool_manifest_by_id(self, tool_id: str) -> ToolManifest | None:
        """The same, by the tool's id."""
        return self._catalog.callable_tool_manifest_by_id(tool_id)

    async def batch(self, calls: Sequence[ChildCall]) -> tuple[ChildResult, ...]:
        """Run other tools and answer in the order of the calls."""
        self._site.check_running()
        named = [replace(call, call_id=call.call_id or str(index)) for index, call in enumerate(calls)]
        if len(named) > MAX_BATCH_CALLS:
            because = f"a batch has at most {MAX_BATCH_CALLS} calls, and this one has {len(named)}; none was run"
            return tuple(_answered(call, _failure("tool_batch_too_large", because)) for call in named)
        prepared = [await self._prepare(call) for call in named]
        ready = tuple(one for one in prepared if isinstance(one, _Child))
        outputs = iter(await self._run(ready) if ready else ())
        return tuple(
            _answered(call, next(outputs) if isinstance(one, _Child) else one)
            for call, one in zip(named, prepared, strict=True)
        )

    # --- before

    async def _prepare(self, child: ChildCall) -> _Child | ToolOutput:
        """A child that may run, or its answer."""
        try:
            args = to_json(child.args, where="args")
        except Error as problem:
            return _failure("invalid_tool_args", problem.message)
        toolbox = self._toolbox
        asked = ToolCall(id=CallId(child.call_id), name=child.name, args=args)
        contract = self._site.turn.composition.tool(child.name)
        bound = toolbox.prepare(asked, contract)
        if isinstance(bound, Failure):
            return Failed(failure=bound)
        if bound.durability.effect != "pure":
            return _not_recorded(child.name, bound.durability.effect)
        call = PreparedToolCall(call_id=asked.id, tool_id=bound.contract.tool_id, tool_name=child.name, args=args)
        if not isinstance(bound.tool, ProvidedTool) or not bound.tool.prepares:
            return _Child(call, bound)
        sealed = await self._ask_hook(bound.tool, call)
        if not isinstance(sealed, PreparedToolCall):
            return sealed
        again = toolbox.prepare(asked, contract, sealed)
        return Failed(failure=again) if isinstance(again, Failure) else _Child(sealed, again)

    async def _ask_hook(self, tool: ProvidedTool, call: PreparedToolCall) -> Preparation:
        parent = self._parent
        ctx = ToolPrepareContext(
            session_id=parent.session_id,
            call_id=call.call_id,
            turn_context=parent.turn_context,
            given=parent.given,
            sessions=parent.clients.sessions,
        )
        try:
            answer: object = tool.prepare(ctx, call)
        except Exception as problem:  # noqa: BLE001 - other people's code; it becomes the call's failure
            return refused(call, problem)
        if inspect.isawaitable(answer):
            return await answered(call, cast("Awaitable[object]", answer))
        return judge(call, answer)

    # --- running

    async def _run(self, children: tuple[_Child, ...]) -> tuple[ToolOutput, ...]:
        batch = PreparedToolBatch.of(tuple(child.call for child in children))
        invocation = self._invocation(batch)
        known = {one.replay_suffix: child for one, child in zip(batch.calls, children, strict=True)}

        async def one(call: BatchedCall, token: CancelToken) -> ToolOutput:
            child = known[call.replay_suffix]
            ctx = self._context(call, child, invocation, token)
            return await run_to_end(child.prepared, ctx, threads=self._threads)

        async def run(_: Envelope) -> Outcome:
            cancellation = self._site.cancellation
            return await run_batch(batch, one, is_serial=self._catalog.is_serial, cancellation=cancellation)

        envelope = Envelope(invocation=invocation, command=CallTools(batch=batch))
        outcome = await InlineController().execute(envelope, Local(EffectKind.TOOL_BATCH, run))
        return collected(batch, into_tool_batch(outcome).launches)

    def _invocation(self, batch: PreparedToolBatch) -> Invocation:
        parent, turn = self._parent, self._site.turn
        scope = Scope(
            session_id=parent.session_id, turn_id=turn.id, turn_index=turn.index, protocol_iteration=turn.iteration
        )
        key = f"{keys.turn_effect(parent.tenant, scope, EffectKind.TOOL_BATCH, parent.call_id)}:{batch.batch_id}"
        return Invocation.effect(scope, f"{self._site.effect}.batch", EffectKind.TOOL_BATCH, key)

    def _context(self, call: BatchedCall, child: _Child, batch: Invocation, token: CancelToken) -> ToolContext[object]:
        parent, name = self._parent, call.call.tool_name
        own = CallId(f"{parent.call_id}:{call.replay_suffix}")
        return replace(
            parent,
            call_id=own,
            tool_name=name,
            attempt=1,
            max_attempts=1,
            idempotency_key=keys.tool_idempotency(parent.tenant, parent.session_id, own, name),
            args=call.call.args,
            cancellation=token,
            prepared_payload=child.call.prepared_payload,
            parent_call_id=parent.call_id,
            parent_invocation=batch,
            clients=replace(parent.clients, dispatch=None),
        )


def _answered(call: ChildCall, output: ToolOutput) -> ChildResult:
    return ChildResult(call.call_id, call.name, output)


def _failure(code: str, message: str) -> Failed:
    return Failed(failure=Failure(code=code, message=message, failure_class="invalid"))


def _not_recorded(name: str, effect: str) -> Failed:
    return _failure(
        "nested_effect_not_recorded",
        f"{name} is {effect}: inside the body of another tool nothing would record that it ran, so it was not run. "
        "Only pure tools can be called here.",
    )
