"""Runs that another worker may resume, by the source document. See docs/contributing/seeds.md."""

from __future__ import annotations

from typing import cast

import pytest

from perdure import BaseTool, ToolContext, ToolError, ToolHints
from perdure.codec import Json
from perdure.compat.seeds import with_services
from perdure.services.background import BackgroundEventSink, BackgroundOutcome
from perdure.services.files.protocol import SessionFileSystem
from perdure.services.tasks import SessionTaskRegistry
from perdure.tools import ToolResult
from perdure.tools.background import reattach_background_run
from perdure.tools.registry import ToolRegistry
from tests.unit.tools.calling import context

ANY: Json = {"type": "object"}
FILES = cast("SessionFileSystem", object())
TASKS = cast("SessionTaskRegistry", object())


class Capable(BaseTool):
    """Runs in the background."""

    description = "capable"
    parameters_schema = ANY

    def __init__(self, name: str, hints: ToolHints) -> None:
        self.name = name
        self.hints = hints

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.tool_error("foreground unsupported")

    async def execute_background(
        self, arguments: dict[str, Json], context: ToolContext[object], sink: BackgroundEventSink
    ) -> BackgroundOutcome:
        return BackgroundOutcome("done")


READS = Capable("reads", ToolHints(supports_background=True, readonly=True))
AGAIN = Capable("again", ToolHints(supports_background=True, idempotent=True))
ONCE = Capable("once", ToolHints(supports_background=True))
REGISTRY = ToolRegistry.with_defaults()
for one in (READS, AGAIN, ONCE):
    REGISTRY.register(one)


def spec(tool: str = "reads", *, reattachable: bool = True) -> dict[str, Json]:
    return {"tool": tool, "arguments": {}, "reattachable": reattachable, "signal_on_completion": True}


def refusal(given: Json, ctx: ToolContext[object]) -> str:
    with pytest.raises(ToolError) as caught:
        reattach_background_run(given, ctx)
    assert caught.value.code == "orphaned"
    return str(caught.value)


def full() -> ToolContext[object]:
    return with_services(context("x"), tool_registry=REGISTRY, file_store=FILES, session_task_registry=TASKS)


def test_reattach_fails_with_missing_file_store() -> None:
    ctx = with_services(context("x"), tool_registry=REGISTRY, session_task_registry=TASKS)
    assert refusal(spec(), ctx) == "file store not available; cannot re-attach background run"


def test_reattach_fails_with_missing_task_registry() -> None:
    ctx = with_services(context("x"), tool_registry=REGISTRY, file_store=FILES)
    assert refusal(spec(), ctx) == "task registry not available; cannot re-attach background run"


def test_reattach_fails_with_unknown_tool_name() -> None:
    assert refusal(spec("test_background"), full()) == (
        "tool 'test_background' not found in registry; cannot re-attach"
    )


@pytest.mark.parametrize("given", [{"reattachable": True}, {"tool": "", "reattachable": True}, None])
def test_reattach_fails_with_missing_tool_spec_field(given: Json) -> None:
    assert refusal(given, full()) == "background_tool spec missing 'tool' field; cannot re-attach"


def test_reattach_fails_for_a_tool_that_does_not_run_in_the_background() -> None:
    assert refusal(spec("get_current_time"), full()) == (
        "tool 'get_current_time' does not support background execution; cannot re-attach"
    )


def test_reattach_is_declined_unless_the_tool_may_run_twice() -> None:
    declined = "tool 'once' is not idempotent or readonly; re-attach declined"
    assert refusal(spec("once"), full()) == declined, "whatever it was when it was spawned"
    assert refusal(spec("reads", reattachable=False), full()) == (
        "tool 'reads' is not idempotent or readonly; re-attach declined"
    ), "whatever it is now"


@pytest.mark.parametrize("tool", [READS, AGAIN])
def test_repeatable_run_is_reattached(tool: Capable) -> None:
    assert reattach_background_run(spec(tool.name), full()) is tool
