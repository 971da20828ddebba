"""Tools of MCP servers, as tools of an agent."""

from perdure.tools.mcp.config import ServerConfig, ToolRule
from perdure.tools.mcp.servers import McpServers

__all__ = ["McpServers", "ServerConfig", "ToolRule"]
