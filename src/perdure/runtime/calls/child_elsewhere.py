"""Calls that a body makes of tools that are run elsewhere: by the client of the session, or by asking its person.

Laws: the same as for calls of the model. Nothing is dispatched, so nothing can be in doubt; the call waits under its
own id until somebody posts a result or its time is over, and the first answer stands.
"""

from __future__ import annotations

from perdure.effects.controller import Begun, Care
from perdure.effects.promises import unsigned_key
from perdure.runtime.calls.child_leave import People
from perdure.tools.body import Body
from perdure.tools.nested import left_to_client
from perdure.tools.toolbox import Prepared
from perdure.vocab.effects import AwaitEvent, PreparedToolCall
from perdure.vocab.outcomes import AwaitEventOutcome, ToolOutput
from perdure.vocab.promises import ClientResult, UserAnswer
from perdure.vocab.questions import questions_of, silence


async def elsewhere(people: People, body: Body, step: str, call: PreparedToolCall, prepared: Prepared) -> ToolOutput:
    """How a call ended that is run elsewhere; `call` has the id under which it is posted."""
    asked = questions_of(call.args) if getattr(prepared.tool, "asks_person", False) else ()
    wait = UserAnswer(call_id=call.call_id) if asked else ClientResult(call_id=call.call_id)
    key = unsigned_key(body.place.scope_id, wait)
    timeout = prepared.durability.timeout_ms
    due_at = people.clock.wall_ms() + timeout if timeout else None
    care = Care(effect="pure", record_start=True, due_at=due_at)
    begun = body.open_part("client", step, AwaitEvent(key=key, about=call), care)
    if isinstance(begun, Begun):
        await body.controller.ledger.durable()  # nobody can answer what is not there
        resolution = await body.answer_to(key, begun.care.due_at, silence(asked))
        body.close_part(begun, AwaitEventOutcome(resolution=resolution))
    output = left_to_client(body.outcome_of, step)
    assert output is not None
    return output
