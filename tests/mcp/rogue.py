"""A server that keeps to no rule: written without an SDK, it says what no SDK would. Its one argument is how."""

from __future__ import annotations

import json
import os
import sys
import time

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
UNREADABLE: dict[str, object] = {"content": [{"type": "hologram"}]}
TOKEN = os.environ.get("TOKEN", "")
TELLING: dict[str, object] = {
    "content": [
        {"type": "resource_link", "uri": f"https://shop/{TOKEN}", "name": TOKEN},
        {"type": "resource", "resource": {"uri": f"file:///{TOKEN}", "text": TOKEN}},
    ],
    "structuredContent": {TOKEN: [{TOKEN: TOKEN}]},
}
seen: list[str] = []
waiting: list[object] = []


def say(message: object) -> None:
    print(json.dumps(message), flush=True)


def kept_back(how: str, id: object, method: str) -> bool:
    """Whether this is not answered as it should be."""
    seen.append(method)
    if how.startswith("lists_once") and method == "tools/list" and seen.count(method) > 1:
        if how == "lists_once":
            say({"jsonrpc": "2.0", "id": id, "error": {"code": -32000, "message": "busy"}})
        return True
    if how.startswith("lists_once") and method == "tools/call" and not waiting:
        waiting.append(id)  # the next call is answered, and this one with it
        return True
    if how == "refuses" and method == "tools/call":
        say({"jsonrpc": "2.0", "id": id, "error": {"code": -32000, "message": "sold out"}})
        return True
    return False


def answer(how: str, id: object, method: str) -> None:
    result: dict[str, object]
    match method:
        case "initialize":
            while how == "second" and not os.path.exists(os.environ["FIRST"]):
                time.sleep(0.01)
            served = {"name": "rogue", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": served}
        case "tools/list":
            if how == "dies_in_its_list":
                os._exit(1)
            if how == "first":
                open(os.environ["FIRST"], "w").close()
            lists = {"telling": [tool("good", taking({"default": TOKEN})) | {"description": TOKEN}]}
            lists |= {"injects": [tool("good") | {"description": TOKEN}]}
            lists |= {"uncheckable": [*TOOLS, *UNCHECKABLE], "nested": [tool("x__good"), tool("_x")]}
            result = {"tools": lists.get(how, [*TOOLS, *TOOLS])}
        case "tools/call":
            if how == "another":
                say({"jsonrpc": "2.0", "id": 9_999, "result": {"content": [{"type": "text", "text": "not yours"}]}})
            if how == "chatters":
                print("no JSON\n{neither\n[]\n", flush=True)
                print("secret-of-the-server " * 50_000, file=sys.stderr, flush=True)
            if how == "bytes":
                sys.stdout.buffer.write(b"\xff\xfe \xc3\n")
            if how == "long_line":
                print("x" * (33 * 1024 * 1024), flush=True)
            for one in waiting:
                say({"jsonrpc": "2.0", "id": one, "result": FINE})
            injected: dict[str, object] = {"content": [{"type": "text", "text": TOKEN}]}
            result = {"unreadable": UNREADABLE, "telling": TELLING, "injects": injected}.get(how, FINE)
            if how == "large":
                result = {"content": [{"type": "text", "text": "x" * (6 * 1024 * 1024)}]}
        case _:
            say({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "there is no such thing"}})
            return
    say({"jsonrpc": "2.0", "id": id, "result": result})


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked and not kept_back(sys.argv[1], asked["id"], asked["method"]):
            answer(sys.argv[1], asked["id"], asked["method"])
