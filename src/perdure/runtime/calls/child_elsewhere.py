"""Client-side calls made by a body: run by the session's client, or answered by its user.

Laws: the same as for calls of the model. Nothing is dispatched, so no such call can be in doubt. The call waits under
its own id until a result is posted or its time is over. The first answer wins.
"""

from __future__ import annotations

from perdure.effects.controller import Begun, DispatchPolicy
from perdure.effects.promises import unsigned_key
from perdure.runtime.calls.child_leave import ChildApprovals
from perdure.tools.body import Body
from perdure.tools.nested import left_to_client
from perdure.tools.toolbox import Prepared
from perdure.vocab.effects import AwaitEvent, PreparedToolCall
from perdure.vocab.outcomes import AwaitEventOutcome, ToolOutput
from perdure.vocab.promises import ClientResult, UserAnswer
from perdure.vocab.questions import questions_of, silence


async def elsewhere(
    people: ChildApprovals, body: Body, step: str, call: PreparedToolCall, prepared: Prepared
) -> ToolOutput:
    """Return the output of a client-side call, whose result is posted under the id of `call`."""
    asked = questions_of(call.args) if getattr(prepared.tool, "asks_person", False) else ()
    wait = UserAnswer(call_id=call.call_id) if asked else ClientResult(call_id=call.call_id)
    key = unsigned_key(body.place.scope_id, wait)
    timeout = prepared.durability.timeout_ms
    due_at = people.clock.wall_ms() + timeout if timeout else None
    policy = DispatchPolicy(effect="pure", record_start=True, due_at=due_at)
    begun = body.open_part("client", step, AwaitEvent(key=key, about=call), policy)
    if isinstance(begun, Begun):
        await body.controller.ledger.durable()  # the promise must be durable before it can be answered
        resolution = await body.answer_to(key, begun.policy.due_at, silence(asked))
        body.close_part(begun, AwaitEventOutcome(resolution=resolution))
    output = left_to_client(body.outcome_of, step)
    assert output is not None
    return output
