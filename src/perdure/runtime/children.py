"""Calls that a tool makes of other tools. What such a call may be depends on whether it can be recorded.

The body of an ordinary tool is one attempt: nothing inside it is recorded by itself. A `pure` call may run there, since
running it again does no harm. What must not run twice may not.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from perdure.codec import digest, to_json
from perdure.effects import keys
from perdure.effects.controller import InlineController, Local
from perdure.errors import Error
from perdure.ids import CallId, SessionId, StreamId, Tenant, stream_names
from perdure.runtime.clients import CallSite
from perdure.tools.batch import collected, run_batch
from perdure.tools.catalog import ActiveCatalog
from perdure.tools.clients.dispatch import MAX_BATCH_CALLS, ChildCall, ChildResult
from perdure.tools.clients.surface import Clients
from perdure.tools.context import CancelToken, ToolContext
from perdure.tools.execute import ToolThreads, run_attempt
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
class Nearby:
    """The call that makes the calls, and what they run on."""

    site: CallSite
    stream: StreamId
    toolbox: Toolbox
    threads: ToolThreads
    deps: object


@dataclass(frozen=True, slots=True)
class _Child:
    """A child call that may run."""

    call: PreparedToolCall
    prepared: Prepared


class DispatchClient:
    """`ctx.dispatch` of one call. Its children have the other clients of their parent, and no children of their own."""

    def __init__(self, nearby: Nearby, clients: Clients) -> None:
        self._nearby = nearby
        self._clients = clients
        self._catalog = ActiveCatalog(nearby.site.turn.composition)

    def callable_tool_manifest(self, name: str) -> ToolManifest | None:
        """The manifest of a tool this turn may call."""
        return self._catalog.callable_tool_manifest(name)

    def callable_tool_manifest_by_id(self, tool_id: str) -> ToolManifest | None:
        """The same, by the tool's id."""
        return self._catalog.callable_tool_manifest_by_id(tool_id)

    async def batch(self, calls: Sequence[ChildCall]) -> tuple[ChildResult, ...]:
        """Run other tools and answer in the order of the calls."""
        self._nearby.site.check_running()
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
        toolbox, composition = self._nearby.toolbox, self._nearby.site.turn.composition
        asked = ToolCall(id=CallId(child.call_id), name=child.name, args=args)
        contract = composition.tool(child.name)
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
        ctx = ToolPrepareContext(
            session_id=self._session,
            call_id=call.call_id,
            turn_context=self._nearby.site.turn_context,
            deps=self._nearby.deps,
            sessions=self._clients.sessions,
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
            return await run_attempt(child.prepared, ctx, threads=self._nearby.threads)

        async def run(_: Envelope) -> Outcome:
            cancellation = self._nearby.site.cancellation
            return await run_batch(batch, one, is_serial=self._catalog.is_serial, cancellation=cancellation)

        envelope = Envelope(invocation=invocation, command=CallTools(batch=batch))
        outcome = await InlineController().execute(envelope, Local(EffectKind.TOOL_BATCH, run))
        return collected(batch, into_tool_batch(outcome).launches)

    def _invocation(self, batch: PreparedToolBatch) -> Invocation:
        turn, site = self._nearby.site.turn, self._nearby.site
        scope = Scope(
            session_id=self._session, turn_id=turn.id, turn_index=turn.index, protocol_iteration=turn.iteration
        )
        key = f"{keys.turn_effect(self._tenant, scope, EffectKind.TOOL_BATCH, site.call)}:{digest(batch)}"
        return Invocation.effect(scope, f"{site.effect}.batch", EffectKind.TOOL_BATCH, key)

    def _context(self, call: BatchedCall, child: _Child, parent: Invocation, token: CancelToken) -> ToolContext[object]:
        site, name = self._nearby.site, call.call.tool_name
        own = CallId(f"{site.call}:{call.replay_suffix}")
        return ToolContext(
            session_id=self._session,
            turn_id=site.turn.id,
            call_id=own,
            tool_name=name,
            tenant=self._tenant,
            idempotency_key=keys.tool_idempotency(self._tenant, self._session, own, name),
            args=call.call.args,
            given=self._nearby.deps,
            cancellation=token,
            prepared_payload=child.call.prepared_payload,
            turn_context=self._nearby.site.turn_context,
            parent_call_id=site.call,
            parent_invocation=parent,
            clients=self._clients,
        )

    @property
    def _tenant(self) -> Tenant:
        return stream_names(self._nearby.stream)[0]

    @property
    def _session(self) -> SessionId:
        return SessionId(stream_names(self._nearby.stream)[2])


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
