"""The decorator `@tool`: a function with its durability, as an agent's tool. Unsupported options are rejected."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypedDict, Unpack, cast, get_args, overload

import msgspec

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.tools.context import ToolContext
from perdure.tools.docstring import explain
from perdure.tools.durations import to_ms
from perdure.tools.json_schema import SchemaCheck
from perdure.tools.narration import Narrator, Phase, Templates, narration
from perdure.tools.schema import (
    Arguments,
    RawArguments,
    WideArguments,
    arguments_of,
    check_signature,
    result_schema,
    try_hints,
)
from perdure.tools.verdicts import Verdict
from perdure.vocab.messages import ToolCall
from perdure.vocab.outcomes import FailureDetail
from perdure.vocab.tools import (
    DeferrablePolicy,
    DoubtPolicy,
    Durability,
    EffectClass,
    RetryPolicy,
    ToolContract,
    ToolDefinition,
    ToolHints,
    ToolPolicy,
)

if TYPE_CHECKING:  # type checkers see a complete bare `Tool`; no defaults are needed at run time
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=object)
    R_co = TypeVar("R_co", covariant=True, default=object)
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")
    R_co = TypeVar("R_co", covariant=True)

Probe: TypeAlias = Callable[[ToolContext], Verdict | Awaitable[Verdict]]

Approve: TypeAlias = Callable[..., bool | Awaitable[bool]]
"""Approval predicate: a function of the checked arguments by name, and of the context if it takes two parameters.

Any result except False, and any exception, requires approval.
"""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolOptions(TypedDict, total=False):
    """The options of `@tool`. Most tools need at most `effect`."""

    effect: EffectClass | None
    """Behaviour after a crash: `once` (default, never re-run blindly), `idempotent` or `pure` (run again), or
    `resumable` (a body of recorded steps, re-entered)."""
    probe: Probe | None
    """For a `once` tool: checks in the external system whether a call in doubt happened."""
    retries: int | RetryPolicy | None
    """Number of retries after a failure. A `once` call is retried only after a failure declared retry-safe."""
    timeout: float | str | None
    """Seconds, or `500ms`, `30s`, `2m`. A `once` call that exceeds it is in doubt."""
    sequential: bool
    """Run after the parallel calls of a reply, one at a time."""
    concurrency_group: str
    """Calls of the same group never overlap."""
    name: str | None
    """Name that the model calls. Default: the function's name."""
    description: str | None
    """Text that the model reads. Default: the docstring, without its sections."""
    title: str
    """Name shown to people."""
    category: str
    """Group of tools, shown to people."""
    defer_loading: DeferrablePolicy
    """Whether the schema may be omitted until the model requests it, in a large toolbox."""
    narrate: Narrator | Templates | None
    """Descriptions of a call for people: sentences by language and phase, or a function that returns them."""
    hints: ToolHints | None
    """Claims about the tool's behaviour: `readonly`, `destructive`, `idempotent`, `open_world` and others."""
    in_doubt: DoubtPolicy | None
    """For a `once` call in doubt: `tell` the model that the outcome is unknown (default), `ask` a person, or `probe`
    the external system (always, with a probe)."""
    needs_approval: bool | Literal["policy"] | Approve | None
    """Whether a call needs approval: always, by a function of the arguments (and the context), or by `"policy"`.

    With `"policy"`, no approval is needed if the hints declare the tool read-only, or neither destructive nor
    open-world.
    """
    approval_timeout: float | str | None
    """Maximum time for a decision, and its validity. Default: one day. A missing decision never approves."""
    client_side: bool
    """The client runs the tool, not this process. The function is only a signature; posted results are checked."""
    args_schema: Json | type[object]
    """A pydantic model that replaces the type hints, or a JSON schema that replaces the derived one."""


@dataclass(eq=False)
class Tool(Generic[P, R_co]):
    """A function that an agent may call. Calling the object directly calls the function."""

    function: Callable[P, R_co]
    name: str
    description: str
    durability: Durability
    hints: ToolHints = field(default_factory=ToolHints)
    probe: Probe | None = None
    needs_approval: Approve | None = None
    args_schema: Json | type[object] = None
    title: str = ""
    category: str = ""
    policy: ToolPolicy = "auto"
    defer_loading: DeferrablePolicy = "automatic"
    narrator: Narrator | Templates | None = field(default=None, repr=False)
    accepts: RawArguments | None = field(default=None, repr=False)
    """Arguments with a check of their own, in place of those derived from the function."""
    resolved: Mapping[str, object] | None = field(default=None, repr=False)
    """The function's annotations, if resolvable where it was defined."""
    returns: Json = None
    """JSON schema of a client's result. By default it is derived from the return annotation."""
    asks_person: bool = False
    """True if a call is a question to a person."""
    written_as: object = field(default=None, repr=False)
    """The original object of a tool that was not written as a function."""

    def __post_init__(self) -> None:
        functools.update_wrapper(cast("Callable[P, R_co]", self), self.function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function without checks, records or retries."""
        return self.function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """True if the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    @functools.cached_property
    def arguments(self) -> Arguments | RawArguments:
        """The accepted arguments, derived from the function on first use.

        Raises:
            Error: `tool_invalid` if they have no JSON schema.
        """
        if self.accepts is not None:
            return self.accepts
        return arguments_of(self.function, self.name, hints=self.resolved, schema=self.args_schema)

    @property
    def contract(self) -> ToolContract:
        """The contract that a turn captures."""
        return self._contract

    @functools.cached_property
    def _contract(self) -> ToolContract:
        returns = self._returns if self.policy == "client_side" else None
        return ToolContract(
            definition=self.to_definition(),
            durability=self.durability,
            returns=returns,
            predicate=self.needs_approval is not None,
        )

    @property
    def _returns(self) -> Json:
        annotation = (self.resolved or {}).get("return")
        if self.returns is not None or annotation in (None, type(None), object):
            return self.returns
        return result_schema(annotation, self.name)

    def to_definition(self) -> ToolDefinition:
        """Return the definition shown to models and user interfaces."""
        return ToolDefinition(
            name=self.name,
            description=self.description,
            parameters=self.arguments.parameters,
            display_name=self.title,
            kind="client_side" if self.policy == "client_side" else "builtin",
            policy=self.policy,
            category=self.category,
            deferrable=self.defer_loading,
            hints=self.hints,
        )

    def narrate(self, call: ToolCall, phase: Phase, locale: str | None = None) -> str:
        """Return one sentence about a call, for people. Arguments that look like secrets are omitted."""
        noun = self.hints.narration_noun or self.title or self.name
        return narration(call, phase, locale, noun=noun, own=self.narrator)

    def invoke(self, ctx: ToolContext[object], arguments: Mapping[str, object]) -> object:
        """Call the function with checked arguments, and with the context if it takes one."""
        given = dict(arguments)
        if self.arguments.context is not None:
            given[self.arguments.context] = ctx
        return cast("Callable[..., object]", self.function)(**given)

    def bind(self, args: Json) -> dict[str, object] | FailureDetail:
        """Check and convert a model's arguments, or return a `Failure` that explains the problem."""
        return self.arguments.bind(args)

    def unchecked(self, args: Json) -> SchemaCheck | WideArguments | None:
        """Return the check of arguments that `bind` leaves to a child process or a thread, or None."""
        return self.arguments.unchecked(args)


AnyTool: TypeAlias = Tool[..., object]


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None, /, **options: Unpack[ToolOptions]
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Turn a function into a tool. Type hints and docstring give the schema, options the durability.

    Raises:
        Error: `tool_invalid` for an invalid option or signature.
    """
    unknown = sorted(set(options) - set(ToolOptions.__annotations__))
    if unknown:
        raise TypeError(f"tool() got an unexpected keyword argument {unknown[0]!r}")
    if function is not None:
        return _make(function, options, _names_around(function, inspect.currentframe()))

    def decorate(function: Callable[P, R]) -> Tool[P, R]:
        return _make(function, options, _names_around(function, inspect.currentframe()))

    return decorate


def _names_around(function: Callable[..., object], frame: object) -> Mapping[str, object]:
    # String annotations may name local classes of an enclosing function, unreachable after it has returned.
    caller = getattr(frame, "f_back", None)
    nested = "<locals>" in getattr(function, "__qualname__", "")
    return dict(caller.f_locals) if caller is not None and nested else {}


def _make(function: Callable[P, R], options: ToolOptions, around: Mapping[str, object]) -> Tool[P, R]:
    name = _name(getattr(function, "__name__", ""), options.get("name"), function)
    schema = options.get("args_schema")
    _check_function(function, name)
    _check_client_side(name, options)
    check_signature(function, name, typed_elsewhere=isinstance(schema, type))
    described = explain(inspect.getdoc(function)).description
    return _assemble(function, name, described, options, resolved=try_hints(function, around))


def raw_tool(
    function: Callable[P, R], name: str, accepts: RawArguments, /, **options: Unpack[ToolOptions]
) -> Tool[P, R]:
    """Return a tool that checks its own arguments: `function` takes `ctx` and all `arguments`.

    Raises:
        Error: as `tool`.
    """
    _check_client_side(_name(name, None, function), options)
    return _assemble(function, name, "", options, accepts=accepts)


def _assemble(
    function: Callable[P, R],
    name: str,
    described: str,
    options: ToolOptions,
    *,
    resolved: Mapping[str, object] | None = None,
    accepts: RawArguments | None = None,
) -> Tool[P, R]:
    hints = options.get("hints") or ToolHints()
    effect = options.get("effect") or _effect(hints)
    if effect == "resumable":
        _check_resumable(name, function, options)
    description = options.get("description")
    asked: ToolPolicy = "requires_approval" if _always_asked(hints, effect, options.get("needs_approval")) else "auto"
    policy: ToolPolicy = "client_side" if options.get("client_side") else asked
    return Tool(
        function=function,
        name=name,
        description=described if description is None else description,
        durability=_durability(name, effect, hints, options),
        hints=_completed_hints(hints, effect),
        probe=options.get("probe"),
        needs_approval=_predicate(name, options.get("needs_approval")),
        args_schema=options.get("args_schema"),
        title=options.get("title", ""),
        category=options.get("category", ""),
        policy=policy,
        defer_loading=_deferrable(name, options.get("defer_loading", "automatic")),
        narrator=options.get("narrate"),
        accepts=accepts,
        resolved=resolved,
    )


# --- rejected options -------------------------------------------------------------------------------------------


def _invalid(tool: str, message: str, *, because: str = "", hint: str = "") -> Error:
    return Error(Code.TOOL_INVALID, f"the tool {tool}: {message}", because=because, hint=hint, tool=tool)


def _check_client_side(name: str, options: ToolOptions) -> None:
    """Reject options that have no effect on a tool that the client runs."""
    if not options.get("client_side"):
        return
    for option in ("probe", "retries", "in_doubt", "needs_approval", "sequential", "concurrency_group"):
        if options.get(option):
            raise _invalid(
                name,
                f"{option}= is not for client_side tools",
                because="the client runs the tool",
                hint="remove it",
            )


def _name(own: str, given: str | None, function: Callable[..., object]) -> str:
    name = given if given is not None else own
    if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance] - callers pass any type
        raise _invalid(
            repr(name or function),
            "invalid name",
            because="a name has 1 to 64 characters of A-Z a-z 0-9 _ -",
            hint='@tool(name="...")',
        )
    return name


def _check_function(function: Callable[..., object], name: str) -> None:
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        because = f"this is a {type(function).__name__}"
        raise _invalid(
            name, "only functions can be tools", because=because, hint="wrap it in a function with type hints"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _invalid(name, "generators are not supported", because="a call has one result", hint="return a list")


# --- durability -------------------------------------------------------------------------------------------------


def _effect(hints: ToolHints) -> EffectClass:
    # A weaker guess than `once` would repeat refunds.
    return "pure" if hints.readonly else "idempotent" if hints.idempotent else "once"


def _completed_hints(hints: ToolHints, effect: EffectClass) -> ToolHints:
    """Complete the hints with those implied by the effect class."""
    if effect == "pure" and hints.readonly is None:
        return msgspec.structs.replace(hints, readonly=True)
    if effect == "idempotent" and hints.idempotent is None:
        return msgspec.structs.replace(hints, idempotent=True)
    return hints


def _durability(name: str, effect: EffectClass, hints: ToolHints, options: ToolOptions) -> Durability:
    if effect not in get_args(EffectClass):
        raise _invalid(name, f"unknown effect {effect!r}", hint='use "once", "idempotent", "pure" or "resumable"')
    return Durability(
        effect=effect,
        doubt=_doubt(name, effect, options),
        retry=_retry(name, effect, options.get("retries")),
        timeout_ms=_duration_ms(name, "timeout", options.get("timeout")),
        serial=options.get("sequential", False),
        concurrency_class=options.get("concurrency_group") or hints.concurrency_class or "",
        approval_ms=_duration_ms(name, "approval_timeout", options.get("approval_timeout")),
    )


def _deferrable(name: str, policy: DeferrablePolicy) -> DeferrablePolicy:
    if policy not in get_args(DeferrablePolicy):
        raise _invalid(name, f"unknown deferrable policy {policy!r}", hint='use "automatic", "never" or "always"')
    return policy


def _check_resumable(name: str, function: Callable[..., object], options: ToolOptions) -> None:
    if not inspect.iscoroutinefunction(function):
        raise _invalid(name, "a resumable tool must be async", because="waits are coroutines", hint="write `async def`")
    if options.get("timeout") is not None:
        raise _invalid(
            name,
            "timeout= is not for resumable tools",
            because="a body may wait for days",
            hint="give the wait a timeout: ctx.wait_for_event(name, timeout=...)",
        )


def _doubt(name: str, effect: EffectClass, options: ToolOptions) -> DoubtPolicy:
    probe, wanted = options.get("probe"), options.get("in_doubt")
    if wanted not in (None, *get_args(DoubtPolicy)):
        raise _invalid(name, f"unknown in_doubt policy {wanted!r}", hint='use "tell", "probe" or "ask"')
    if wanted == "ask" and effect != "once":
        because = f"a {effect} call is simply run again"
        raise _invalid(name, 'in_doubt="ask" is for once tools', because=because, hint='leave it out, or effect="once"')
    if probe is None:
        if wanted == "probe":
            raise _invalid(name, 'in_doubt="probe" needs a probe', hint="pass probe=, a function of the ToolContext")
        return wanted or "tell"
    if effect != "once":
        because = f"a {effect} call is simply run again"
        raise _invalid(name, "probe= is for once tools", because=because, hint='remove it, or use effect="once"')
    if wanted in ("tell", "ask"):
        raise _invalid(name, f'in_doubt="{wanted}" would never use the probe', hint="remove one of them")
    if not callable(probe):
        raise _invalid(name, "probe= is not a function", hint="pass a function of the ToolContext")
    return "probe"


def _retry(name: str, effect: EffectClass, retries: int | RetryPolicy | None) -> RetryPolicy:
    if retries is None:
        return RetryPolicy()
    if isinstance(retries, RetryPolicy):
        if retries.kind == "idempotent" and effect == "once":
            raise _invalid(
                name,
                'a once tool cannot have the retry policy "idempotent"',
                because="a call that may have taken effect would run again",
                hint='use kind="safe" and raise ToolError(..., retry_safe=True), or effect="idempotent"',
            )
        if retries.max_attempts < 1:
            raise _invalid(name, f"max_attempts must be >= 1, not {retries.max_attempts}")
        return retries
    if type(retries) is not int or retries < 0:
        raise _invalid(name, f"retries must be an integer >= 0 or a RetryPolicy, not {retries!r}", hint="retries=2")
    if retries == 0:
        return RetryPolicy()
    return RetryPolicy(kind="safe" if effect == "once" else "idempotent", max_attempts=retries + 1)


def _duration_ms(name: str, option: str, given: float | str | None) -> int | None:
    if given is None:
        return None
    ms = to_ms(given)
    if ms is None:
        raise _invalid(name, f"invalid duration {option}={given!r}", hint='use seconds, or "500ms", "30s", "2m"')
    return ms


def _predicate(name: str, approve: bool | Literal["policy"] | Approve | None) -> Approve | None:
    if approve is None or isinstance(approve, bool) or approve == "policy":
        return None
    if not callable(approve):
        raise _invalid(
            name, f"unknown approve policy {approve!r}", hint='use True, a function of the arguments, or "policy"'
        )
    return approve


def _always_asked(hints: ToolHints, effect: EffectClass, approve: object) -> bool:
    """Return True if every call needs approval. Missing hints count as harmful."""
    if approve != "policy":
        return approve is True
    harmless = hints.destructive is False and hints.open_world is False
    return not (hints.readonly or effect == "pure" or harmless)
