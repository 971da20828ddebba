"""Calls that a tool makes of other tools. What such a call may be depends on whether it can be recorded.

The body of an ordinary tool is one attempt: nothing inside it is recorded by itself. A `pure` call may run there, since
running it again does no harm. What must not run twice may not. In a resumable body every child is a step of its own,
with the class of its tool, and is answered from the log when the body is entered again.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import msgspec

from perdure.codec import Json, to_json
from perdure.effects import keys
from perdure.effects.controller import InlineController, Local
from perdure.errors import Error
from perdure.ids import CallId
from perdure.runtime.clients import CallSite
from perdure.tools.batch import collected, run_batch
from perdure.tools.body import StepFailed
from perdure.tools.catalog import ActiveCatalog
from perdure.tools.clients.dispatch import MAX_BATCH_CALLS, ChildCall, ChildResult
from perdure.tools.context import CancelToken, ToolContext
from perdure.tools.errors import OutcomeUnknown, ToolError
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
from perdure.vocab.outcomes import Failed, Failure, InDoubt, Outcome, Success, ToolOutput, into_tool_batch
from perdure.vocab.tools import ToolManifest
from perdure.vocab.wire import Value


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
        _check_calls(calls)
        self._site.batches += 1
        named = [replace(call, call_id=call.call_id or str(index)) for index, call in enumerate(calls)]
        if len(named) > MAX_BATCH_CALLS:
            because = f"a batch has at most {MAX_BATCH_CALLS} calls, and this one has {len(named)}; none was run"
            return tuple(_answered(call, _failure("tool_batch_too_large", because)) for call in named)
        admitted = [self._admit(call) for call in named]
        children = tuple(
            BatchedCall(call=one, replay_suffix=f"child:{index}:{one.call_id}")
            for index, one in enumerate(admitted)
            if isinstance(one, PreparedToolCall)
        )
        outputs = iter(await self._run(children, self._site.batches) if children else ())
        return tuple(
            _answered(call, next(outputs) if isinstance(one, PreparedToolCall) else one)
            for call, one in zip(named, admitted, strict=True)
        )

    def _admit(self, child: ChildCall) -> PreparedToolCall | Failed:
        """A child that may be tried, or its answer. Looks only at what the turn captured: the same on every entry."""
        try:
            args = to_json(child.args, where="args")
        except Error as problem:
            return _failure("invalid_tool_args", problem.message)
        contract = self._site.turn.composition.tool(child.name)
        if contract is None:
            asked = ToolCall(id=CallId(child.call_id), name=child.name, args=args)
            refusal = self._toolbox.prepare(asked, None, visible=self._site.turn.composition.names)
            unknown = Failure(code="tool_unavailable", message=f"{child.name} cannot be called from here")
            return Failed(failure=refusal if isinstance(refusal, Failure) else unknown)
        effect = contract.durability.effect
        if effect == "resumable" or (effect != "pure" and self._parent.body is None):
            return _not_recorded(child.name, effect)
        return PreparedToolCall(
            call_id=CallId(child.call_id), tool_id=contract.tool_id, tool_name=child.name, args=args
        )

    async def _run(self, children: tuple[BatchedCall, ...], number: int) -> tuple[ToolOutput, ...]:
        batch = PreparedToolBatch(
            batch_id=PreparedToolBatch.of(tuple(child.call for child in children)).batch_id, calls=children
        )
        invocation = self._invocation(batch)

        async def one(call: BatchedCall, token: CancelToken) -> ToolOutput:
            child = _Child(self._context(call, number, invocation, token), call, f"batch:{number}:{call.replay_suffix}")
            return await (self._attempt(child) if self._parent.body is None else self._step(child))

        async def run(_: Envelope) -> Outcome:
            cancellation = self._site.cancellation
            return await run_batch(batch, one, is_serial=self._catalog.is_serial, cancellation=cancellation)

        envelope = Envelope(invocation=invocation, command=CallTools(batch=batch))
        outcome = await InlineController().execute(envelope, Local(EffectKind.TOOL_BATCH, run))
        return collected(batch, into_tool_batch(outcome).launches)

    # --- one child

    async def _step(self, child: _Child) -> ToolOutput:
        """Run a child as a step of its parent's body, or answer it from the log, whatever became of its tool."""
        contract = self._site.turn.composition.tool(child.call.tool_name)
        assert contract is not None
        sealed = await self._sealed_step(child)

        async def run(_: Json) -> Json:
            output = sealed if isinstance(sealed, Success | Failed) else await self._attempt(child, sealed)
            if isinstance(output, InDoubt):
                raise OutcomeUnknown(output.message)
            return msgspec.to_builtins(output)

        given = {"tool": child.call.tool_id, "args": child.call.args}
        effect = contract.durability.effect
        assert effect != "resumable"
        try:
            value = await self._parent.run_json(child.step, given, run, effect=effect)
        except OutcomeUnknown as doubt:
            return InDoubt(reason="declared", message=doubt.message)
        except StepFailed as failed:
            return _failure(failed.code, failed.message)
        return msgspec.convert(value, type=ToolOutput)

    async def _sealed_step(self, child: _Child) -> Preparation | None:
        """What a provider's hook said of a child, recorded before the child is dispatched; None if there is no hook."""
        bound = self._bound(child, None)
        if isinstance(bound, Failure) or not isinstance(bound.tool, ProvidedTool) or not bound.tool.prepares:
            return None
        tool = bound.tool

        async def ask(_: Json) -> Json:
            return _recordable(await self._ask_hook(tool, child))

        given = msgspec.to_builtins(child.call)
        value = await self._parent.run_json(f"{child.step}:prepare", given, ask, effect="pure")
        answer = msgspec.convert(value, type=_Sealed).outcome
        return answer.call if isinstance(answer, _Prepared) else answer

    async def _attempt(self, child: _Child, sealed: PreparedToolCall | None = None) -> ToolOutput:
        """Check a child's arguments, ask its provider's hook unless that was done, and run it."""
        bound = self._bound(child, sealed)
        if isinstance(bound, Failure):
            return Failed(failure=bound)
        if bound.may_need_leave:
            message = f"{child.call.tool_name} may need a person's approval, which only calls of the model get; not run"
            return _failure("approval_required", message)
        if sealed is None and isinstance(bound.tool, ProvidedTool) and bound.tool.prepares:
            answer = await self._ask_hook(bound.tool, child)
            return answer if not isinstance(answer, PreparedToolCall) else await self._attempt(child, answer)
        call = sealed or child.call
        ctx = replace(child.ctx, args=call.args, prepared_payload=call.prepared_payload)
        return await run_to_end(bound, ctx, threads=self._threads)

    def _bound(self, child: _Child, sealed: PreparedToolCall | None) -> Prepared | Failure:
        asked = ToolCall(id=child.call.call_id, name=child.call.tool_name, args=child.call.args)
        return self._toolbox.prepare(asked, self._site.turn.composition.tool(asked.name), sealed)

    async def _ask_hook(self, tool: ProvidedTool, child: _Child) -> Preparation:
        parent, call = self._parent, child.call
        ctx = ToolPrepareContext(
            session_id=parent.session_id,
            call_id=child.ctx.call_id,
            turn_context=parent.turn_context,
            given=parent.given,
            sessions=parent.clients.sessions,
        )
        try:
            answer: object = tool.prepare(ctx, call)
        except BaseException as problem:  # noqa: BLE001 - other people's code; it becomes the call's failure
            return refused(call, problem)
        if inspect.isawaitable(answer):
            return await answered(call, cast("Awaitable[object]", answer))
        return judge(call, answer)

    def _invocation(self, batch: PreparedToolBatch) -> Invocation:
        parent, turn = self._parent, self._site.turn
        scope = Scope(
            session_id=parent.session_id, turn_id=turn.id, turn_index=turn.index, protocol_iteration=turn.iteration
        )
        key = f"{keys.turn_effect(parent.tenant, scope, EffectKind.TOOL_BATCH, parent.call_id)}:{batch.batch_id}"
        return Invocation.effect(scope, f"{self._site.effect}.batch", EffectKind.TOOL_BATCH, key)

    def _context(self, call: BatchedCall, number: int, batch: Invocation, token: CancelToken) -> ToolContext[object]:
        parent, name = self._parent, call.call.tool_name
        own = CallId(f"{parent.call_id}:batch:{number}:{call.replay_suffix}")
        return replace(
            parent,
            call_id=own,
            tool_name=name,
            attempt=1,
            max_attempts=1,
            idempotency_key=keys.tool_idempotency(parent.tenant, parent.session_id, own, name),
            cancellation=token,
            parent_call_id=parent.call_id,
            parent_invocation=batch,
            clients=replace(parent.clients, dispatch=None),
            body=None,
            completion=None,
        )


@dataclass(frozen=True, slots=True)
class _Child:
    """A child call that is tried: its own context, and the name of its step in the body of its parent."""

    ctx: ToolContext[object]
    batched: BatchedCall
    step: str

    @property
    def call(self) -> PreparedToolCall:
        """The call as its parent made it."""
        return self.batched.call


class _Prepared(Value, frozen=True, tag="prepared", tag_field="status"):
    call: PreparedToolCall


class _Sealed(Value, frozen=True):
    """What a hook answered, as a step records it."""

    outcome: _Prepared | Success | Failed


def _recordable(answer: Preparation) -> Json:
    outcome = _Prepared(call=answer) if isinstance(answer, PreparedToolCall) else answer
    return msgspec.to_builtins(_Sealed(outcome=outcome))


def _check_calls(calls: object) -> None:
    """Refuse what is no batch at all, before it counts as one."""
    if not isinstance(calls, Sequence):
        raise ToolError(f"A batch is a list of ChildCall, not {type(calls).__name__}", code="invalid_argument")
    for index, one in enumerate(cast("Sequence[object]", calls)):
        if not isinstance(one, ChildCall):
            message = f"Call {index} of the batch is {type(one).__name__}, not a ChildCall"
            raise ToolError(message, code="invalid_argument")
        if not all(isinstance(text, str) for text in cast("tuple[object, ...]", (one.name, one.call_id))):
            raise ToolError(f"The name and the id of call {index} must be text", code="invalid_argument")


def _answered(call: ChildCall, output: ToolOutput) -> ChildResult:
    return ChildResult(call.call_id, call.name, output)


def _failure(code: str, message: str) -> Failed:
    return Failed(failure=Failure(code=code, message=message, failure_class="invalid"))


def _not_recorded(name: str, effect: str) -> Failed:
    return _failure(
        "nested_effect_not_recorded",
        f"{name} is {effect}: inside the body of another tool nothing would record that it ran, so it was not run. "
        "Only pure tools can be called here; in a resumable tool also once and idempotent ones.",
    )
