"""The door is the only module that enters a tool body, and only a value that it makes can be entered."""

from __future__ import annotations

import ast
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

import perdure
from perdure.codec import Json
from perdure.services.background import BackgroundEventSink, BackgroundOutcome
from perdure.tools.context import ToolContext
from perdure.tools.decorator import tool
from perdure.tools.door import (
    AdmittedCall,
    AdmittedRun,
    Consent,
    RunAdmission,
    admit,
    admit_begun_run,
    admit_direct,
    admit_run,
)
from perdure.tools.execution_result import ToolResult
from perdure.tools.objects import BaseTool, as_tool
from perdure.tools.toolbox import Prepared
from perdure.vocab.outcomes import FailureDetail
from perdure.vocab.tools import Composition
from tests.unit.tools.calling import context, prepared

SOURCE = Path(perdure.__file__).parent

ENTRANCES = {
    "invoke",
    "function",
    "written_as",
    "execute",
    "execute_by_id",
    "execute_with_context",
    "execute_background",
}
"""The attributes through which a tool's body can be reached."""

INSIDE = {
    # The door.
    "tools/door.py AdmittedCall.enter: self.prepared.tool.invoke",
    "tools/door.py AdmittedCall.enter_in_background: executor.execute_background",
    "tools/door.py executor_of: tool.written_as",
    # The bodies themselves: what `invoke` runs, for each form of a tool.
    "tools/decorator.py Tool.invoke: self.function",
    "tools/objects.py as_tool.run: one.execute",
    "tools/objects.py as_tool.run: one.execute_with_context",
    "tools/objects.py BaseTool.execute_with_context: self.execute",
    "tools/builtin.py ReportProgressTool.execute_with_context: self.execute",
    "tools/provider.py ProvidedTool.invoke: self.provider.execute_by_id",
    "tools/provider.py ToolProvider.execute_by_id: self.execute",
    # `tool(...)` calls the plain function, for tests of an application. The other three only read its signature.
    "tools/decorator.py Tool.__call__: self.function",
    "tools/decorator.py Tool.__post_init__: self.function",
    "tools/decorator.py Tool.arguments: self.function",
    "tools/decorator.py Tool.is_async: self.function",
    # The test kit wraps `invoke` of an admitted call with a crash point.
    "testing/life.py _HookedToolbox._hooked: body.invoke",
    "testing/life.py _RestartedBody.invoke: self.tool.invoke",
    "testing/life.py _RestartedBody.invoke_async: self.tool.invoke",
}
OTHERS = {
    # Direct calls of a registry: each goes through `ToolRegistry._call`, and so through the door.
    "tools/registry.py ToolRegistry.execute_batch: self.execute",
    "tools/registry.py ToolRegistry.execute_parallel.one: self.execute",
    # Effects, functions of processes, and statements of a database: no tools.
    "runtime/calls/children.py DispatchClient._run: InlineController().execute",
    "tools/body.py Body._execute: self.controller.execute",
    "runtime/processes/function.py ProcessFunction.input_of: self.function",
    "runtime/processes/function.py ProcessFunction.run: self.function",
    "testing/life.py Home.clear: connection.execute",
}
MAKERS = {"AdmittedCall", "AdmittedRun", "_KEY"}


def uses(path: str, text: str) -> Iterator[str]:
    """Every use of an entrance in a module, by name or by the text of a name."""

    def walk(node: ast.AST, where: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            inner = where
            match child:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    inner = f"{where}.{child.name}".lstrip(".")
                case ast.Attribute(attr=attr, ctx=ast.Load()) if attr in ENTRANCES:
                    yield f"{path} {where}: {ast.unparse(child)}"
                case ast.Call(func=ast.Name(id="getattr") | ast.Attribute(attr="methodcaller" | "attrgetter")):
                    named = {one.value for one in child.args if isinstance(one, ast.Constant)}
                    yield from (f"{path} {where}: {ast.unparse(child)}" for _ in named & ENTRANCES)
                case _:
                    pass
            yield from walk(child, inner)

    yield from walk(ast.parse(text), "")


def sources() -> Iterator[tuple[str, str]]:
    for file in sorted(SOURCE.rglob("*.py")):
        path = file.relative_to(SOURCE).as_posix()
        if not path.startswith("store/"):  # there, `execute` is a statement
            yield path, file.read_text("utf-8")


def test_s1_t_tool_01_only_the_door_enters_a_tool_body() -> None:
    found = {use for path, text in sources() for use in uses(path, text)}
    assert found - INSIDE - OTHERS == set(), "a body is entered by `AdmittedCall.enter` only: perdure.tools.door"
    assert (INSIDE | OTHERS) - found == set(), "remove from the list what is gone"


SECOND_CALLERS = [
    "def run(tool, ctx):\n    return tool.invoke(ctx, {})",
    "class Eager:\n    start = lambda self, call: partial(call.tool.invoke, {})",
    "async def spawn(executor):\n    await executor.execute_background({}, None, None)",
    "def run(tool):\n    return getattr(tool, 'invoke')({})",
    "run = operator.methodcaller('execute_by_id', 'tool:x', {})",
    "def run(tool):\n    return tool.written_as.execute({})",
]


@pytest.mark.parametrize("text", SECOND_CALLERS)
def test_t_tool_01_second_caller_of_a_body_is_found(text: str) -> None:
    assert set(uses("runtime/elsewhere.py", text)) - INSIDE - OTHERS


def test_t_tool_01_only_the_door_makes_an_admitted_call() -> None:
    made: set[str] = set()
    for path, text in sources():
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in MAKERS:
                    made.add(path)
                case ast.ImportFrom(module="perdure.tools.door", names=names) if any(
                    one.name == "_KEY" for one in names
                ):
                    made.add(path)
                case _:
                    pass
    assert made == {"tools/door.py"}


@tool
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def never(_: object) -> bool:
    return False


asked_pay = tool(needs_approval=True)(pay.function)
declined_pay = tool(needs_approval=never)(pay.function)
client_pay = tool(client_side=True)(pay.function)


def composed(call: Prepared) -> Composition:
    return Composition(agent="a", model="m", tools=(call.contract,))


def code_of(found: object) -> str:
    return found.code if isinstance(found, FailureDetail) else "admitted"


def test_t_tool_01_admitted_call_cannot_be_forged() -> None:
    call = prepared(pay, cents=1)
    with pytest.raises(TypeError, match="only the door admits a call"):
        AdmittedCall(object(), call)
    admission = RunAdmission(agent="a", contract=call.contract, consent="given")
    with pytest.raises(TypeError, match="only the door admits a call"):
        AdmittedRun(None, "pay", {}, admission)


def test_t_tool_01_admitted_call_is_entered_once() -> None:
    found = admit_direct(prepared(pay, cents=1))
    assert isinstance(found, AdmittedCall)
    assert found.enter(context("pay")) == "paid 1"
    with pytest.raises(RuntimeError, match="entered twice"):
        found.enter(context("pay"))


POLICIES: list[tuple[Prepared, Consent, str]] = [
    (prepared(pay, cents=1), "not_needed", "admitted"),
    (prepared(asked_pay, cents=1), "not_needed", "approval_required"),
    (prepared(asked_pay, cents=1), "predicate_declined", "approval_required"),
    (prepared(asked_pay, cents=1), "given", "admitted"),
    (prepared(asked_pay, cents=1), "begun_before", "admitted"),
    (prepared(declined_pay, cents=1), "not_needed", "approval_required"),
    (prepared(declined_pay, cents=1), "predicate_declined", "admitted"),
    (prepared(client_pay, cents=1), "given", "pending_tool_not_supported_here"),
]


def run(call: Prepared) -> Prepared:
    """Return the call with the arguments of a background run, which are one object."""
    return replace(call, arguments={"arguments": call.arguments})


def admit_for_run(call: Prepared, turn: Composition, consent: Consent) -> object:
    return admit_run(run(call), turn, consent)


def admit_again(call: Prepared, turn: Composition, consent: Consent) -> object:
    [contract] = turn.tools
    return admit_begun_run(run(call), RunAdmission(agent="a", contract=contract, consent=consent))


ADMISSIONS = [admit, admit_for_run, admit_again]
Admission = Callable[[Prepared, Composition, Consent], object]


@pytest.mark.parametrize("admission", ADMISSIONS)
@pytest.mark.parametrize(("call", "consent", "expected"), POLICIES)
def test_s1_t_tool_01_door_applies_the_approval_policy(
    admission: Admission, call: Prepared, consent: Consent, expected: str
) -> None:
    assert code_of(admission(call, composed(call), consent)) == expected


@pytest.mark.parametrize("admission", ADMISSIONS)
def test_t_tool_02_door_admits_only_the_contracts_of_the_turn(admission: Admission) -> None:
    call = prepared(pay, cents=1)
    other = prepared(tool(description="Pay twice.")(pay.function), cents=1)
    assert code_of(admission(call, composed(other), "given")) == "tool_unavailable", "an older composition"


@pytest.mark.parametrize("admission", [admit, admit_for_run])
def test_t_tool_02_door_admits_nothing_to_a_turn_without_tools(admission: Admission) -> None:
    nothing = Composition(agent="a", model="m", tools=())
    assert code_of(admission(prepared(pay, cents=1), nothing, "given")) == "tool_unavailable"


CHECKED: Json = {"type": "object", "properties": {"to": {"type": "string", "pattern": "^[a-z]+$"}}}
OPEN: Json = {"type": "object"}


class Send(BaseTool):
    """Its schema can only be checked in a child process."""

    name = "send"
    description = "Send."
    parameters_schema = CHECKED

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.success("sent")


@pytest.mark.parametrize("admission", ADMISSIONS)
async def test_s1_door_refuses_arguments_that_were_not_checked(admission: Admission) -> None:
    send = as_tool(Send())
    call = prepared(send, to="bob")
    assert call.unchecked is not None
    assert code_of(admission(call, composed(call), "given")) == "invalid_tool_args"
    checked = await call.checked()
    assert isinstance(checked, Prepared)
    assert code_of(admission(checked, composed(call), "given")) == "admitted"
    refused = await prepared(send, to="BOB").checked()
    assert isinstance(refused, FailureDetail)


class Watcher(BaseTool):
    """It shows the type of its context."""

    name = "watcher"
    description = "Watch."
    parameters_schema = OPEN

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.success(None)

    async def execute_with_context(self, arguments: dict[str, Json], context: ToolContext[object]) -> ToolResult:
        return ToolResult.success(type(context).__name__)

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        return BackgroundOutcome(type(context).__name__)


NO_SINK = cast("BackgroundEventSink", None)


@pytest.mark.parametrize("seed", [True, False])
async def test_d4_d8_background_body_has_the_same_form_of_context(seed: bool) -> None:
    class Chosen(Watcher):
        seed_context = seed

    form = "SeedToolContext" if seed else "ToolContext"
    call = prepared(as_tool(Chosen()))
    entered = admit_direct(call)
    assert isinstance(entered, AdmittedCall)
    assert await cast("Awaitable[object]", entered.enter(context("watcher"))) == ToolResult.success(form)
    begun = admit_direct(call)
    assert isinstance(begun, AdmittedCall)
    assert (await begun.enter_in_background(context("watcher"), NO_SINK)).summary == form
