"""Calls that a tool makes of other tools. What such a call may be depends on whether it can be recorded.

The body of an ordinary tool is one attempt: nothing inside it is recorded by itself. A `pure` call may run there, since
running it again does no harm. What must not run twice may not. In a resumable body every child is a step of its own,
with the class of its tool, and is answered from the log when the body is entered again. A resumable child has a body of
its own there, inside its parent's.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import cast

import msgspec

from perdure.codec import Json, to_json
from perdure.effects import keys
from perdure.effects.controller import InlineController, Local
from perdure.errors import Error
from perdure.ids import CallId, WorkerId
from perdure.runtime.calls.child_bodies import ChildBodies, InnerCall, LentPermit, refuse_calls
from perdure.runtime.calls.child_elsewhere import elsewhere
from perdure.runtime.calls.child_leave import Leave, People
from perdure.runtime.calls.clients import CallSite
from perdure.runtime.calls.perform import ask_outside
from perdure.runtime.turns.consent import asks
from perdure.runtime.worker.permits import Permits
from perdure.tools.batch import collected, run_batch
from perdure.tools.body import Body
from perdure.tools.catalog import ActiveCatalog
from perdure.tools.clients.dispatch import MAX_BATCH_CALLS, ChildCall, ChildResult
from perdure.tools.clients.surface import Clients
from perdure.tools.context import CancelToken, ToolContext
from perdure.tools.decorator import Tool
from perdure.tools.endings import StepFailed
from perdure.tools.errors import OutcomeUnknown, ToolError
from perdure.tools.execute import ToolThreads, run_to_end
from perdure.tools.nested import left_to_client, outcome_at, probe_of
from perdure.tools.prepare import Preparation, ToolPrepareContext, answered, judge, refused
from perdure.tools.provider import ProvidedTool
from perdure.tools.toolbox import Prepared, Toolbox
from perdure.turn.machine import MAX_REDISPATCHES, may_retry
from perdure.vocab.approvals import Decision
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
from perdure.vocab.refs import again
from perdure.vocab.tools import Durability, ToolManifest
from perdure.vocab.wire import Value


@dataclass(frozen=True, slots=True)
class AroundChildren:
    """What the children of a call need of the world around their turn."""

    toolbox: Toolbox
    threads: ToolThreads
    people: People
    is_dead: Callable[[WorkerId], Awaitable[bool]]
    permits: Permits
    clients: Callable[[CallSite], Clients]


class DispatchClient:
    """`ctx.dispatch` of one call. Its children have the other clients of their parent, and no children of their own."""

    def __init__(self, parent: ToolContext[object], site: CallSite, around: AroundChildren) -> None:
        self._clients = around.clients
        self._permits = around.permits
        self._people = around.people
        self._is_dead = around.is_dead
        self._toolbox = around.toolbox
        self._threads = around.threads
        self._parent = parent
        self._site = site
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
        refuse_calls(self._parent)
        _check_calls(calls)
        self._site.batches += 1
        named = [replace(call, call_id=call.call_id or str(index)) for index, call in enumerate(calls)]
        if len(named) > MAX_BATCH_CALLS:
            because = f"a batch has at most {MAX_BATCH_CALLS} calls, and this one has {len(named)}; none was run"
            return tuple(_answered(call, _failure("tool_batch_too_large", because)) for call in named)
        admitted = [self._admit(call, alone=False) for call in named]
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

    async def ask(self, step: str, what: str, args: Json) -> Decision | None:
        """Ask people something through the approvals."""
        self._site.check_running()
        body = self._parent.durable_effects()
        own = CallId(f"{self._parent.call_id}:{step}")
        about = PreparedToolCall(call_id=own, tool_id=f"tool:{what}", tool_name=what, args=to_json(args, where="args"))
        return await self._people.answer(body, step, about)

    async def call(self, call: ChildCall, *, step: str) -> ChildResult:
        """Run one other tool as a step of this body."""
        self._site.check_running()
        refuse_calls(self._parent)
        self._parent.durable_effects()
        admitted = self._admit(replace(call, call_id=call.call_id or step), alone=True)
        if isinstance(admitted, Failed):
            return _answered(call, admitted)
        batched = BatchedCall(call=admitted, replay_suffix=step)
        invocation = self._invocation(PreparedToolBatch.of((admitted,)))
        context = self._context(batched, step, invocation, self._site.cancellation)
        child = _Child(context, batched, step)
        contract = self._site.turn.composition.tool(admitted.tool_name)
        away = contract is not None and contract.client_side
        return _answered(call, await (self._elsewhere(child) if away else self._step(child)))

    def _admit(self, child: ChildCall, *, alone: bool) -> PreparedToolCall | Failed:
        """A child that may be tried, or its answer. Looks only at what the turn captured: the same on every entry. One
        that may wait for days is not tried together with others."""
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
        if effect != "pure" and (self._parent.body is None or (effect == "resumable" and not alone)):
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
            step = f"batch:{number}:{call.replay_suffix}"
            child = _Child(self._context(call, step, invocation, token), call, step)
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
        body = self._parent.durable_effects()
        over = body.outcome_of("step", child.step) is not None
        leave = Leave(child.call) if over else await self._leave(child, body)
        if not isinstance(leave, Leave):
            return leave
        child = replace(child, allowed=leave.call)
        await self._run_step(child, child.step, leave)
        policy = self._promises(child).retry
        failures = redispatches = 0
        while True:
            name = again(child.step, failures + redispatches)
            known = outcome_at(body.outcome_of, name)
            if isinstance(known, InDoubt):
                await self._settle_doubt(child, body, name)
                known = outcome_at(body.outcome_of, name)
            match known:
                case None if redispatches < MAX_REDISPATCHES:  # it did not happen, so it goes out again
                    redispatches += 1
                case None:
                    message = "it was sent out again and again, and nobody knows what became of it"
                    return InDoubt(reason="declared", message=message)
                case Failed(failure=failure) if may_retry(policy, failures, failure):
                    failures += 1
                    await body.sleep(f"{name}:retry", policy.delay_ms(failures, failure.retry_after_ms))
                case _:
                    return known
            ctx = replace(child.ctx, attempt=failures + 1)
            await self._run_step(replace(child, ctx=ctx), again(child.step, failures + redispatches))

    async def _elsewhere(self, child: _Child) -> ToolOutput:
        """Leave a child to the client or the person, unless its arguments make no sense; then nobody is asked."""
        body = self._parent.durable_effects()
        known = left_to_client(body.outcome_of, child.step) or outcome_at(body.outcome_of, child.step)
        if known is not None:
            return known
        bound = self._bound(child, None)
        if isinstance(bound, Failure):
            body.record("step", child.step, msgspec.to_builtins(Failed(failure=bound)))
            return Failed(failure=bound)
        call = msgspec.structs.replace(child.call, call_id=child.ctx.call_id)
        return await elsewhere(self._people, body, child.step, call, bound)

    def _attempts(self, tool: str) -> int:
        contract = self._site.turn.composition.tool(tool)
        return contract.durability.retry.max_attempts if contract and self._parent.body else 1

    def _promises(self, child: _Child) -> Durability:
        contract = self._site.turn.composition.tool(child.call.tool_name)
        assert contract is not None  # it was admitted
        return contract.durability

    async def _leave(self, child: _Child, body: Body) -> Leave | ToolOutput:
        """Whether a child may run, and with which arguments."""
        sealed = await self._sealed_step(child)
        if isinstance(sealed, Success | Failed):
            return sealed
        call = sealed or child.call
        if body.controller.journal.started(body.place.part("step", child.step)) is not None:
            return self._people.given(body, child.step, call)
        bound = self._bound(child, sealed)
        if isinstance(bound, Failure) or not bound.may_need_leave:
            return Leave(call)
        tool = bound.tool

        async def ask(_: Json) -> Json:
            predicate = tool.approve if isinstance(tool, Tool) else None
            if bound.always_asks or predicate is None:
                return True
            return await asks(predicate, bound.arguments, self._prepare_context(child))

        asked = await self._parent.run_json(f"{child.step}:asks", msgspec.to_builtins(call), ask, effect="pure")
        if asked is False:
            return Leave(call)
        about = msgspec.structs.replace(call, call_id=child.ctx.call_id)
        leave = await self._people.allow(body, child.step, about, bound.contract.durability)
        if not isinstance(leave, Leave):
            return leave
        return replace(leave, call=msgspec.structs.replace(call, args=leave.call.args))

    async def _run_step(self, child: _Child, name: str, leave: Leave | None = None) -> None:
        effect = self._promises(child).effect
        if effect == "resumable":
            await self._run_body(child, name, leave)
            return
        call = child.allowed or child.call

        async def run(_: Json) -> Json:
            output = await self._attempt(child, call)
            if isinstance(output, InDoubt):
                raise OutcomeUnknown(output.message)
            return msgspec.to_builtins(output)

        given: Json = {"tool": child.call.tool_id, "args": child.call.args}
        body, use = self._parent.durable_effects(), leave.use if leave else None
        async with self._its_turn(child, body, name):
            with suppress(OutcomeUnknown, StepFailed):  # how it ended is read off the log, as by whoever comes later
                await body.step(name, given, lambda: run(given), effect, in_loop=True, leave=use)

    async def _run_body(self, child: _Child, name: str, leave: Leave | None) -> None:
        body, use = self._parent.durable_effects(), leave.use if leave else None
        if body.outcome_of("step", name) is not None:
            return
        part, what = body.place.part("step", name), f"tool:{child.call.tool_name}"
        limits = () if self._counts_itself else self._permits.work.limits_of(what)
        permit = LentPermit(self._permits, self._people.owned.stream, part, limits)
        promises = self._promises(child)
        called = InnerCall(child.ctx, child.call, child.step, name, promises.timeout_ms, use)

        async def enter(ctx: ToolContext[object], left_ms: int | None) -> ToolOutput:
            return await self._attempt(replace(child, ctx=ctx), child.allowed or child.call, left_ms)

        bodies = ChildBodies(body, self._site, self._clients, permit)
        async with self._site.lanes.turn(body.life, promises, self._site.turn.limits.max_parallel_calls):
            await bodies.run(called, enter)

    @asynccontextmanager
    async def _its_turn(self, child: _Child, body: Body, name: str) -> AsyncGenerator[None]:
        """A child runs when those before it let it, and counts in the limits of its tool; unless it ran before."""
        if body.outcome_of("step", name) is not None:
            yield
            return
        turn = self._site.lanes.turn(body.life, self._promises(child), self._site.turn.limits.max_parallel_calls)
        async with turn, self._within_limits(child, body, name):
            yield

    def _within_limits(self, child: _Child, body: Body, name: str) -> AbstractAsyncContextManager[None]:
        """A child counts like any call, unless its parent does: it would hold a permit while it waits for another."""
        if self._counts_itself:
            return nullcontext()
        part = body.place.part("step", name)
        return self._permits.held(self._people.owned.stream, part, f"tool:{child.call.tool_name}")

    @property
    def _counts_itself(self) -> bool:
        """Whether the parent holds a permit."""
        return bool(self._permits.work.limits_of(f"tool:{self._parent.tool_name}"))

    async def _settle_doubt(self, child: _Child, body: Body, name: str) -> None:
        """Ask whoever can know what became of a child in doubt."""
        promises = self._promises(child)
        started = body.controller.journal.started(body.place.part("step", name))
        worker = started.worker if started else WorkerId("")
        dead = worker != body.controller.ledger.worker and await self._is_dead(worker)
        if promises.doubt == "ask":
            about = msgspec.structs.replace(child.call, call_id=child.ctx.call_id)
            await self._people.settle(body, name, about, promises, dead=dead)
        elif promises.doubt == "probe":
            await self._probe(child, name, certain=dead)

    async def _probe(self, child: _Child, name: str, *, certain: bool) -> None:
        bound = self._bound(child, child.allowed)

        async def ask(_: Json) -> Json:
            if isinstance(bound, Failure) or bound.tool.probe is None:
                return {"verdict": "unknown", "reason": "the probe does not exist any more"}
            return (await ask_outside(bound, child.ctx, self._threads, certain=certain)).value

        await self._parent.run_json(probe_of(name), None, ask, effect="pure")

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

    async def _attempt(
        self, child: _Child, sealed: PreparedToolCall | None = None, left_ms: int | None = None
    ) -> ToolOutput:
        """Check a child's arguments, ask its provider's hook unless that was done, and run it."""
        bound = self._bound(child, sealed)
        if isinstance(bound, Failure):
            return Failed(failure=bound)
        if bound.may_need_leave and self._parent.body is None:
            message = f"{child.call.tool_name} may need a person's approval, and nobody can wait for that here; not run"
            return _failure("approval_required", message)
        if sealed is None and isinstance(bound.tool, ProvidedTool) and bound.tool.prepares:
            answer = await self._ask_hook(bound.tool, child)
            return answer if not isinstance(answer, PreparedToolCall) else await self._attempt(child, answer)
        call = sealed or child.call
        with _stopped_alone(child.ctx.cancellation) as token:
            payload = call.prepared_payload
            ctx = replace(child.ctx, args=call.args, prepared_payload=payload, cancellation=token)
            return await run_to_end(bound, ctx, threads=self._threads, left_ms=left_ms)

    def _bound(self, child: _Child, sealed: PreparedToolCall | None) -> Prepared | Failure:
        asked = ToolCall(id=child.call.call_id, name=child.call.tool_name, args=child.call.args)
        return self._toolbox.prepare(asked, self._site.turn.composition.tool(asked.name), sealed)

    def _prepare_context(self, child: _Child) -> ToolPrepareContext:
        parent = self._parent
        return ToolPrepareContext(
            session_id=parent.session_id,
            call_id=child.ctx.call_id,
            turn_context=parent.turn_context,
            given=parent.given,
            sessions=parent.clients.sessions,
        )

    async def _ask_hook(self, tool: ProvidedTool, child: _Child) -> Preparation:
        call = child.call
        try:
            answer: object = tool.prepare(self._prepare_context(child), call)
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

    def _context(self, call: BatchedCall, step: str, batch: Invocation, token: CancelToken) -> ToolContext[object]:
        parent, name = self._parent, call.call.tool_name
        own = CallId(f"{parent.call_id}:{step}")
        return replace(
            parent,
            call_id=own,
            tool_name=name,
            attempt=1,
            max_attempts=self._attempts(name),
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
    """A child call that is tried: its own context, and the name of its step in the body of its parent. `allowed` is the
    call as it was prepared and allowed."""

    ctx: ToolContext[object]
    batched: BatchedCall
    step: str
    allowed: PreparedToolCall | None = None

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


@contextmanager
def _stopped_alone(around: CancelToken) -> Generator[CancelToken]:
    """A token for one attempt of a child: told what its parent is told, and not the other way round."""
    token = CancelToken()
    forget = around.add_callback(token.cancel)
    try:
        yield token
    finally:
        forget()
        around.ignored = around.ignored or token.ignored


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
        "Only pure tools can be called here; in a resumable tool also once and idempotent ones, and resumable ones by "
        "themselves (ctx.dispatch.call, or in a program).",
    )
