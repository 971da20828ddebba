"""`perdure mcp serve` and `perdure mcp list`."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option, Typer

from perdure.cli.options import Db, Json

TOKEN = "PERDURE_MCP_TOKEN"
"""The variable of the token that HTTP clients send. Without it, each start makes one."""

app = Typer(help="Serve agents over MCP and inspect MCP servers.", no_args_is_help=True, rich_markup_mode=None)


@app.command("serve")
def serve(
    target: Annotated[str, Argument(metavar="TARGET", help="module:attribute, e.g. agent:app.", show_default=False)],
    port: Annotated[
        int | None,
        Option(metavar="PORT", min=1, max=65535, help="Serve HTTP on 127.0.0.1 instead of stdio.", show_default=False),
    ] = None,
    db: Db = "",
) -> None:
    """Serve the agents of TARGET as MCP tools.

    Serves over stdio, or over HTTP with --port, and runs a worker meanwhile. HTTP clients send a bearer token: that of
    PERDURE_MCP_TOKEN, or the one printed at the start. Clients reach only sessions that clients opened here. A request
    with a key is one input, however often the client repeats it. A client that disconnects cancels nothing.
    """
    from perdure.cli.store_locator import run

    run(lambda: _serve(target, port, db))


async def _serve(target: str, port: int | None, db: str) -> None:
    import os
    import secrets

    from perdure.cli.screen import note
    from perdure.cli.store_locator import url_of
    from perdure.cli.targets import runtime_for

    try:
        from perdure.runtime.mcp_server import mcp_server, serve_http
    except ImportError as missing:
        from perdure.errors import Code, Error

        raise Error(
            Code.TOOL_PACKAGE_MISSING,
            "the MCP server needs a package that is not installed",
            because=str(missing),
            hint="pip install 'perdure[mcp]'",
        ) from missing
    if port is not None:
        _check_free(port)
    async with runtime_for(target, store=url_of(db), model=None, worker=True) as rt:
        server = mcp_server(rt)
        if port is None:
            await server.run_stdio_async()
            return
        given = os.environ.get(TOKEN, "").strip()
        token = given or secrets.token_urlsafe(32)
        note(f"Agents at http://127.0.0.1:{port}/mcp: {', '.join(rt.agents)}")
        note(f"Clients send Authorization: Bearer {f'${TOKEN}' if given else token}")
        await serve_http(server, port=port, token=token)


def _check_free(port: int) -> None:
    import socket

    from perdure.errors import Code, Error

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as problem:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"cannot bind port {port}",
                because=(problem.strerror or str(problem)).lower(),
                hint="--port 8000",
            ) from None


@app.command("list")
def list_tools(
    config: Annotated[str, Argument(metavar="CONFIG", help="A JSON file with mcpServers.", show_default=False)],
    json: Json = False,
) -> None:
    """List the tools of the configured MCP servers.

    Shows each tool's effect class, and whether a call needs an approval.
    """
    from perdure.cli.store_locator import run

    run(lambda: _list(config, json=json))


async def _list(config: str, *, json: bool) -> None:
    from perdure.cli.screen import count, emit, note, say
    from perdure.tools.mcp import McpServers

    async with McpServers(config) as servers:
        connected = servers.connected
        contracts = [servers.resolve_contract(one.name) for one in servers.tool_manifests()]
    found = [one for one in contracts if one is not None]
    for one in found:
        if json:
            emit(type="mcp_tool", v=1, name=one.name, effect=one.durability.effect, asks=one.always_asks)
        else:
            say(f"{one.name}  {one.durability.effect}{'  needs approval' if one.always_asks else ''}")
    away = [name for name, there in connected.items() if not there]
    note(f"{count(len(found), 'tool')} of {count(len(connected), 'server')}.")
    if away:
        note(f"Unreachable: {', '.join(away)}.")
