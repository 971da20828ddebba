"""Replay keys and effect ids: the grammar that keeps an effect's identity across crashes and deploys.

Every component is escaped, so that no two tuples of names give one key. The tenant is part of every turn effect's key,
and the call id is part of a call's key. The idempotency key of a tool is the same for every attempt of its call.
"""

from __future__ import annotations

from perdure.ids import CallId, SessionId, Tenant, join
from perdure.vocab.effects import EffectKind, Invocation, Scope


def turn_effect(tenant: Tenant, scope: Scope, kind: EffectKind, n: int | str) -> str:
    """Return `{tenant}:{session}:{turn}:{turn_index}:{iteration}:{kind}:{n}`."""
    return join(
        tenant,
        scope.session_id,
        scope.turn_id or "",
        str(scope.turn_index or 0),
        str(scope.protocol_iteration or 0),
        kind.value,
        str(n),
    )


def child(parent: Invocation, *suffix: str) -> str:
    """Return `{parent key}:{suffix…}`, the key of an effect inside another one."""
    key = parent.replay_key or join(parent.effect_id or "effect")
    return f"{key}:{join(*suffix)}"


def tool_attempt(tenant: Tenant, scope: Scope, call: CallId, attempt: int) -> str:
    """Return the key of one attempt of one call."""
    return f"{turn_effect(tenant, scope, EffectKind.TOOL_CALL, call)}:attempt:{attempt}"


def tool_idempotency(tenant: Tenant, session: SessionId, call: CallId, tool: str) -> str:
    """Return the idempotency key that a tool passes on: the same for every attempt and after every restart."""
    return join("perdure-tool", tenant, session, call, tool)


def step(scope_id: str, call: CallId, step_id: str) -> str:
    """Return the key of a durable step of a tool body without a parent effect."""
    return join(scope_id, "tool", call, "durable-step", step_id)


def awaited_event(scope_id: str, call: CallId, key_id: str) -> str:
    """Return the key of a wait of a tool body without a parent effect."""
    return join(scope_id, "tool", call, "await-event", key_id)


def process_command(parent: Invocation | None, session: SessionId, effect_id: str) -> str:
    """Return `{parent key or session}:{effect id}`; the effect ids are those of `vocab.processes`."""
    return f"{(parent and parent.replay_key) or join(session)}:{join(effect_id)}"


def process_sleep(scope_id: str, sequence: int) -> str:
    """Return the key of the n-th sleep of a process body."""
    return join("process", scope_id, "sleep", str(sequence))


def process_signal_wait(process_id: str, name: str, ordinal: int) -> str:
    """Return the key of the wait for the n-th signal of a name."""
    return join("process", process_id, f"signal.{name}", "await", str(ordinal))


def process_signal(process_id: str, name: str, signal_id: str) -> str:
    """Return the key of the append of one signal."""
    return join("process", process_id, f"signal.{name}", signal_id)


def process_event(process_id: str, ordinal: int) -> str:
    """Return the key of the n-th event a process emits."""
    return join("process", process_id, "event", str(ordinal))


def process_terminal(process_id: str, event_type: str) -> str:
    """Return the key of the end of a process."""
    return join("process", process_id, "terminal", event_type)


def process_cancel_request(process_id: str, payload_digest: str) -> str:
    """Return the key of a request to cancel a process."""
    return join("process", process_id, "cancel_requested", payload_digest)


def tool_process_event(call: CallId, ordinal: int) -> str:
    """Return the key of the n-th process event a tool call emits, from 0."""
    return join("tool", call, "durable-process-event", str(ordinal))


def trigger_occurrence(occurrence_id: str) -> str:
    """Return the key of a trigger occurrence."""
    return join("trigger", occurrence_id)


def direct_completion(tenant: Tenant, scope: Scope, source: str, request_key: str) -> str:
    """Return the key of a model call outside the loop, from the caller's key or the digest of its content."""
    return join(tenant, scope.session_id, scope.turn_id or "", "direct", source, "request", request_key)
