"""Calls of tools as a runtime makes them."""

from perdure.codec import Json
from perdure.ids import CallId, SessionId, TurnId
from perdure.tools.context import NOT_GIVEN, CancelToken, ToolContext
from perdure.tools.decorator import AnyTool
from perdure.tools.execute import run_to_end
from perdure.tools.threads import ToolThreads
from perdure.tools.toolbox import Prepared, Toolbox
from perdure.vocab.messages import ToolCall
from perdure.vocab.outcomes import Failed, Failure, ToolOutput


def context(tool: str = "t", *, args: Json = None, deps: object = NOT_GIVEN, token: CancelToken | None = None):
    return ToolContext[object](
        session_id=SessionId("s1"),
        turn_id=TurnId("t1"),
        call_id=CallId("t1.1.0"),
        tool_name=tool,
        idempotency_key="key-1",
        args=args,
        given=deps,
        cancellation=token or CancelToken(),
    )


def prepared(one: AnyTool, **args: Json) -> Prepared:
    call = ToolCall(id=CallId("t1.1.0"), name=one.name, args=args)
    found = Toolbox([one]).prepare(call, one.contract)
    assert isinstance(found, Prepared), found
    return found


async def attempt(one: AnyTool, threads: ToolThreads, **args: Json) -> ToolOutput:
    return await run_to_end(prepared(one, **args), context(one.name, args=args), threads=threads)


def failure(output: ToolOutput) -> Failure:
    assert isinstance(output, Failed), output
    return output.failure
