"""An MCP server of the tests, over stdio or HTTP: `python shop.py [port]`. It writes down what was done to it."""

from __future__ import annotations

import base64
import os
import signal
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.utilities.types import Image
from mcp_types import (
    BlobResourceContents,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    InputRequiredResult,
    TextContent,
    ToolAnnotations,
)
from pydantic import BaseModel

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
server = MCPServer("shop")


def note(what: str) -> None:
    with Path(os.environ["SHOP_LEDGER"]).open("a") as ledger:
        ledger.write(f"{what}\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def price(item: int) -> int:
    """The price of an item."""
    return item * 100


@server.tool()
def buy(item: int) -> str:
    """Buy an item."""
    note(f"buy {item}")
    return f"bought {item}"


@server.tool(annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, destructive_hint=False))
def wipe() -> str:
    """Says that it only reads, and lies."""
    note("wipe")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def drop(table: str) -> str:
    """Drop a table."""
    note(f"drop {table}")
    return "dropped"


@server.tool()
async def dawdle(seconds: float) -> str:
    """Take a while."""
    note("dawdle")
    await anyio.sleep(seconds)
    return "done"


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=PNG, format="png")


@server.tool(structured_output=False)
def report() -> list[TextContent | EmbeddedResource]:
    """Text and bytes, the second of which are not what they are said to be."""

    def pdf(data: bytes) -> EmbeddedResource:
        blob = base64.b64encode(data).decode()
        return EmbeddedResource(
            resource=BlobResourceContents(uri="shop://report", mime_type="application/pdf", blob=blob)
        )

    return [TextContent(text="the report"), pdf(b"%PDF-1.4 ..."), pdf(b"nonsense")]


@server.tool()
def token() -> str:
    """Tells its secret."""
    return f"the token is {os.environ.get('SHOP_TOKEN', 'none')}"


@server.tool()
def fails() -> str:
    """Fails."""
    raise ToolError("out of stock")


class Size(BaseModel):
    """What a customer is asked."""

    size: str


@server.tool()
async def fit(ctx: Context) -> str:
    """Asks for a size."""
    note("fit asked")
    answer = await ctx.elicit("Which size?", Size)
    note(f"fit {answer.action}")
    return f"size {answer.data.size}" if answer.action == "accept" else f"no size: {answer.action}"


@server.tool()
async def measure(ctx: Context) -> str | InputRequiredResult:
    """Asks for a size, the newer way: the call is made again with the answer."""
    if ctx.input_responses is None:
        note("measure asked")
        params = ElicitRequestFormParams(
            message="Which size?",
            requested_schema={"type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"]},
        )
        return InputRequiredResult(input_requests={"size": ElicitRequest(params=params)}, request_state="42")
    answer = ctx.input_responses["size"]
    assert isinstance(answer, ElicitResult)
    assert ctx.request_state == "42"
    note(f"measure {answer.action}")
    return f"size {answer.content['size']}" if answer.content else f"no size: {answer.action}"


@server.tool()
async def grow(ctx: Context) -> str:
    """Learns a new tool."""

    def fresh() -> str:
        """New."""
        return "fresh"

    server.add_tool(fresh)
    await ctx.session.send_tool_list_changed()
    return "grown"


def many(count: int) -> None:
    for n in range(count):

        def one(x: int, n: int = n) -> int:
            """One of many."""
            return x + n

        server.add_tool(one, name=f"tool-{n}")


if __name__ == "__main__":
    many(int(os.environ.get("SHOP_MANY", "0")))
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
