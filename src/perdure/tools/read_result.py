"""The tool `read_result`: reads the rest of a truncated result. Offered only if one exists."""

from __future__ import annotations

from perdure.codec import Json
from perdure.ids import CallId
from perdure.tools.context import ToolContext
from perdure.tools.decorator import tool
from perdure.tools.errors import ToolError
from perdure.tools.result_truncation import READ_RESULT, page


@tool(effect="pure", name=READ_RESULT, title="Read Result")
async def read_result(ctx: ToolContext[object], call: str, offset: int = 0) -> Json:
    """Read the next part of an earlier result that was too long to show completely.

    Args:
        call: The call id in the truncated result.
        offset: Where to begin: the `next_offset` of the part before.
    """
    whole = await ctx.messages.result(call)
    if whole is None:
        raise ToolError(f"no stored result for call {call!r}", code="result_unknown")
    if offset < 0 or offset >= len(whole):
        raise ToolError(f"the result of that call ends at byte {len(whole)}", code="offset_out_of_range")
    return page(whole, offset, CallId(call))
