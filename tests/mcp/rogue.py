"""A server that keeps to no rule: written without an SDK, it says what no SDK would. Its one argument is how."""

from __future__ import annotations

import json
import os
import sys

WITH_SCHEMA: object = {"type": "object", "properties": {}}


def tool(name: str, schema: object = WITH_SCHEMA) -> dict[str, object]:
    return {"name": name, "description": "does something", "inputSchema": schema}


def taking(schema: object) -> dict[str, object]:
    return {"type": "object", "properties": {"a": schema}}


TOOLS = [tool("good")]
UNCHECKABLE = [
    tool("strange", taking({"type": "strange"})),
    tool("pattern", taking({"type": "string", "pattern": "("})),
]
FINE: dict[str, object] = {"content": [{"type": "text", "text": "fine"}]}


def say(message: object) -> None:
    print(json.dumps(message), flush=True)


def answer(how: str, id: object, method: str) -> None:
    result: dict[str, object]
    match method:
        case "initialize":
            served = {"name": "rogue", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": served}
        case "tools/list":
            if how == "dies_in_its_list":
                os._exit(1)
            lists = {"uncheckable": [*TOOLS, *UNCHECKABLE], "nested": [tool("x__good"), tool("_x")]}
            result = {"tools": lists.get(how, [*TOOLS, *TOOLS])}
        case "tools/call":
            if how == "another":
                say({"jsonrpc": "2.0", "id": 9_999, "result": {"content": [{"type": "text", "text": "not yours"}]}})
            if how == "chatters":
                print("no JSON\n{neither\n[]\n", flush=True)
                print("secret-of-the-server " * 50_000, file=sys.stderr, flush=True)
            result = {"content": [{"type": "hologram"}]} if how == "unreadable" else FINE
        case _:
            say({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "there is no such thing"}})
            return
    say({"jsonrpc": "2.0", "id": id, "result": result})


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            answer(sys.argv[1], asked["id"], asked["method"])
