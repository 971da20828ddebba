"""The scope of a body (a tool call's or a process's) and the names of its parts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perdure.effects.promises import ProcessScope, TurnScope
from perdure.ids import CallId, EffectId, SessionId, join
from perdure.vocab.causes import CausalRef, ProcessCause, ToolCallCause
from perdure.vocab.effects import Scope
from perdure.vocab.refs import PROCESS_BODY, PartKind, call_body, inner_body, part_id


@dataclass(frozen=True, slots=True)
class BodyScope:
    """The scope of a body.

    `called` is its name in errors, and `scope_id` the scope of its promises. Part ids begin with `body`, replay keys
    with `key_begins`. `inner` is true for a nested body.
    """

    called: str
    call: CallId
    scope_id: str
    effect_scope: Scope
    cause: CausalRef
    body: str
    key_begins: str
    in_batch: bool = False
    inner: bool = False

    def part(self, kind: PartKind, name: str) -> EffectId:
        """Return the id of one part of the body."""
        return part_id(self.body, kind, name)

    def key(self, *names: str) -> str:
        """Return the replay key of one part of the body."""
        return f"{self.key_begins}:{join(*names)}"


def call_place(scope: TurnScope, turn_index: int, iteration: int, index: int, call: CallId, tool: str) -> BodyScope:
    """Return the scope of a tool call's body."""
    effect_scope = Scope(
        session_id=scope.session, turn_id=scope.turn, turn_index=turn_index, protocol_iteration=iteration
    )
    return BodyScope(
        called=f"the tool {tool}",
        call=call,
        scope_id=scope.id,
        effect_scope=effect_scope,
        cause=ToolCallCause(session_id=scope.session, call_id=call),
        body=call_body(iteration, index),
        key_begins=join(scope.id, "tool", call),
    )


def inner_place(above: BodyScope, session: SessionId, step: str, call: CallId, tool: str) -> BodyScope:
    """Return the scope of a body that is a step of another one."""
    return replace(
        above,
        called=f"the tool {tool}",
        call=call,
        cause=ToolCallCause(session_id=session, call_id=call),
        body=inner_body(above.body, step),
        key_begins=join(above.scope_id, "tool", call),
        inner=True,
    )


def process_place(scope: ProcessScope) -> BodyScope:
    """Return the scope of a process's body."""
    return BodyScope(
        called=f"the process {scope.process}",
        call=CallId(scope.process),
        scope_id=scope.id,
        effect_scope=Scope(session_id=join("process", scope.process)),
        cause=ProcessCause(process_id=scope.process),
        body=PROCESS_BODY,
        key_begins=join("process", scope.tenant, scope.process),
    )
