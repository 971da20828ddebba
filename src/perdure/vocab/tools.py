"""What a tool is, as data: its definition for the model and its durability for us. Both are captured per turn."""

from __future__ import annotations

from typing import Literal, TypeAlias

from perdure.codec import Json, digest
from perdure.vocab.wire import Value

EffectClass = Literal["pure", "idempotent", "once", "resumable"]
DoubtPolicy = Literal["tell", "probe", "ask"]
ToolPolicy = Literal["auto", "requires_approval", "client_side"]
DeferrablePolicy = Literal["never", "automatic", "always"]


class ToolHints(Value, frozen=True):
    """What a tool says of its behaviour. Absent means unknown, which is read conservatively."""

    readonly: bool | None = None
    idempotent: bool | None = None
    destructive: bool | None = None
    open_world: bool | None = None
    supports_background: bool | None = None
    concurrency_class: str | None = None
    requires_secrets: bool | None = None
    long_running: bool | None = None
    cpu_bound: bool | None = None
    persist_output: bool | None = None
    capability_id: str | None = None
    capability_name: str | None = None
    narration_noun: str | None = None
    metadata: Json = None


LONGEST_DELAY_MS = 7 * 24 * 3_600_000
"""Nobody waits longer than a week for an attempt, whatever a failure asks for."""


class RetryPolicy(Value, frozen=True):
    """When a failed attempt may be tried again, and how long to wait before it.

    `never`: not at all. `safe`: only a failure the tool itself declared safe to retry.
    `idempotent`: any failure of a call that may run twice (refused for a `once` tool).
    """

    kind: Literal["never", "safe", "idempotent"] = "never"
    max_attempts: int = 1
    base_delay_ms: int = 200
    max_delay_ms: int = 30_000

    def delay_ms(self, failed_attempts: int, after_ms: int | None) -> int:
        """Exponential from the base, capped; never earlier than the failure itself asked for."""
        backoff = min(self.base_delay_ms * 2 ** max(0, failed_attempts - 1), self.max_delay_ms)
        return min(max(backoff, after_ms or 0), LONGEST_DELAY_MS)


class Durability(Value, frozen=True):
    """The promises around a tool's execution."""

    effect: EffectClass = "once"
    doubt: DoubtPolicy = "tell"
    retry: RetryPolicy = RetryPolicy()
    timeout_ms: int | None = None
    serial: bool = False
    concurrency_class: str = ""
    approval_ms: int | None = None


class ToolDefinition(Value, frozen=True):
    """A tool as the model and a user interface see it."""

    name: str
    description: str
    parameters: Json
    display_name: str = ""
    kind: Literal["builtin", "client_side"] = "builtin"
    policy: ToolPolicy = "auto"
    category: str = ""
    deferrable: DeferrablePolicy = "automatic"
    hints: ToolHints = ToolHints()
    full_parameters: Json = None


class MaterializeProjectedValues(Value, frozen=True, tag="materialize_projected_values"):
    """Arguments that refer to a value are replaced by it before the tool sees them."""


class PreserveProjectedRefsInField(Value, frozen=True, tag="preserve_projected_refs_in_field"):
    """The same, except in this one field of the arguments, where the tool wants the references themselves."""

    field: str


ProjectionPolicy: TypeAlias = MaterializeProjectedValues | PreserveProjectedRefsInField
MATERIALIZE = MaterializeProjectedValues()


class ToolManifest(Value, frozen=True):
    """A tool in a list: everything that can be said of it without its schema. An `internal` one is not for callers."""

    name: str
    description: str = ""
    id: str = ""
    durability: Durability = Durability()
    hints: ToolHints = ToolHints()
    projection: ProjectionPolicy = MATERIALIZE
    activation: Literal["callable", "internal"] = "callable"

    @property
    def tool_id(self) -> str:
        """Its id: `tool:{name}` unless it says otherwise."""
        return self.id or f"tool:{self.name}"

    def contract(self, parameters: Json) -> ToolContract:
        """The contract that goes with it: the same promises, and the JSON schema of the arguments."""
        return ToolContract(
            definition=ToolDefinition(
                name=self.name, description=self.description, parameters=parameters, hints=self.hints
            ),
            durability=self.durability,
            id=self.id,
            projection=self.projection,
        )


class ToolContract(Value, frozen=True):
    """Definition and durability together: what a turn captures, so that a deploy cannot change it in flight.

    `returns` is the JSON schema of the result that a client posts, if it is checked. `predicate`: the tool's own code
    says which calls need a person's leave.
    """

    definition: ToolDefinition
    durability: Durability = Durability()
    id: str = ""
    projection: ProjectionPolicy = MATERIALIZE
    returns: Json = None
    predicate: bool = False

    @property
    def client_side(self) -> bool:
        """Whether its calls are run elsewhere, and never here."""
        return self.definition.policy == "client_side"

    @property
    def always_asks(self) -> bool:
        """Whether every call needs a person's leave."""
        return self.definition.policy == "requires_approval"

    @property
    def name(self) -> str:
        """The name the model calls it by."""
        return self.definition.name

    @property
    def tool_id(self) -> str:
        """Its id: `tool:{name}` unless it says otherwise."""
        return self.id or f"tool:{self.name}"

    @property
    def manifest(self) -> ToolManifest:
        """The contract without its schema."""
        told = self.definition
        return ToolManifest(
            name=told.name,
            description=told.description,
            id=self.id,
            durability=self.durability,
            hints=told.hints,
            projection=self.projection,
        )

    @property
    def arguments_digest(self) -> str:
        """Changes exactly when the accepted arguments change."""
        return digest(self.definition.parameters)


class Composition(Value, frozen=True):
    """Everything of an agent that a turn depends on. Stored once per content, referenced by hash.

    `output` is the name and the JSON schema of what a final reply must be, if it must be anything; `asked`: whoever
    sent the input wants it so, and the schema alone is the judge.
    """

    agent: str
    model: str
    instructions: str = ""
    tools: tuple[ToolContract, ...] = ()
    settings: Json = None
    output: Json = None
    asked: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The tools, by name: what the model is shown."""
        return tuple(contract.name for contract in self.tools)

    def tool(self, name: str) -> ToolContract | None:
        """The captured contract of a tool, if the turn had one."""
        return next((contract for contract in self.tools if contract.name == name), None)
