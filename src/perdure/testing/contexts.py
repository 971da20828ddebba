"""A tool's context without a runtime, to call a tool in a unit test."""

from __future__ import annotations

from typing import Any

from perdure.codec import Json
from perdure.effects import keys
from perdure.ids import DEFAULT_TENANT, CallId, SessionId, Tenant, TurnId
from perdure.tools.context import Cancellation, ToolContext
from perdure.tools.origin import NOT_GIVEN, CallOrigin
from perdure.tools.services import NO_SERVICES, Services


def tool_context(  # noqa: PLR0913 - independent options
    tool_name: str = "tool",
    *,
    args: Json = None,
    deps: object = NOT_GIVEN,
    session_id: str = "session",
    turn_id: str = "turn",
    call_id: str = "turn.1.0",
    tenant: str = DEFAULT_TENANT,
    attempt: int = 1,
    max_attempts: int = 1,
    idempotency_key: str | None = None,
    cancellation: Cancellation | None = None,
    services: Services = NO_SERVICES,
) -> ToolContext[Any]:
    """Return a context for one call of a tool: `await refund(tool_context(deps=desk), cents=5)`.

    Durable steps and waits need a runtime; they raise `durable_effects_unavailable`.
    """
    session, call = SessionId(session_id), CallId(call_id)
    derived = keys.tool_idempotency(Tenant(tenant), session, call, tool_name) if call else ""
    return ToolContext(
        session_id=session,
        turn_id=TurnId(turn_id),
        call_id=call,
        tool_name=tool_name,
        tenant=Tenant(tenant),
        attempt=attempt,
        max_attempts=max_attempts,
        idempotency_key=derived if idempotency_key is None else idempotency_key,
        args=args,
        cancellation=cancellation or Cancellation(),
        _call=CallOrigin(deps=deps, services=services),
    )
