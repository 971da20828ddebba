"""Calls that a tool makes of other tools. The kinds of call that are possible depend on the body around them.

The body of an ordinary tool is one attempt without records of its own. Only `pure` calls may run there, because their
repetition does no harm. In a resumable body every child is a step with the class of its tool. After re-entry, finished
children are replayed from the log. A resumable child runs in an inner body.
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
from perdure.errors import Code, Error
from perdure.ids import CallId, WorkerId
from perdure.runtime.calls.child_bodies import ChildBodies, InnerCall, LentPermit, refuse_calls
from perdure.runtime.calls.child_elsewhere import elsewhere
from perdure.runtime.calls.child_leave import ChildApprovals, Leave
from perdure.runtime.calls.clients import CallSite
from perdure.runtime.calls.perform import ask_outside
from perdure.runtime.tasks.tasks import StoredTasks
from perdure.runtime.turns.approval_policy import asks
from perdure.runtime.worker.permits import Permits
from perdure.services.tasks import CreateSessionTask
from perdure.tools.batch import collected, run_batch
from perdure.tools.body import Body
from perdure.tools.catalog import ActiveCatalog
from perdure.tools.clients.dispatch import MAX_BATCH_CALLS, ChildCall, ChildResult
from perdure.tools.context import Cancellation, ToolContext, origin_of
from perdure.tools.decorator import Tool
from perdure.tools.door import Consent, admit, admit_run
from perdure.tools.durable import body_of, json_step
from perdure.tools.errors import OutcomeUnknown, ToolError
from perdure.tools.execute import ToolThreads, run_to_end
from perdure.tools.nested import left_to_client, outcome_at, probe_of
from perdure.tools.origin import Clients
from perdure.tools.prepare import Preparation, ToolPrepareContext, answered, judge, refused
from perdure.tools.provider import ProvidedTool
from perdure.tools.step_outcomes import StepFailed
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
from perdure.vocab.outcomes import Failed, FailureDetail, InDoubt, Outcome, Success, ToolOutput, into_tool_batch
from perdure.vocab.refs import again
from perdure.vocab.tools import Durability, ToolManifest
from perdure.vocab.wire import Value


@dataclass(frozen=True, slots=True)
class ChildCallDeps:
    """The dependencies of a call's children."""

    toolbox: Toolbox
    threads: ToolThreads
    people: ChildApprovals
    is_dead: Callable[[WorkerId], Awaitable[bool]]
    permits: Permits
    clients: Callable[[CallSite], Clients]
    runs: StoredTasks


class DispatchClient:
    """`ctx.tools` of one call. Its children have the other clients of their parent, and no children of their own."""

    def __init__(self, parent: ToolContext[object], site: CallSite, around: ChildCallDeps) -> None:
        self._clients = around.clients
        self._runs = around.runs
        self._permits = around.permits
        self._people = around.people
        self._is_dead = around.is_dead
        self._toolbox = around.toolbox
        self._threads = around.threads
        self._parent = parent
        self._origin = origin_of(parent)
        self._site = site
        self._catalog = ActiveCatalog(site.turn.composition)

    def callable_tool_manifest(self, name: str) -> ToolManifest | None:
        """Return the manifest of a tool that this turn may call, or None."""
        return self._catalog.callable_tool_manifest(name)

    def callable_tool_manifest_by_id(self, tool_id: str) -> ToolManifest | None:
        """Return the manifest of a tool that this turn may call, by the tool's id, or None."""
        return self._catalog.callable_tool_manifest_by_id(tool_id)

    async def batch(self, calls: Sequence[ChildCall]) -> tuple[ChildResult, ...]:
        """Run other tools, and return their results in the order of the calls."""
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
        """Ask a person something through the approvals. Return the decision."""
        self._site.check_running()
        body = body_of(self._parent)
        own = CallId(f"{self._parent.call_id}:{step}")
        about = PreparedToolCall(call_id=own, tool_id=f"tool:{what}", tool_name=what, args=to_json(args, where="args"))
        return await self._people.answer(body, step, about)

    async def refusal(self, call: ChildCall) -> FailureDetail | None:
        """Return why another tool would not run with these arguments, or None. Approval is not requested."""
        admitted = self._admit(call, alone=True)
        if isinstance(admitted, Failed):
            return admitted.failure
        bound = self._bound_call(admitted, None)
        checked = bound if isinstance(bound, FailureDetail) else await bound.checked()
        return checked if isinstance(checked, FailureDetail) else None

    async def start_run(
        self, call: ChildCall, *, step: str, task: Callable[[dict[str, Json]], CreateSessionTask]
    ) -> ChildResult:
        """Start one other tool in the background as a step of this body, after the checks of a direct call."""
        self._site.check_running()
        body = body_of(self._parent)
        admitted = self._admit(replace(call, call_id=call.call_id or step), alone=True)
        if isinstance(admitted, Failed):
            return _answered(call, admitted)
        batched = BatchedCall(call=admitted, replay_suffix=step)
        invocation = self._invocation(PreparedToolBatch.of((admitted,)))
        child = _Child(self._context(batched, step, invocation, self._site.cancellation), batched, step)
        leave = await self._leave(child, body)
        return _answered(call, await self._start_run(child, leave, task) if isinstance(leave, Leave) else leave)

    async def _start_run(
        self, child: _Child, leave: Leave, task: Callable[[dict[str, Json]], CreateSessionTask]
    ) -> ToolOutput:
        """Register the run of an allowed call, unless that was done. The start consumes the approval."""
        bound, body = await self._checked(child, leave.call), body_of(self._parent)
        if isinstance(bound, FailureDetail):
            return Failed(failure=bound)
        run = admit_run(bound, self._site.turn.composition, leave.consent)
        if isinstance(run, FailureDetail):
            return Failed(failure=run)

        async def register() -> Json:
            try:
                made = await self._runs.start(task(run.arguments), run)
            except Error as problem:
                if problem.code is not Code.TASK_LIMIT_EXCEEDED:
                    raise
                return msgspec.to_builtins(_failure(problem.code.value, problem.message))
            return msgspec.to_builtins(Success(value={"task_id": made.id, "args": run.arguments}))

        given: Json = {"tool": child.call.tool_id, "args": child.call.args}
        with suppress(OutcomeUnknown, StepFailed):  # the outcome is read from the log, as after re-entry
            await body.step(child.step, given, register, "idempotent", in_loop=True, leave=leave.use)
        output = outcome_at(body.outcome_of, child.step)
        assert output is not None
        return output

    async def call(self, call: ChildCall, *, step: str) -> ChildResult:
        """Run one other tool as a step of this body."""
        self._site.check_running()
        refuse_calls(self._parent)
        body_of(self._parent)
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
        """Return a child that may be tried, or its failure.

        The check uses only what the turn captured, so every entry gets the same answer. A resumable child, which may
        wait for days, is refused in a batch.
        """
        try:
            args = to_json(child.args, where="args")
        except Error as problem:
            return _failure("invalid_tool_args", problem.message)
        contract = self._site.turn.composition.tool(child.name)
        if contract is None:
            asked = ToolCall(id=CallId(child.call_id), name=child.name, args=args)
            refusal = self._toolbox.prepare(asked, None, visible=self._site.turn.composition.names)
            unknown = FailureDetail(code="tool_unavailable", message=f"{child.name} cannot be called from here")
            return Failed(failure=refusal if isinstance(refusal, FailureDetail) else unknown)
        effect = contract.durability.effect
        if effect != "pure" and (self._origin.body is None or (effect == "resumable" and not alone)):
            return _not_recorded(child.name, effect)
        return PreparedToolCall(
            call_id=CallId(child.call_id), tool_id=contract.tool_id, tool_name=child.name, args=args
        )

    async def _run(self, children: tuple[BatchedCall, ...], number: int) -> tuple[ToolOutput, ...]:
        batch = PreparedToolBatch(
            batch_id=PreparedToolBatch.of(tuple(child.call for child in children)).batch_id, calls=children
        )
        invocation = self._invocation(batch)

        async def one(call: BatchedCall, token: Cancellation) -> ToolOutput:
            step = f"batch:{number}:{call.replay_suffix}"
            child = _Child(self._context(call, step, invocation, token), call, step)
            return await (self._attempt(child) if self._origin.body is None else self._step(child))

        async def run(_: Envelope) -> Outcome:
            cancellation = self._site.cancellation
            return await run_batch(batch, one, is_serial=self._catalog.is_serial, cancellation=cancellation)

        envelope = Envelope(invocation=invocation, command=CallTools(batch=batch))
        outcome = await InlineController().execute(envelope, Local(EffectKind.TOOL_BATCH, run))
        return collected(batch, into_tool_batch(outcome).launches)

    # --- one child

    async def _step(self, child: _Child) -> ToolOutput:
        """Run a child as a step of its parent's body, or replay it from the log, even if its tool is gone."""
        body = body_of(self._parent)
        over = body.outcome_of("step", child.step) is not None
        leave = Leave(child.call, "begun_before") if over else await self._leave(child, body)
        if not isinstance(leave, Leave):
            return leave
        child = replace(child, allowed=leave.call, consent=leave.consent)
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
                case None if redispatches < MAX_REDISPATCHES:  # it did not happen: dispatch it again
                    redispatches += 1
                case None:
                    message = "the call was dispatched repeatedly, and its outcome is still unknown"
                    return InDoubt(reason="declared", message=message)
                case Failed(failure=failure) if may_retry(policy, failures, failure):
                    failures += 1
                    await body.sleep(f"{name}:retry", policy.delay_ms(failures, failure.retry_after_ms))
                case _:
                    return known
            ctx = replace(child.ctx, attempt=failures + 1)
            await self._run_step(replace(child, ctx=ctx), again(child.step, failures + redispatches))

    async def _elsewhere(self, child: _Child) -> ToolOutput:
        """Leave a child to the client or the user. Invalid arguments fail first, without a request."""
        body = body_of(self._parent)
        known = left_to_client(body.outcome_of, child.step) or outcome_at(body.outcome_of, child.step)
        if known is not None:
            return known
        bound = await self._checked(child, None)
        if isinstance(bound, FailureDetail):
            body.record("step", child.step, msgspec.to_builtins(Failed(failure=bound)))
            return Failed(failure=bound)
        call = msgspec.structs.replace(child.call, call_id=child.ctx.call_id)
        return await elsewhere(self._people, body, child.step, call, bound)

    def _attempts(self, tool: str) -> int:
        contract = self._site.turn.composition.tool(tool)
        return contract.durability.retry.max_attempts if contract and self._origin.body else 1

    def _promises(self, child: _Child) -> Durability:
        contract = self._site.turn.composition.tool(child.call.tool_name)
        assert contract is not None  # checked by `_admit`
        return contract.durability

    async def _leave(self, child: _Child, body: Body) -> Leave | ToolOutput:
        """Return the approval of a child with its arguments, or its output if the child may not run."""
        captured = await self._captured_step(child)
        if isinstance(captured, Success | Failed):
            return captured
        call = captured or child.call
        if body.controller.journal.started(body.place.part("step", child.step)) is not None:
            return self._people.given(body, child.step, call)
        bound = await self._checked(child, captured)
        if isinstance(bound, FailureDetail) or not bound.may_need_leave:
            return Leave(call, "not_needed")
        tool = bound.tool

        async def ask(_: Json) -> Json:
            predicate = tool.needs_approval if isinstance(tool, Tool) else None
            if bound.always_asks or predicate is None:
                return True
            return await asks(predicate, bound.arguments, self._prepare_context(child))

        asked = await json_step(self._parent, f"{child.step}:asks", msgspec.to_builtins(call), ask, effect="pure")
        if asked is False:
            return Leave(call, "predicate_declined")
        about = msgspec.structs.replace(call, call_id=child.ctx.call_id)
        leave = await self._people.allow(body, child.step, about, bound)
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
        body, use = body_of(self._parent), leave.use if leave else None
        async with self._its_turn(child, body, name):
            with suppress(OutcomeUnknown, StepFailed):  # the outcome is read from the log, as after re-entry
                await body.step(name, given, lambda: run(given), effect, in_loop=True, leave=use)

    async def _run_body(self, child: _Child, name: str, leave: Leave | None) -> None:
        body, use = body_of(self._parent), leave.use if leave else None
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
        """Wait for a place among the body's calls and for the tool's permit. A child that ran before needs neither."""
        if body.outcome_of("step", name) is not None:
            yield
            return
        turn = self._site.lanes.turn(body.life, self._promises(child), self._site.turn.limits.max_parallel_calls)
        async with turn, self._within_limits(child, body, name):
            yield

    def _within_limits(self, child: _Child, body: Body, name: str) -> AbstractAsyncContextManager[None]:
        """Return the permit of a child, unless its parent holds one: waiting for a second permit could deadlock."""
        if self._counts_itself:
            return nullcontext()
        part = body.place.part("step", name)
        return self._permits.held(self._people.owned.stream, part, f"tool:{child.call.tool_name}")

    @property
    def _counts_itself(self) -> bool:
        """True if the parent holds a permit."""
        return bool(self._permits.work.limits_of(f"tool:{self._parent.tool_name}"))

    async def _settle_doubt(self, child: _Child, body: Body, name: str) -> None:
        """Settle a child in doubt by its policy: ask a person, or probe."""
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
            if isinstance(bound, FailureDetail) or bound.tool.probe is None:
                return {"verdict": "unknown", "reason": "the probe does not exist any more"}
            return (await ask_outside(bound, child.ctx, self._threads, certain=certain)).value

        await json_step(self._parent, probe_of(name), None, ask, effect="pure")

    async def _captured_step(self, child: _Child) -> Preparation | None:
        """Return what a provider's hook prepared for a child, recorded before dispatch. Return None without a hook."""
        bound = self._bound(child, None)
        if isinstance(bound, FailureDetail) or not isinstance(bound.tool, ProvidedTool) or not bound.tool.prepares:
            return None
        tool = bound.tool

        async def ask(_: Json) -> Json:
            return _recordable(await self._ask_hook(tool, child))

        given = msgspec.to_builtins(child.call)
        value = await json_step(self._parent, f"{child.step}:prepare", given, ask, effect="pure")
        answer = msgspec.convert(value, type=_Sealed).outcome
        return answer.call if isinstance(answer, _Prepared) else answer

    async def _attempt(
        self, child: _Child, captured: PreparedToolCall | None = None, left_ms: int | None = None
    ) -> ToolOutput:
        """Check a child's arguments, run its provider's hook unless that was done, and run the tool."""
        bound = await self._checked(child, captured)
        if isinstance(bound, FailureDetail):
            return Failed(failure=bound)
        admitted = admit(bound, self._site.turn.composition, child.consent)
        if isinstance(admitted, FailureDetail):
            return Failed(failure=admitted)
        if captured is None and isinstance(bound.tool, ProvidedTool) and bound.tool.prepares:
            answer = await self._ask_hook(bound.tool, child)
            return answer if not isinstance(answer, PreparedToolCall) else await self._attempt(child, answer)
        call = captured or child.call
        with _stopped_alone(child.ctx.cancellation) as token:
            payload = call.prepared_payload
            origin = replace(origin_of(child.ctx), prepared_payload=payload)
            ctx = replace(child.ctx, args=call.args, cancellation=token, _call=origin)
            return await run_to_end(admitted, ctx, threads=self._threads, left_ms=left_ms)

    async def _checked(self, child: _Child, captured: PreparedToolCall | None) -> Prepared | FailureDetail:
        bound = self._bound(child, captured)
        return bound if isinstance(bound, FailureDetail) else await bound.checked()

    def _bound(self, child: _Child, captured: PreparedToolCall | None) -> Prepared | FailureDetail:
        return self._bound_call(child.call, captured)

    def _bound_call(self, call: PreparedToolCall, captured: PreparedToolCall | None) -> Prepared | FailureDetail:
        asked = ToolCall(id=call.call_id, name=call.tool_name, args=call.args)
        return self._toolbox.prepare(asked, self._site.turn.composition.tool(asked.name), captured)

    def _prepare_context(self, child: _Child) -> ToolPrepareContext:
        origin = self._origin
        return ToolPrepareContext(
            session_id=self._parent.session_id,
            call_id=child.ctx.call_id,
            turn_context=origin.turn_context,
            _deps=origin.deps,
            sessions=origin.clients.sessions,
        )

    async def _ask_hook(self, tool: ProvidedTool, child: _Child) -> Preparation:
        call = child.call
        try:
            answer: object = tool.prepare(self._prepare_context(child), call)
        except BaseException as problem:  # noqa: BLE001 - user code; its error becomes the call's failure
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

    def _context(self, call: BatchedCall, step: str, batch: Invocation, token: Cancellation) -> ToolContext[object]:
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
            _call=replace(
                self._origin,
                parent_call_id=parent.call_id,
                parent_invocation=batch,
                clients=replace(self._origin.clients, dispatch=None),
                body=None,
                completion=None,
            ),
        )


@dataclass(frozen=True, slots=True)
class _Child:
    """A child call with its own context, and the name of its step in the parent's body.

    `allowed` is the call as it was prepared and approved, and `consent` how its approval policy was met.
    """

    ctx: ToolContext[object]
    batched: BatchedCall
    step: str
    allowed: PreparedToolCall | None = None
    consent: Consent = "not_needed"

    @property
    def call(self) -> PreparedToolCall:
        """The call as its parent made it."""
        return self.batched.call


class _Prepared(Value, frozen=True, tag="prepared", tag_field="status"):
    call: PreparedToolCall


class _Sealed(Value, frozen=True):
    """The answer of a hook, as a step records it."""

    outcome: _Prepared | Success | Failed


def _recordable(answer: Preparation) -> Json:
    outcome = _Prepared(call=answer) if isinstance(answer, PreparedToolCall) else answer
    return msgspec.to_builtins(_Sealed(outcome=outcome))


@contextmanager
def _stopped_alone(around: Cancellation) -> Generator[Cancellation]:
    """Yield a cancel token for one attempt of a child. It follows the parent's token, but not the other way round."""
    token = Cancellation()
    forget = around.add_callback(token.cancel)
    try:
        yield token
    finally:
        forget()
        around.ignored = around.ignored or token.ignored


def _check_calls(calls: object) -> None:
    """Raise a `ToolError` for an invalid batch, before it counts as one."""
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
    return Failed(failure=FailureDetail(code=code, message=message, failure_class="invalid"))


def _not_recorded(name: str, effect: str) -> Failed:
    return _failure(
        "nested_effect_not_recorded",
        f"{name} is {effect}: inside the body of another tool nothing would record that it ran, so it was not run. "
        "Only pure tools can be called here; in a resumable tool also once and idempotent ones, and resumable ones by "
        "themselves (ctx.tools.call, or in a program).",
    )
