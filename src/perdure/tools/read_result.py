"""The tool by which a model reads on in a result that was too long to be shown. Offered only while there is one."""

from __future__ import annotations

from perdure.codec import Json
from perdure.ids import CallId
from perdure.tools.ceiling import READ_RESULT, page
from perdure.tools.context import ToolContext
from perdure.tools.decorator import tool
from perdure.tools.errors import ToolError


@tool(effect="pure", name=READ_RESULT, display_name="Read Result")
async def read_result(ctx: ToolContext[object], call: str, offset: int = 0) -> Json:
    """Read on in the result of an earlier call that was too long to be shown whole.

    Args:
        call: The call, as its shortened result names it.
        offset: Where to begin: the `next_offset` of the part before.
    """
    whole = await ctx.result_reader.read(CallId(call))
    if whole is None:
        raise ToolError(f"no longer result of a call {call!r} is kept in this session", code="result_unknown")
    if offset < 0 or offset >= len(whole):
        raise ToolError(f"the result of that call ends at byte {len(whole)}", code="offset_out_of_range")
    return page(whole, offset, CallId(call))
