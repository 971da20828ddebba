"""What a process is before it runs: its input, who recovers it, where it came from, and which events it may have."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from perdure.codec import Json
from perdure.vocab.causes import CausalRef
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.processes import SessionScope
from perdure.vocab.wire import Value

Recovery = Literal["rerunnable", "owner_bound", "externally_owned"]
"""Who may go on with a process whose worker is gone: any other one, nobody (it is abandoned on request), or it is never
executed here at all."""

Ending = Literal["completed", "failed", "cancelled", "abandoned"]


class ToolCallInput(Value, frozen=True, tag="tool_call"):
    """A tool call that outlives its turn."""

    call: PreparedToolCall


class EngineInput(Value, frozen=True, tag="engine"):
    """Something that an engine of this kind runs; what, is the engine's business."""

    kind: str
    payload: Json = None


class SessionTurnInput(Value, frozen=True, tag="session_turn"):
    """A turn of a session that is made for it."""

    create_request: Json
    turn_input: Json
    output_contract: Json = None


class ExternalInput(Value, frozen=True, tag="external"):
    """Work that is done outside; only its events are kept here."""

    metadata: Json = None


ProcessInput: TypeAlias = ToolCallInput | EngineInput | SessionTurnInput | ExternalInput


# --- events -----------------------------------------------------------------------------------------------------


class WholePayload(Value, frozen=True, tag="payload"):
    """The payload itself."""


class Pointer(Value, frozen=True, tag="pointer"):
    """The part of the payload that a JSON pointer names; null if there is none."""

    path: str


class Constant(Value, frozen=True, tag="const"):
    """Always the same."""

    value: Json = None


class Template(Value, frozen=True, tag="template"):
    """A text with `{name}` in it, each filled in by the selector of that name."""

    text: str
    fields: dict[str, Selector] = msgspec.field(default_factory=dict[str, "Selector"])


class Present(Value, frozen=True, tag="present"):
    """Whether the payload has something at a JSON pointer."""

    path: str


Selector: TypeAlias = WholePayload | Pointer | Constant | Template | Present


class WakeSpec(Value, frozen=True):
    """An event that wakes the target session: what it is told, if `when` is not false, empty or null."""

    input: Selector = WholePayload()
    when: Selector | None = None


class Semantics(Value, frozen=True):
    """What an event means: that the process has ended (`terminal`, with an `output` for whoever awaits it), or that its
    target session is woken."""

    terminal: Ending | None = None
    output: Selector | None = None
    wake: WakeSpec | None = None


class EventType(Value, frozen=True):
    """An event that a process may have. Without a schema, any payload will do."""

    name: str
    payload_schema: Json = None
    semantics: Semantics = Semantics()


# --- registration -----------------------------------------------------------------------------------------------


class Provenance(Value, frozen=True):
    """Where a process came from: the session that it belongs to (None: the application itself), the process that
    started it, and what caused it."""

    originator: SessionScope | None = None
    parent: str = ""
    caused_by: CausalRef | None = None


class Registration(Value, frozen=True):
    """A process as it was asked for. What makes two of them the same is all of this.

    `definition` names the code that runs it, as workers say which they know. `env` refers to the captured execution
    environment. Events with wake semantics go to `wake_target`, and with `wake_on_end` its end does too.
    """

    process_id: str
    definition: str
    input: ProcessInput
    recovery: Recovery
    env: str = ""
    event_types: tuple[EventType, ...] = ()
    provenance: Provenance = Provenance()
    wake_target: SessionScope | None = None
    wake_on_end: bool = False
    kind: str = ""
    label: str = ""


# --- how a process ends -----------------------------------------------------------------------------------------


class Succeeded(Value, frozen=True, tag="success", tag_field="status"):
    """It returned."""

    value: Json = None


class ProcessFailure(Value, frozen=True, tag="failure", tag_field="status"):
    """It failed, and says how."""

    code: str
    message: str
    failure_class: str = "internal"
    raw: Json = None


class ProcessWasCancelled(Value, frozen=True, tag="cancelled", tag_field="status"):
    """It was asked to end, and did."""

    reason: str = ""


class ProcessWasAbandoned(Value, frozen=True, tag="abandoned", tag_field="status"):
    """Nobody will go on with it, and nobody knows how far it came."""

    reason: str = ""
    by: str = ""


ProcessOutput: TypeAlias = Succeeded | ProcessFailure | ProcessWasCancelled | ProcessWasAbandoned
