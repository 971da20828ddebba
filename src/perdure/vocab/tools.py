"""Tool contracts as data: the definition for the model and the durability. A turn captures both."""

from __future__ import annotations

from typing import Literal, TypeAlias

from perdure.codec import Json, digest
from perdure.vocab.wire import Value

EffectClass = Literal["pure", "idempotent", "once", "resumable"]
DoubtPolicy = Literal["tell", "probe", "ask"]
ToolPolicy = Literal["auto", "requires_approval", "client_side"]
DeferrablePolicy = Literal["never", "automatic", "always"]


class ToolHints(Value, frozen=True):
    """A tool's claims about its behaviour. An absent hint means unknown and is read conservatively."""

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
"""Upper bound of the delay before an attempt (one week), even if a failure requests more."""


class RetryPolicy(Value, frozen=True):
    """When a failed attempt may be retried, and after which delay.

    `never`: not at all. `safe`: only after a failure that the tool declared safe to retry. `idempotent`: after any
    failure of a call that may run twice (refused for a `once` tool).
    """

    kind: Literal["never", "safe", "idempotent"] = "never"
    max_attempts: int = 1
    base_delay_ms: int = 200
    max_delay_ms: int = 30_000

    def delay_ms(self, failed_attempts: int, after_ms: int | None) -> int:
        """Return the exponential backoff, capped, and at least the delay that the failure requested."""
        backoff = min(self.base_delay_ms * 2 ** max(0, failed_attempts - 1), self.max_delay_ms)
        return min(max(backoff, after_ms or 0), LONGEST_DELAY_MS)


class Durability(Value, frozen=True):
    """The durability of a tool's execution: effect class, doubt policy, retries and limits."""

    effect: EffectClass = "once"
    doubt: DoubtPolicy = "tell"
    retry: RetryPolicy = RetryPolicy()
    timeout_ms: int | None = None
    serial: bool = False
    concurrency_class: str = ""
    approval_ms: int | None = None


class ToolDefinition(Value, frozen=True):
    """A tool as the model and user interfaces see it."""

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
    """Arguments that refer to a value are replaced by it before the tool runs."""


class PreserveProjectedRefsInField(Value, frozen=True, tag="preserve_projected_refs_in_field"):
    """References in arguments are replaced by their values, except in one field that the tool receives as given."""

    field: str


ProjectionPolicy: TypeAlias = MaterializeProjectedValues | PreserveProjectedRefsInField
MATERIALIZE = MaterializeProjectedValues()


class ToolManifest(Value, frozen=True):
    """A tool in a list: its contract without the schema. An `internal` one is hidden from callers."""

    name: str
    description: str = ""
    id: str = ""
    durability: Durability = Durability()
    hints: ToolHints = ToolHints()
    projection: ProjectionPolicy = MATERIALIZE
    activation: Literal["callable", "internal"] = "callable"

    @property
    def tool_id(self) -> str:
        """The explicit id, or `tool:{name}`."""
        return self.id or f"tool:{self.name}"

    def contract(self, parameters: Json) -> ToolContract:
        """Return the contract with this JSON schema of the arguments."""
        return ToolContract(
            definition=ToolDefinition(
                name=self.name, description=self.description, parameters=parameters, hints=self.hints
            ),
            durability=self.durability,
            id=self.id,
            projection=self.projection,
        )


class ToolContract(Value, frozen=True):
    """Definition and durability of a tool. A turn captures it, so that a deploy cannot change it in flight.

    `returns` is the JSON schema of the result that a client posts, if it is validated. `predicate`: code of the tool
    decides which calls need approval.
    """

    definition: ToolDefinition
    durability: Durability = Durability()
    id: str = ""
    projection: ProjectionPolicy = MATERIALIZE
    returns: Json = None
    predicate: bool = False

    @property
    def client_side(self) -> bool:
        """True if the client runs the calls."""
        return self.definition.policy == "client_side"

    @property
    def always_asks(self) -> bool:
        """True if every call needs approval."""
        return self.definition.policy == "requires_approval"

    @property
    def name(self) -> str:
        """The name by which the model calls the tool."""
        return self.definition.name

    @property
    def tool_id(self) -> str:
        """The explicit id, or `tool:{name}`."""
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
        """A digest that changes exactly when the accepted arguments change."""
        return digest(self.definition.parameters)

    @property
    def digest(self) -> str:
        """A digest that changes exactly when the contract changes."""
        return digest(self)


class Composition(Value, frozen=True):
    """Everything of an agent that a turn depends on. Stored once per content, referenced by hash.

    `output` is the name and the JSON schema that a final reply must match, if any. `asked`: the sender of the input set
    it, so only the schema is checked.
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
        """The names of the tools, as the model sees them."""
        return tuple(contract.name for contract in self.tools)

    def tool(self, name: str) -> ToolContract | None:
        """Return the captured contract of a tool, or None."""
        return next((contract for contract in self.tools if contract.name == name), None)
