"""Process registrations: input, recovery, provenance, event types and outputs."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from perdure.codec import Json
from perdure.ids import SessionId
from perdure.vocab.causes import CausalRef
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.processes import SessionScope
from perdure.vocab.wire import Value

Recovery = Literal["rerunnable", "owner_bound", "externally_owned"]
"""Recovery of a process whose worker is gone.

`rerunnable`: any worker continues it. `owner_bound`: no other worker does; it can only be abandoned.
`externally_owned`: Perdure never executes it.
"""

Ending = Literal["completed", "failed", "cancelled", "abandoned"]


class ToolCallInput(Value, frozen=True, tag="tool_call"):
    """A tool call that outlives its turn."""

    call: PreparedToolCall


class EngineInput(Value, frozen=True, tag="engine"):
    """Input of an engine of this kind. The engine defines the payload."""

    kind: str
    payload: Json = None


class SessionTurnInput(Value, frozen=True, tag="session_turn"):
    """A turn of a session created for the process."""

    create_request: Json
    turn_input: Json
    output_contract: Json = None


class ExternalInput(Value, frozen=True, tag="external"):
    """External work; only its events are stored here."""

    metadata: Json = None


ProcessInput: TypeAlias = ToolCallInput | EngineInput | SessionTurnInput | ExternalInput


# --- events -----------------------------------------------------------------------------------------------------


class WholePayload(Value, frozen=True, tag="payload"):
    """Selects the whole payload."""


class Pointer(Value, frozen=True, tag="pointer"):
    """Selects the part of the payload at a JSON pointer; null if there is none."""

    path: str


class Constant(Value, frozen=True, tag="const"):
    """Selects a constant."""

    value: Json = None


class Template(Value, frozen=True, tag="template"):
    """A text with `{name}` placeholders, each filled by the selector of that name."""

    text: str
    fields: dict[str, Selector] = msgspec.field(default_factory=dict[str, "Selector"])


class Present(Value, frozen=True, tag="present"):
    """True if the payload has a value at a JSON pointer."""

    path: str


Selector: TypeAlias = WholePayload | Pointer | Constant | Template | Present


class WakeSpec(Value, frozen=True):
    """An event that wakes the target session with `input`, unless `when` selects false, empty or null."""

    input: Selector = WholePayload()
    when: Selector | None = None


class Semantics(Value, frozen=True):
    """The meaning of an event: the end of the process (`terminal` with `output`), or a wake of the target session."""

    terminal: Ending | None = None
    output: Selector | None = None
    wake: WakeSpec | None = None


class EventType(Value, frozen=True):
    """A declared event of a process. Without a schema, any payload is valid."""

    name: str
    payload_schema: Json = None
    semantics: Semantics = Semantics()


# --- registration -----------------------------------------------------------------------------------------------


class Provenance(Value, frozen=True):
    """Origin of a process: owning session (None: the application), parent process, and cause."""

    originator: SessionScope | None = None
    parent: str = ""
    caused_by: CausalRef | None = None


class Registration(Value, frozen=True):
    """A process as requested. Two registrations are the same if all fields are equal.

    `definition` names the code that runs it; workers announce the definitions they know. `env` refers to the captured
    execution environment. Events with wake semantics go to `wake_target`; with `wake_on_end` the end does too.
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

    @property
    def session(self) -> SessionId | None:
        """The session that started the process, or None."""
        by = self.provenance.originator
        return None if by is None else SessionId(by.session_id)


# --- how a process ends -----------------------------------------------------------------------------------------


class ProcessSucceeded(Value, frozen=True, tag="success", tag_field="status"):
    """The process returned a value."""

    value: Json = None


class ProcessFailure(Value, frozen=True, tag="failure", tag_field="status"):
    """The process failed, with a code and a message."""

    code: str
    message: str
    failure_class: str = "internal"
    raw: Json = None


class ProcessWasCancelled(Value, frozen=True, tag="cancelled", tag_field="status"):
    """The process ended after a cancel request."""

    reason: str = ""


class ProcessWasAbandoned(Value, frozen=True, tag="abandoned", tag_field="status"):
    """The process was abandoned: its worker is gone and its progress is unknown."""

    reason: str = ""
    by: str = ""


ProcessOutput: TypeAlias = ProcessSucceeded | ProcessFailure | ProcessWasCancelled | ProcessWasAbandoned
