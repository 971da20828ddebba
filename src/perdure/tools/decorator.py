"""`@tool`: a function and its promises, as something an agent can be given. Whatever is not supported is refused."""

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
from perdure.tools.narration import Narrator, Phase, Templates, narration
from perdure.tools.schema import Arguments, RawArguments, arguments_of, check_signature, result_schema, try_hints
from perdure.tools.verdicts import Verdict
from perdure.vocab.messages import ToolCall
from perdure.vocab.outcomes import Failure
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

if TYPE_CHECKING:  # so that a bare `Tool` is complete to a type checker; at run time it needs no defaults
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
"""Whether a call needs a person's leave: a function of its checked arguments, by name, and of the context if it takes
two. Whatever else it gives or raises is a yes."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolOptions(TypedDict, total=False):
    """The knobs of `@tool`. Most tools need `effect` at most."""

    effect: EffectClass | None
    """What a crash may do to a call: `once` (default, never re-run blindly), `idempotent` or `pure` (run again), or
    `resumable` (a body of recorded steps, entered again)."""
    probe: Probe | None
    """For a `once` tool: asks the outside system whether a call in doubt happened."""
    retries: int | RetryPolicy | None
    """How often a failed call is tried again; that of a `once` tool only after a failure it declared retry-safe."""
    timeout: float | str | None
    """Seconds, or `500ms`, `30s`, `2m`. A `once` call that runs into it is in doubt."""
    serial: bool
    """Run after the parallel calls of a reply, one at a time."""
    concurrency_class: str
    """Calls of one class never overlap."""
    name: str | None
    description: str | None
    display_name: str
    """What a person reads instead of the name."""
    category: str
    deferrable: DeferrablePolicy
    """Whether the schema may be left out until the model asks for it, once there are many tools."""
    narrate: Narrator | Templates | None
    """How a call is described to people: sentences by language and phase, or a function that makes them."""
    hints: ToolHints | None
    in_doubt: DoubtPolicy | None
    approve: bool | Literal["policy"] | Approve | None
    """Whether a person must allow a call before it runs: always, if a function of the arguments (and the context) says
    so, or by `policy`: unless the hints say that it only reads, or neither destroys nor reaches outside."""
    approval_timeout: float | str | None
    """How long an approval may take, and holds: a day unless said. Silence never approves."""
    client_side: bool
    """The client runs it, not this process: the function is only its signature, and what it returns is checked."""
    args_schema: Json | type[object]
    """A pydantic model instead of the hints, or a JSON schema to show instead of the derived one."""


@dataclass(eq=False)
class Tool(Generic[P, R_co]):
    """A function an agent may call. Calling it directly is calling the function."""

    function: Callable[P, R_co]
    name: str
    description: str
    durability: Durability
    hints: ToolHints = field(default_factory=ToolHints)
    probe: Probe | None = None
    approve: Approve | None = None
    args_schema: Json | type[object] = None
    display_name: str = ""
    category: str = ""
    policy: ToolPolicy = "auto"
    deferrable: DeferrablePolicy = "automatic"
    narrator: Narrator | Templates | None = field(default=None, repr=False)
    accepts: RawArguments | None = field(default=None, repr=False)
    """Arguments that the tool checks itself, instead of those read from the function."""
    resolved: Mapping[str, object] | None = field(default=None, repr=False)
    """The function's annotations, if they could be resolved where it was defined."""
    returns: Json = None
    """The JSON schema of what a client posts; left out, it follows from the function's own annotation."""
    asks_person: bool = False
    """Whether its calls are questions to a person."""
    written_as: object = field(default=None, repr=False)
    """The object it was written as, if it was not written as a function."""

    def __post_init__(self) -> None:
        functools.update_wrapper(cast("Callable[P, R_co]", self), self.function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function itself: nothing is checked, recorded or retried."""
        return self.function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    @functools.cached_property
    def arguments(self) -> Arguments | RawArguments:
        """The accepted arguments; read from the function on first use.

        Raises:
            Error: `tool_invalid` if they have no JSON schema.
        """
        if self.accepts is not None:
            return self.accepts
        return arguments_of(self.function, self.name, hints=self.resolved, schema=self.args_schema)

    @property
    def contract(self) -> ToolContract:
        """What a turn captures of this tool."""
        return self._contract

    @functools.cached_property
    def _contract(self) -> ToolContract:
        returns = self._returns if self.policy == "client_side" else None
        return ToolContract(
            definition=self.to_definition(),
            durability=self.durability,
            returns=returns,
            predicate=self.approve is not None,
        )

    @property
    def _returns(self) -> Json:
        annotation = (self.resolved or {}).get("return")
        if self.returns is not None or annotation in (None, type(None), object):
            return self.returns
        return result_schema(annotation, self.name)

    def to_definition(self) -> ToolDefinition:
        """The tool as a model and a user interface see it."""
        return ToolDefinition(
            name=self.name,
            description=self.description,
            parameters=self.arguments.parameters,
            display_name=self.display_name,
            kind="client_side" if self.policy == "client_side" else "builtin",
            policy=self.policy,
            category=self.category,
            deferrable=self.deferrable,
            hints=self.hints,
        )

    def narrate(self, call: ToolCall, phase: Phase, locale: str | None = None) -> str:
        """One sentence for people about a call of this tool. Arguments that look like secrets are never in it."""
        noun = self.hints.narration_noun or self.display_name or self.name
        return narration(call, phase, locale, noun=noun, own=self.narrator)

    def invoke(self, ctx: ToolContext[object], arguments: Mapping[str, object]) -> object:
        """Call the function with checked arguments, and with its context if it takes one."""
        given = dict(arguments)
        if self.arguments.context is not None:
            given[self.arguments.context] = ctx
        return cast("Callable[..., object]", self.function)(**given)

    def bind(self, args: Json) -> dict[str, object] | Failure:
        """Check and convert a model's arguments; a `Failure` says what is wrong with them."""
        return self.arguments.bind(args)


AnyTool: TypeAlias = Tool[..., object]


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None, /, **options: Unpack[ToolOptions]
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a function a tool: its hints and docstring are the schema, the options are its promises.

    Raises:
        Error: `tool_invalid` for a promise or signature that makes no sense.
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
    # Annotations that are strings may name classes of an enclosing function, which are gone when it has returned.
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
    """A tool that checks its own arguments: `function` takes the context as `ctx`, and all of them as `arguments`.

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
    asked: ToolPolicy = "requires_approval" if _always_asked(hints, effect, options.get("approve")) else "auto"
    policy: ToolPolicy = "client_side" if options.get("client_side") else asked
    return Tool(
        function=function,
        name=name,
        description=described if description is None else description,
        durability=_durability(name, effect, hints, options),
        hints=_told(hints, effect),
        probe=options.get("probe"),
        approve=_predicate(name, options.get("approve")),
        args_schema=options.get("args_schema"),
        display_name=options.get("display_name", ""),
        category=options.get("category", ""),
        policy=policy,
        deferrable=_deferrable(name, options.get("deferrable", "automatic")),
        narrator=options.get("narrate"),
        accepts=accepts,
        resolved=resolved,
    )


# --- what is refused --------------------------------------------------------------------------------------------


def _invalid(tool: str, message: str, *, because: str = "", hint: str = "") -> Error:
    return Error(Code.TOOL_INVALID, f"the tool {tool}: {message}", because=because, hint=hint, tool=tool)


def _check_client_side(name: str, options: ToolOptions) -> None:
    """What this process cannot do for a tool that it does not run."""
    if not options.get("client_side"):
        return
    for option in ("probe", "retries", "in_doubt", "approve", "serial", "concurrency_class"):
        if options.get(option):
            raise _invalid(
                name,
                f"{option}= is not for client_side tools",
                because="the client runs it, when and as it likes",
                hint="leave it out",
            )


def _name(own: str, given: str | None, function: Callable[..., object]) -> str:
    name = given if given is not None else own
    if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a caller gives
        raise _invalid(
            repr(name or function),
            "its name cannot be used",
            because="names are 1 to 64 of A-Z a-z 0-9 _ -",
            hint='give it one: @tool(name="...")',
        )
    return name


def _check_function(function: Callable[..., object], name: str) -> None:
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        because = f"it is {type(function).__name__}"
        raise _invalid(
            name, "only functions can be tools", because=because, hint="wrap it: a def with hints that calls it"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _invalid(name, "it yields", because="a call has one result", hint="return a list")


# --- promises ---------------------------------------------------------------------------------------------------


def _effect(hints: ToolHints) -> EffectClass:
    # Guessing anything weaker than `once` is how refunds happen twice.
    return "pure" if hints.readonly else "idempotent" if hints.idempotent else "once"


def _told(hints: ToolHints, effect: EffectClass) -> ToolHints:
    """Hints for others, completed by what the class says."""
    if effect == "pure" and hints.readonly is None:
        return msgspec.structs.replace(hints, readonly=True)
    if effect == "idempotent" and hints.idempotent is None:
        return msgspec.structs.replace(hints, idempotent=True)
    return hints


def _durability(name: str, effect: EffectClass, hints: ToolHints, options: ToolOptions) -> Durability:
    if effect not in get_args(EffectClass):
        raise _invalid(
            name, f"effect={effect!r} does not exist", hint='use "once", "idempotent", "pure" or "resumable"'
        )
    return Durability(
        effect=effect,
        doubt=_doubt(name, effect, options),
        retry=_retry(name, effect, options.get("retries")),
        timeout_ms=_duration_ms(name, "timeout", options.get("timeout")),
        serial=options.get("serial", False),
        concurrency_class=options.get("concurrency_class") or hints.concurrency_class or "",
        approval_ms=_duration_ms(name, "approval_timeout", options.get("approval_timeout")),
    )


def _deferrable(name: str, policy: DeferrablePolicy) -> DeferrablePolicy:
    if policy not in get_args(DeferrablePolicy):
        raise _invalid(name, f"deferrable={policy!r} does not exist", hint='use "automatic", "never" or "always"')
    return policy


def _check_resumable(name: str, function: Callable[..., object], options: ToolOptions) -> None:
    if not inspect.iscoroutinefunction(function):
        raise _invalid(
            name, "a resumable tool must be async", because="it waits through its context", hint="write `async def`"
        )
    if options.get("timeout") is not None:
        raise _invalid(
            name,
            "a resumable tool has no timeout",
            because="it may wait for days",
            hint="give one to what it waits for: ctx.event(name, timeout=...)",
        )


def _doubt(name: str, effect: EffectClass, options: ToolOptions) -> DoubtPolicy:
    probe, wanted = options.get("probe"), options.get("in_doubt")
    if wanted not in (None, *get_args(DoubtPolicy)):
        raise _invalid(name, f"in_doubt={wanted!r} does not exist", hint='use "tell", "probe" or "ask"')
    if wanted == "ask" and effect != "once":
        because = f"a {effect} call is simply run again"
        raise _invalid(name, 'in_doubt="ask" is for once tools', because=because, hint='leave it out, or effect="once"')
    if probe is None:
        if wanted == "probe":
            raise _invalid(name, 'in_doubt="probe" needs a probe', hint="pass probe=, a function of the ToolContext")
        return wanted or "tell"
    if effect != "once":
        because = f"a {effect} call is simply run again"
        raise _invalid(name, "probe= is for once tools", because=because, hint='leave it out, or say effect="once"')
    if wanted in ("tell", "ask"):
        raise _invalid(name, f'in_doubt="{wanted}" would never use the probe', hint="leave one of them out")
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
                because="that would run a call again without knowing whether it took effect",
                hint='use kind="safe" and raise ToolError(..., retry_safe=True), or say effect="idempotent"',
            )
        if retries.max_attempts < 1:
            raise _invalid(name, f"max_attempts={retries.max_attempts} does not allow a single attempt")
        return retries
    if type(retries) is not int or retries < 0:
        raise _invalid(name, f"retries={retries!r} is not a number of retries", hint="use 0, 1, 2, … or a RetryPolicy")
    if retries == 0:
        return RetryPolicy()
    return RetryPolicy(kind="safe" if effect == "once" else "idempotent", max_attempts=retries + 1)


def _duration_ms(name: str, option: str, given: float | str | None) -> int | None:
    if given is None:
        return None
    ms = to_ms(given)
    if ms is None:
        raise _invalid(name, f"{option}={given!r} is not a duration", hint='use seconds, or "500ms", "30s", "2m"')
    return ms


def _predicate(name: str, approve: bool | Literal["policy"] | Approve | None) -> Approve | None:
    if approve is None or isinstance(approve, bool) or approve == "policy":
        return None
    if not callable(approve):
        raise _invalid(
            name, f"approve={approve!r} does not exist", hint='use True, a function of the arguments, or "policy"'
        )
    return approve


def _always_asked(hints: ToolHints, effect: EffectClass, approve: object) -> bool:
    """Whether every call needs leave. What a tool does not say of itself is read conservatively."""
    if approve != "policy":
        return approve is True
    harmless = hints.destructive is False and hints.open_world is False
    return not (hints.readonly or effect == "pure" or harmless)
