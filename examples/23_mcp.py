"""Shows: tools of an MCP server. Each is `once` unless the application configures it; one needs an approval.

Needs:   pip install 'perdure[mcp]'
Run:     python examples/23_mcp.py
See:     a server over stdio, its tools with their effect classes, and a call of each.
"""

import asyncio
import sys

from perdure import Agent, Runtime
from perdure.testing import ScriptedModel, call, say
from perdure.tools.mcp import McpServers

SERVER = """
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
server = MCPServer("library")

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def find(title: str) -> str:
    "Find a book."
    return f"{title}: shelf 7"

@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def discard(title: str) -> str:
    "Throw a book away."
    return f"{title} is gone"

server.run("stdio")
"""
RULES = {"find": {"effect": "pure"}}
CONFIG = {"library": {"command": sys.executable, "args": ["-c", SERVER], "tools": RULES, "start_timeout": 60}}
model = ScriptedModel(
    call("mcp_library__find", title="Ulysses"), call("mcp_library__discard", title="Ulysses"), say("Gone.", exact=True)
)


async def main() -> None:
    async with McpServers(CONFIG) as servers:
        for one in servers.tool_manifests():
            print(f"1  {one.name}: {one.durability.effect}")
        async with Runtime("memory://", agents=[Agent("librarian", model=model, tools=[servers])]) as rt:
            session = await rt.session("s", agent="librarian")
            sent = await session.send("Throw Ulysses away")
            async for question in rt.approvals.watch():
                print(f"2  {question.what}: {question.args}")
                await rt.approvals.approve(question.id, by="ana")
                break
            print("3 ", (await sent.result()).text)


if __name__ == "__main__":
    asyncio.run(main())
