"""Calls of tools as a runtime makes them."""

from perdure.codec import Json
from perdure.ids import CallId
from perdure.testing import tool_context
from perdure.tools.context import Cancellation, ToolContext
from perdure.tools.decorator import AnyTool
from perdure.tools.door import AdmittedCall, admit_direct
from perdure.tools.execute import run_to_end
from perdure.tools.origin import NOT_GIVEN
from perdure.tools.threads import ToolThreads
from perdure.tools.toolbox import Prepared, Toolbox
from perdure.vocab.messages import ToolCall
from perdure.vocab.outcomes import Failed, FailureDetail, ToolOutput


def context(
    tool: str = "t", *, args: Json = None, deps: object = NOT_GIVEN, token: Cancellation | None = None
) -> ToolContext[object]:
    return tool_context(
        tool,
        args=args,
        deps=deps,
        session_id="s1",
        turn_id="t1",
        call_id="t1.1.0",
        idempotency_key="key-1",
        cancellation=token,
    )


def prepared(one: AnyTool, **args: Json) -> Prepared:
    call = ToolCall(id=CallId("t1.1.0"), name=one.name, args=args)
    found = Toolbox([one]).prepare(call, one.contract)
    assert isinstance(found, Prepared), found
    return found


def admitted(call: Prepared) -> AdmittedCall:
    found = admit_direct(call)
    assert isinstance(found, AdmittedCall), found
    return found


async def attempt(one: AnyTool, threads: ToolThreads, **args: Json) -> ToolOutput:
    return await run_to_end(admitted(prepared(one, **args)), context(one.name, args=args), threads=threads)


def failure(output: ToolOutput) -> FailureDetail:
    assert isinstance(output, Failed), output
    return output.failure
