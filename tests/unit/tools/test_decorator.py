import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.tools.context import ToolContext
from perdure.tools.decorator import Tool, ToolOptions, tool
from perdure.tools.verdicts import CannotTell, Verdict
from perdure.vocab.tools import EffectClass, RetryPolicy, ToolHints


def probe(ctx: ToolContext) -> Verdict:
    return CannotTell()


def plain(city: str) -> str:
    """Look a city up."""
    return f"{city}!"


def refused(options: ToolOptions) -> Error:
    with pytest.raises(Error) as caught:
        tool(**options)(plain)
    assert "plain" in caught.value.message
    return caught.value


def test_a_tool_can_be_called_like_its_function() -> None:
    decorated = tool(plain)
    assert decorated("Rome") == "Rome!"
    assert (decorated.name, decorated.description) == ("plain", "Look a city up.")
    assert decorated.__doc__ == plain.__doc__


async def test_an_async_tool_too() -> None:
    @tool
    async def look(city: str) -> str:
        return city

    assert await look("Rome") == "Rome"
    assert look.is_async


def test_a_tool_that_says_nothing_is_once() -> None:
    durability = tool(plain).durability
    assert (durability.effect, durability.doubt, durability.retry) == ("once", "tell", RetryPolicy())
    assert durability.timeout_ms is None


@pytest.mark.parametrize(
    ("hints", "effect"),
    [
        (ToolHints(readonly=True), "pure"),
        (ToolHints(idempotent=True), "idempotent"),
        (ToolHints(readonly=True, idempotent=True), "pure"),
        (ToolHints(readonly=False, idempotent=False), "once"),
        (ToolHints(), "once"),
    ],
)
def test_hints_decide_the_class_if_nothing_else_does(hints: ToolHints, effect: EffectClass) -> None:
    assert tool(hints=hints)(plain).durability.effect == effect
    assert tool(hints=hints, effect="once")(plain).durability.effect == "once"


def test_the_class_completes_the_hints() -> None:
    assert tool(effect="pure")(plain).hints == ToolHints(readonly=True)
    assert tool(effect="idempotent")(plain).contract.definition.hints == ToolHints(idempotent=True)
    assert tool(plain).hints == ToolHints()


def test_names_and_descriptions_can_be_given() -> None:
    named = tool(name="look-up_2", description="Short.")(plain)
    assert (named.name, named.description) == ("look-up_2", "Short.")
    assert tool(description="")(plain).description == ""


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "é", "a.b", "a\n"])
def test_names_a_provider_would_refuse_are_refused(name: str) -> None:
    with pytest.raises(Error) as caught:
        tool(name=name)(plain)
    assert caught.value.code is Code.TOOL_INVALID


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(Error, match="name"):
        tool(cast("Callable[[], int]", lambda: 1))
    assert tool(name="one")(lambda: 1).name == "one"


def test_off_is_not_a_request() -> None:
    tool(needs_approval=False, client_side=False)(plain)


def test_approval_and_doubt_settings_are_in_the_contract() -> None:
    assert tool(needs_approval=True)(plain).contract.definition.policy == "requires_approval"
    assert tool(needs_approval=False)(plain).contract.definition.policy == "auto"
    decorated = tool(needs_approval=bool, approval_timeout="1h")(plain)
    assert (decorated.needs_approval, decorated.durability.approval_ms) == (bool, 3_600_000)
    assert tool(in_doubt="ask")(plain).durability.doubt == "ask"


def test_an_approval_that_makes_no_sense_is_refused() -> None:
    never: Any = "never"
    assert refused(ToolOptions(needs_approval=never)).code is Code.TOOL_INVALID
    assert refused(ToolOptions(approval_timeout="soon")).code is Code.TOOL_INVALID
    assert refused(ToolOptions(in_doubt="ask", effect="idempotent")).code is Code.TOOL_INVALID
    assert refused(ToolOptions(in_doubt="ask", probe=probe)).code is Code.TOOL_INVALID


def test_a_probe_makes_the_doubt_policy_probe() -> None:
    decorated = tool(probe=probe)(plain)
    assert decorated.durability.doubt == "probe"
    assert decorated.probe is probe
    assert tool(probe=probe, in_doubt="probe")(plain).durability.doubt == "probe"


@pytest.mark.parametrize(
    "options",
    [
        ToolOptions(effect="pure", probe=probe),
        ToolOptions(effect="idempotent", probe=probe),
        ToolOptions(hints=ToolHints(readonly=True), probe=probe),
        ToolOptions(in_doubt="probe"),
        ToolOptions(in_doubt="tell", probe=probe),
        ToolOptions(retries=RetryPolicy(kind="idempotent", max_attempts=2)),
        ToolOptions(retries=RetryPolicy(kind="safe", max_attempts=0)),
        ToolOptions(retries=-1),
        ToolOptions(retries=True),
        ToolOptions(retries=cast("int", 1.5)),
        ToolOptions(timeout=0),
        ToolOptions(timeout=-1),
        ToolOptions(timeout=float("nan")),
        ToolOptions(timeout=float("inf")),
        ToolOptions(timeout=True),
        ToolOptions(timeout="soon"),
        ToolOptions(timeout="5 parsecs"),
        ToolOptions(effect=cast("EffectClass", "twice")),
        ToolOptions(probe=cast("Callable[[ToolContext], Verdict]", "ask")),
    ],
)
def test_promises_that_contradict_each_other_are_refused(options: ToolOptions) -> None:
    assert refused(options).code is Code.TOOL_INVALID


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="retires"):
        tool(**cast("ToolOptions", {"retires": 1}))


@pytest.mark.parametrize(
    ("effect", "retries", "policy"),
    [
        ("pure", 2, RetryPolicy(kind="idempotent", max_attempts=3)),
        ("idempotent", 1, RetryPolicy(kind="idempotent", max_attempts=2)),
        ("once", 2, RetryPolicy(kind="safe", max_attempts=3)),
        ("once", 0, RetryPolicy()),
        ("once", RetryPolicy(kind="safe", max_attempts=4, base_delay_ms=1), None),
        ("pure", RetryPolicy(kind="idempotent", max_attempts=4), None),
    ],
)
def test_retries_are_as_strong_as_the_class_allows(
    effect: EffectClass, retries: int | RetryPolicy, policy: RetryPolicy | None
) -> None:
    assert tool(effect=effect, retries=retries)(plain).durability.retry == (policy or retries)


@pytest.mark.parametrize(
    ("timeout", "ms"),
    [(30, 30_000), (0.5, 500), ("30s", 30_000), ("2m", 120_000), ("500ms", 500), ("1.5s", 1500), ("1h", 3_600_000)],
)
def test_timeouts_are_written_as_people_write_them(timeout: float | str, ms: int) -> None:
    assert tool(timeout=timeout)(plain).durability.timeout_ms == ms


def test_scheduling_is_part_of_the_promises() -> None:
    durability = tool(sequential=True, concurrency_group="files")(plain).durability
    assert (durability.serial, durability.concurrency_class) == (True, "files")
    hinted = tool(hints=ToolHints(concurrency_class="sql"))(plain)
    assert hinted.durability.concurrency_class == "sql"


def takes_any(*args: str) -> None: ...
def takes_all(**kwargs: str) -> None: ...
def takes_unnamed(a: str, /) -> None: ...
def takes_untyped(a: str, b=1) -> None: ...  # pyright: ignore[reportMissingParameterType]
def takes_context_last(a: str, ctx=1) -> None: ...  # pyright: ignore[reportMissingParameterType]


class Desk:
    def method(self, a: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "parameter"),
    [
        (takes_any, "args"),
        (takes_all, "kwargs"),
        (takes_unnamed, "a"),
        (takes_untyped, "b"),
        (takes_context_last, "ctx"),
        (Desk.method, "self"),
    ],
)
def test_a_parameter_a_model_cannot_give_is_named(function: Callable[..., None], parameter: str) -> None:
    with pytest.raises(Error) as caught:
        tool(function)
    assert caught.value.code is Code.TOOL_INVALID
    assert caught.value.details["parameter"] == parameter
    assert parameter in caught.value.message


def test_a_bound_method_is_a_function() -> None:
    bound = tool(Desk().method)
    assert bound.contract.definition.parameters["required"] == ["a"]


def yields(a: str) -> Iterator[str]:
    yield a


async def yields_async(a: str) -> AsyncIterator[str]:
    yield a


@pytest.mark.parametrize("thing", [yields, yields_async, Desk, functools.partial(plain), 7, None])
def test_only_functions_that_return_can_be_tools(thing: object) -> None:
    with pytest.raises(Error) as caught:
        tool(name="x")(cast("Callable[..., object]", thing))
    assert caught.value.code is Code.TOOL_INVALID


def test_the_contract_is_made_once() -> None:
    decorated: Tool[[str], str] = tool(plain)
    assert decorated.contract is decorated.contract
    assert decorated.contract.durability is decorated.durability
    parameters: Json = decorated.contract.definition.parameters
    assert parameters["properties"] == {"city": {"type": "string"}}
